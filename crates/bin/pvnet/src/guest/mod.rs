//! `pvnet guest` and `pvnet frontend`: domains whose frontend feeds a Linux TCP/IP stack.

mod link;
mod memory;
mod pump;

use std::path::Path;
use std::sync::Arc;

use hypervisor::DomId;
use machine::{Grouping, toolstack};
use offload::Features;
use xen::XenGuest;
use xenstore::{Client, Store};

use crate::netns::{self, GuestNamespace};
use link::{Link, Place};
use memory::Balloon;

/// What an interface is to be, on either platform.
#[derive(Clone, Debug)]
pub struct Options {
    /// The interface's name for the stack.
    pub device: String,
    /// Queues; as many as there are CPUs if absent.
    pub queues: Option<u32>,
    /// Its addresses; those that the toolstack says if absent.
    pub addresses: Option<Vec<String>>,
    /// Offloads it does without.
    pub without: Features,
    /// One event channel for both rings.
    pub one_event_channel: bool,
    /// Headers in their frames' own pages.
    pub no_header_channel: bool,
    /// No pages kept mapped by the daemon.
    pub no_persistent_grants: bool,
}

/// Runs a guest of a daemon on this machine until it is told to stop or the daemon, whose socket
/// is given, goes. `name` is its name in the daemon's configuration and as a namespace. Prints a
/// line once it is up.
pub fn run(name: &str, socket: &Path, options: &Options) -> Result<(), String> {
    // Before there is anything that a signal could leave behind.
    let signals = stop_signal()?;
    let (guest, store) = machine::join(socket, name).map_err(display)?;
    let store: Arc<dyn Store> = Arc::new(Client::new(store).map_err(display)?);
    let namespace = GuestNamespace::make(name)?;
    // From here on this process lives in the namespace: the tap is made there.
    netns::enter(name)?;
    if !flag(&*store, "group-pages") {
        guest.group(Grouping::Scattered);
    }
    let place = Place { node: toolstack::device_path(0), namespace: Some(name.to_owned()) };
    let own = features(&*store).without(options.without);
    let link = Link::open(&guest, &store, &place, own, options)?;
    println!("guest {name} is up: {} in namespace {name}", options.device);
    let mut balloon = Balloon::watch(guest, store).map_err(display)?;
    link.wait(&signals, || balloon.follow())?;
    let result = link.close();
    drop(namespace);
    result
}

/// Runs the frontend of interface `handle` of the Xen domain that this is, in the place of the
/// kernel's, until it is told to stop or the backend closes. Prints a line once it is up.
pub fn run_on_xen(handle: u32, options: &Options) -> Result<(), String> {
    let signals = stop_signal()?;
    let connection = xen::store::connect().map_err(display)?;
    let store: Arc<dyn Store> = Arc::new(Client::new(connection).map_err(display)?);
    let own = store.read(None, "domid").map_err(display)?;
    let own = own.trim().parse().map_err(|error| format!("domid {own:?}: {error}"))?;
    let guest = XenGuest::open(DomId(own)).map_err(display)?;
    let place = Place { node: toolstack::device_path(handle), namespace: None };
    let own = Features::ALL.without(options.without);
    let link = Link::open(&guest, &store, &place, own, options)?;
    println!("vif {handle} is up: {}", options.device);
    link.wait(&signals, || {})?;
    link.close()
}

fn display(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Whether the daemon's configuration switches something on for this guest.
fn flag(store: &dyn Store, key: &str) -> bool {
    store.read(None, &format!("data/{key}")).is_ok_and(|text| text == "1")
}

/// What the daemon's configuration says of this guest.
fn features(store: &dyn Store) -> Features {
    let flag = |key| flag(store, key);
    let csum = flag("checksum-offload");
    let tso = flag("tcp-segmentation-offload");
    let sg = flag("scatter-gather");
    Features { sg, csum_v4: csum, csum_v6: csum, tso_v4: tso, tso_v6: tso }
}

/// A descriptor that becomes readable at SIGINT, SIGTERM or, except under `nohup`, SIGHUP.
fn stop_signal() -> Result<std::os::unix::net::UnixStream, String> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let (reader, writer) = std::os::unix::net::UnixStream::pair().map_err(display)?;
    let hangup = lab::Interrupt::signals().into_iter().filter(|signal| *signal == SIGHUP);
    for signal in [SIGINT, SIGTERM].into_iter().chain(hangup) {
        let writer = writer.try_clone().map_err(display)?;
        signal_hook::low_level::pipe::register(signal, writer).map_err(display)?;
    }
    Ok(reader)
}
