//! A Xen virtual interface as a device of this guest.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::Guest;
use machine::{DRIVER_DOMAIN, MachineGuest, toolstack};
use netfront::{CopyPool, Frontend, HashConfig};
use offload::Features;
use wire::netif::keys;
use xenstore::{Store, StoreError};

use super::link::{Link, StackEnd};
use super::options::Options;
use crate::netns;
use crate::program::text;

/// The folder of this domain's interfaces in the store.
const FOLDER: &str = "device/vif";
/// How long the backend may take for each step of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// Connects the frontend of interface `handle` and brings it up.
pub(super) fn open<G: Guest>(
    guest: &G,
    store: &Arc<dyn Store>,
    handle: u32,
    stack: StackEnd<'_>,
    pool: Option<&CopyPool<G>>,
) -> Result<Link, String> {
    let options = stack.options;
    let config = netfront::Config {
        queues: queues(options),
        features: stack.offloads,
        split_event_channels: !options.one_event_channel,
        header_channel: !options.no_header_channel,
        persistent_grants: !options.no_persistent_grants,
        hash: options.hash,
        guest_copy: !options.no_guest_copy,
        multicast_control: false,
        timeout: HANDSHAKE_TIMEOUT,
    };
    let node = toolstack::device_path(handle);
    let (mut frontend, queues) =
        Frontend::connect_with(guest, store.clone(), &node, &config, pool).map_err(text)?;
    if options.hash {
        let control = frontend.control().ok_or("--hash: the backend offers no control ring")?;
        control
            .set_hash(&HashConfig::over(queues.len()))
            .map_err(|error| format!("--hash: {error}"))?;
    }
    let mtu = store.read(None, &format!("{node}/{}", keys::MTU)).ok();
    let mtu: Option<u16> = mtu.and_then(|text| text.trim().parse().ok());
    let (name, namespace) = (stack.name.clone(), stack.namespace);
    let link = Link::open(frontend, queues, stack)?;
    if let Some(mtu) = mtu {
        netns::set_mtu(namespace, &name, mtu)?;
    }
    Ok(link)
}

/// The most queues of an interface.
fn queues(options: &Options) -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    options.queues.unwrap_or(u32::try_from(cpus).unwrap_or(1))
}

/// The receive buffers that `vifs` interfaces share, if the daemon's configuration asks for it.
pub(super) fn copy_pool(
    guest: &MachineGuest,
    store: &dyn Store,
    vifs: usize,
    options: &Options,
) -> Result<Option<CopyPool<MachineGuest>>, String> {
    let pages = store.read(None, "data/copy-pool").ok().and_then(|text| text.parse().ok());
    let Some(pages) = pages.filter(|pages| *pages > 0) else { return Ok(None) };
    let queues = vifs * queues(options) as usize;
    CopyPool::new(guest, DRIVER_DOMAIN, pages, queues).map(Some).map_err(text)
}

/// The interfaces that the toolstack has made for this domain.
pub(super) fn handles(store: &dyn Store) -> Result<Vec<u32>, String> {
    let nodes = match store.directory(None, FOLDER) {
        Ok(nodes) => nodes,
        // It has other interfaces.
        Err(StoreError::NotFound(_)) => Vec::new(),
        Err(error) => return Err(text(error)),
    };
    let mut handles: Vec<u32> = nodes.iter().filter_map(|node| node.parse().ok()).collect();
    handles.sort_unstable();
    Ok(handles)
}

/// Whether the daemon's configuration switches something on.
pub(super) fn flag(store: &dyn Store, key: &str) -> bool {
    store.read(None, key).is_ok_and(|text| text == "1")
}

/// The offloads of interface `handle` in the daemon's configuration.
pub(super) fn features(store: &dyn Store, handle: u32) -> Features {
    let flag = |key| flag(store, &format!("data/vif/{handle}/{key}"));
    let csum = flag("checksum-offload");
    let tso = flag("tcp-segmentation-offload");
    let sg = flag("scatter-gather");
    Features { sg, csum_v4: csum, csum_v6: csum, tso_v4: tso, tso_v6: tso, ..Features::NONE }
}

/// The addresses of interface `handle` in the daemon's configuration.
pub(super) fn addresses(store: &dyn Store, handle: u32) -> Vec<String> {
    list(store, &format!("data/vif/{handle}/addresses"))
}

/// The words of a key in the daemon's configuration.
pub(super) fn list(store: &dyn Store, key: &str) -> Vec<String> {
    let text = store.read(None, key).unwrap_or_default();
    text.split_whitespace().map(str::to_owned).collect()
}
