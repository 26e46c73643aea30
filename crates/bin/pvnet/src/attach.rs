//! `pvnet attach` and `pvnet detach`: interfaces of Xen domains whose backends have a type unknown
//! to `xl`. pvnet and the kernel's xen-netback can then serve one host side by side.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use document::Document;
use hypervisor::DomId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use schemars::JsonSchema;
use serde::Serialize;
use wire::ethernet::MacAddr;
use xenstore::{Client, Store, StoreError, VifNodes, XenbusState};

use crate::program::{show, text};

/// The interface.
#[derive(Args)]
pub struct VifArgs {
    /// The guest: its domain's name or number.
    domain: String,
    /// The interface's number in the guest.
    #[arg(long, default_value_t = 0, value_name = "N")]
    vif: u32,
    /// The backends' type, as in the daemon's configuration; `vif` is the toolstack's.
    #[arg(long, default_value = "pvnet", value_name = "TYPE")]
    backend: String,
    /// The driver domain that the daemon runs in.
    #[arg(long, default_value_t = 0, value_name = "DOMID")]
    backend_domain: u16,
}

/// An interface that was made or removed.
#[derive(Serialize, JsonSchema)]
pub struct AttachDocument {
    /// The domain's number.
    domain: u16,
    /// The interface's number in the guest.
    vif: u32,
    /// The backend's type.
    backend: String,
    /// The driver domain's number.
    backend_domain: u16,
    /// Whether the interface is there, and connected. Otherwise it was removed.
    attached: bool,
    /// Its MAC address, while it is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    /// Whether it was removed although the guest did not close it.
    forced: bool,
}

impl Document for AttachDocument {
    const SCHEMA: &str = "pvnet-attach/1";
}

impl AttachDocument {
    fn new(nodes: &VifNodes, mac: Option<MacAddr>, forced: bool) -> Self {
        let VifNodes { backend, kind, domain, handle } = nodes;
        Self {
            domain: domain.0,
            vif: *handle,
            backend: kind.clone(),
            backend_domain: backend.0,
            attached: mac.is_some(),
            mac: mac.map(|mac| mac.to_string()),
            forced,
        }
    }
}

/// The time limit for both ends to connect or close.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The first half of Xen's addresses.
const XEN_OUI: [u8; 3] = [0x00, 0x16, 0x3e];

/// Gives a domain an interface, and waits until it is connected.
pub fn attach(args: &VifArgs, mac: Option<MacAddr>, json: bool) -> Result<(), String> {
    let store = connect()?;
    let nodes = args.nodes(&*store)?;
    if store.read(None, &format!("{}/backend", nodes.frontend_path())).is_ok() {
        return Err(format!(
            "domain {} has an interface {} already; choose another --vif, or remove it with \
             `pvnet detach` or `xl network-detach`",
            args.domain, args.vif
        ));
    }
    let mac = mac.map_or_else(random_mac, Ok)?;
    nodes.create(&*store, &mac.to_string()).map_err(text)?;
    let state = format!("{}/state", nodes.backend_path());
    match wait_for(&*store, &state, |state| state == Some(XenbusState::Connected)) {
        Ok(()) => show(json, &AttachDocument::new(&nodes, Some(mac), false), || {
            format!("vif {} of domain {} is up: mac {mac}\n", args.vif, args.domain)
        }),
        Err(WaitError::Store(error)) => Err(text(error)),
        Err(WaitError::At(now)) => Err(format!(
            "created, but not connected: the backend is in state {now:?} ({}); `pvnet status` says \
             more",
            match now {
                Some(XenbusState::Initialising) | None => {
                    "no daemon serves backends of this type: start `pvnet run`, and check [xen] \
                     backend in its configuration"
                }
                _ => "the guest has no driver for it, or has not noticed it yet",
            }
        )),
    }
}

/// Removes an interface, after the guest has closed it or after the time limit.
pub fn detach(args: &VifArgs, json: bool) -> Result<(), String> {
    let store = connect()?;
    let nodes = args.nodes(&*store)?;
    match nodes.ask_to_close(&*store) {
        Ok(()) => {}
        Err(StoreError::NotFound(_)) => {
            return Err(format!(
                "domain {} has no interface {} with a backend of type {:?}",
                args.domain, args.vif, args.backend
            ));
        }
        Err(error) => return Err(text(error)),
    }
    let state = format!("{}/state", nodes.backend_path());
    let closed = |state| matches!(state, Some(XenbusState::Closed) | None);
    let forced = match wait_for(&*store, &state, closed) {
        Ok(()) => false,
        Err(WaitError::Store(error)) => return Err(text(error)),
        Err(WaitError::At(_)) => true,
    };
    if forced {
        eprintln!("the guest does not close it; removing it anyway");
    }
    nodes.remove(&*store).map_err(text)?;
    show(json, &AttachDocument::new(&nodes, None, forced), String::new)
}

impl VifArgs {
    fn nodes(&self, store: &dyn Store) -> Result<VifNodes, String> {
        let domain = find_domain(store, &self.domain)?;
        let (backend, kind) = (DomId(self.backend_domain), self.backend.clone());
        Ok(VifNodes { backend, kind, domain, handle: self.vif })
    }
}

fn find_domain(store: &dyn Store, name: &str) -> Result<DomId, String> {
    let domains = store.directory(None, "/local/domain").map_err(text)?;
    let is_it = |id: &&String| {
        **id == name
            || store.read(None, &format!("/local/domain/{id}/name")).is_ok_and(|n| n == name)
    };
    let found = domains.iter().find(is_it).and_then(|id| id.parse().ok());
    found.map(DomId).ok_or_else(|| format!("no domain {name:?}; `xl list` shows all domains"))
}

fn connect() -> Result<Arc<dyn Store>, String> {
    let connection = xen::store::connect().map_err(text)?;
    Ok(Arc::new(Client::new(connection).map_err(text)?))
}

fn random_mac() -> Result<MacAddr, String> {
    let mut mac = [0; 6];
    mac[..3].copy_from_slice(&XEN_OUI);
    let mut source = std::fs::File::open("/dev/urandom").map_err(text)?;
    source.read_exact(&mut mac[3..]).map_err(text)?;
    // The upper half of Xen's addresses is assigned to others.
    mac[3] &= 0x7f;
    Ok(MacAddr(mac))
}

/// Why the state was not reached.
enum WaitError {
    Store(StoreError),
    At(Option<XenbusState>),
}

/// Waits until the state at `path` is one that `wanted` accepts.
fn wait_for(
    store: &dyn Store,
    path: &str,
    wanted: impl Fn(Option<XenbusState>) -> bool,
) -> Result<(), WaitError> {
    store.watch(path, "state").map_err(WaitError::Store)?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        while store.event().map_err(WaitError::Store)?.is_some() {}
        let now = match store.read(None, path) {
            Ok(text) => XenbusState::parse(&text),
            Err(StoreError::NotFound(_)) => None,
            Err(error) => return Err(WaitError::Store(error)),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        match (wanted(now), left.is_zero()) {
            (true, _) => return Ok(()),
            (false, true) => return Err(WaitError::At(now)),
            (false, false) => {}
        }
        let mut fds = [PollFd::from_borrowed_fd(store.event_fd(), PollFlags::IN)];
        // An interrupted wait starts again.
        let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_are_as_the_schema_says() {
        let (backend, domain) = (DomId(0), DomId(7));
        let nodes = VifNodes { backend, kind: "pvnet".to_owned(), domain, handle: 1 };
        let mac = MacAddr([0x00, 0x16, 0x3e, 0, 0, 1]);
        for (mac, forced) in [(Some(mac), false), (None, true)] {
            let json = document::checked(&AttachDocument::new(&nodes, mac, forced));
            assert_eq!((&json["domain"], &json["vif"]), (&7.into(), &1.into()));
            assert_eq!(json["attached"], mac.is_some());
            assert_eq!(json.get("mac").is_some(), mac.is_some());
        }
    }
}
