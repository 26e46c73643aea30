//! `pvnet guest` and `pvnet frontend`: domains whose frontend feeds a Linux TCP/IP stack.

mod link;
mod links;
mod memory;
mod options;
mod pump;
mod vif;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hypervisor::DomId;
use machine::{Grouping, Token};
use offload::Features;
use xen::XenGuest;
use xenstore::{Client, Store};

use crate::error::text;
use crate::netns::{self, GuestNamespace};
use crate::signals::stop_signal;
use link::{Link, StackEnd};
use memory::Balloon;

pub use options::Options;

/// Which guest a process is.
pub struct Identity {
    /// Its name in the daemon's configuration, and its namespace's name.
    pub name: String,
    /// The file with the secret that proves it.
    pub token_file: Option<PathBuf>,
}

impl Identity {
    /// The secret. It is in a file, because everybody can see a process's arguments.
    fn token(&self) -> Result<Option<Token>, String> {
        let read = |path: &PathBuf| {
            Token::read(path).map_err(|error| format!("{}: {error}", path.display()))
        };
        self.token_file.as_ref().map(read).transpose()
    }
}

/// Runs a guest of the daemon at `socket` until a signal or the daemon's end. Prints a line when it
/// is up.
pub fn run(identity: &Identity, socket: &Path, options: &Options) -> Result<(), String> {
    let (name, token) = (identity.name.as_str(), identity.token()?);
    // Before all else, so that a signal leaves nothing behind.
    let signals = stop_signal()?;
    let (guest, store) = machine::join_with(socket, name, token.as_ref()).map_err(text)?;
    let store: Arc<dyn Store> = Arc::new(Client::new(store).map_err(text)?);
    let namespace = GuestNamespace::make(name)?;
    // From here on this process is in the namespace, so that the tap is created there.
    netns::enter(name)?;
    if !flag(&*store, "group-pages") {
        guest.group(Grouping::Scattered);
    }
    let own = features(&*store).without(options.without);
    let (device, queues) = vif::connect(&guest, &store, 0, own, options)?;
    let link = Link::open(device, queues, options.stack_end(Some(name), own, &*store))?;
    println!("guest {name} is up: {} in namespace {name}", options.device);
    let mut balloon = Balloon::watch(guest, store).map_err(text)?;
    let result = links::run(vec![link], &signals, || balloon.follow());
    drop(namespace);
    result
}

/// Runs the frontend of interface `handle` of this Xen domain, instead of the kernel's, until a
/// signal or until the backend closes. Prints a line when it is up.
pub fn run_on_xen(handle: u32, options: &Options) -> Result<(), String> {
    let signals = stop_signal()?;
    let connection = xen::store::connect().map_err(text)?;
    let store: Arc<dyn Store> = Arc::new(Client::new(connection).map_err(text)?);
    let own = store.read(None, "domid").map_err(text)?;
    let own = own.trim().parse().map_err(|error| format!("domid {own:?}: {error}"))?;
    let guest = XenGuest::open(DomId(own)).map_err(text)?;
    let own = Features::ALL.without(options.without);
    let (device, queues) = vif::connect(&guest, &store, handle, own, options)?;
    let link = Link::open(device, queues, options.stack_end(None, own, &*store))?;
    println!("vif {handle} is up: {}", options.device);
    links::run(vec![link], &signals, || {})
}

impl Options {
    /// The stack's end of the interface. Its addresses are those of the command line, otherwise the
    /// toolstack's.
    fn stack_end<'a>(
        &self,
        namespace: Option<&'a str>,
        offloads: Features,
        store: &dyn Store,
    ) -> StackEnd<'a> {
        let configured = || {
            let text = store.read(None, "data/addresses").unwrap_or_default();
            text.split_whitespace().map(str::to_owned).collect()
        };
        let addresses = self.addresses.clone().unwrap_or_else(configured);
        StackEnd { name: self.device.clone(), namespace, offloads, addresses }
    }
}

/// Whether the daemon's configuration switches something on for this guest.
fn flag(store: &dyn Store, key: &str) -> bool {
    store.read(None, &format!("data/{key}")).is_ok_and(|text| text == "1")
}

/// A key of this guest in the daemon's configuration.
fn features(store: &dyn Store) -> Features {
    let flag = |key| flag(store, key);
    let csum = flag("checksum-offload");
    let tso = flag("tcp-segmentation-offload");
    let sg = flag("scatter-gather");
    Features { sg, csum_v4: csum, csum_v6: csum, tso_v4: tso, tso_v6: tso }
}
