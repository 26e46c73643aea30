//! `pvnet guest`: a domain whose frontend feeds a network namespace's own Linux TCP/IP stack.

mod memory;
mod pump;

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hypervisor::Store;
use hypervisor::xs_client::XsClient;
use machine::{Grouping, MachineGuest, toolstack};
use netfront::{Frontend, Queue};
use offload::Features;
use rustix::event::{PollFd, PollFlags, poll};
use uplink::tap::{Tap, TapOffload, TapQueue};

use crate::netns::{self, GuestNamespace};
use memory::Balloon;
use pump::Pump;

/// How a guest is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its name, in the daemon's configuration and as a namespace.
    pub name: String,
    /// The daemon's socket.
    pub socket: PathBuf,
    /// The interface's name in the namespace.
    pub device: String,
    /// Queues; as many as the namespace has CPUs if absent.
    pub queues: Option<u32>,
    /// Instead of the addresses of the daemon's configuration.
    pub addresses: Option<Vec<String>>,
    /// Offloads the guest does without.
    pub without: Features,
    /// One event channel for both rings.
    pub one_event_channel: bool,
    /// Headers in their frames' own pages.
    pub no_header_channel: bool,
    /// No pages kept mapped by the daemon.
    pub no_persistent_grants: bool,
}

/// How long the daemon may take for each step of the handshake.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a guest until it is told to stop or the daemon goes. Prints a line once it is up.
pub fn run(options: &Options) -> Result<(), String> {
    // Before there is anything that a signal could leave behind.
    let signals = stop_signal()?;
    let (guest, store) = machine::join(&options.socket, &options.name).map_err(display)?;
    let store: Arc<dyn Store> = Arc::new(XsClient::new(store).map_err(display)?);
    let namespace = GuestNamespace::make(&options.name)?;
    // From here on this process lives in the namespace: the tap is made there.
    netns::enter(&options.name)?;
    if !flag(&*store, "group-pages") {
        guest.group(Grouping::Scattered);
    }
    let (frontend, queues) = connect(&guest, &store, options)?;
    let taps = open_tap(&frontend, queues.len(), options, &*store)?;
    let pumps: Vec<_> = queues
        .into_iter()
        .zip(taps)
        .enumerate()
        .map(|(number, (queue, tap))| Pump::start(number, queue, tap))
        .collect::<Result<_, _>>()
        .map_err(display)?;
    println!("guest {} is up: {} in namespace {}", options.name, options.device, options.name);
    let balloon = Balloon::watch(guest, store).map_err(display)?;
    wait(&frontend, &pumps, balloon, signals.as_fd())?;
    for pump in &pumps {
        pump.stop();
    }
    let faults: Vec<String> = pumps.into_iter().filter_map(Pump::join).collect();
    // The daemon may be the one that left; then there is nobody to say goodbye to.
    let _ = frontend.close(Duration::from_secs(2));
    drop(namespace);
    match faults.first() {
        Some(fault) => Err(fault.clone()),
        None => Ok(()),
    }
}

fn display(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Whether the daemon's configuration switches something on for this guest.
fn flag(store: &dyn Store, key: &str) -> bool {
    store.read(None, &format!("data/{key}")).is_ok_and(|text| text == "1")
}

/// What the daemon's configuration says of this guest, less what the options take away.
fn features(store: &dyn Store, without: Features) -> Features {
    let flag = |key| flag(store, key);
    let sg = flag("scatter-gather") && !without.sg;
    let csum = flag("checksum-offload");
    let tso = flag("tcp-segmentation-offload") && sg;
    let csum_v4 = csum && !without.csum_v4;
    let csum_v6 = csum && !without.csum_v6;
    Features {
        sg,
        csum_v4,
        csum_v6,
        tso_v4: tso && csum_v4 && !without.tso_v4,
        tso_v6: tso && csum_v6 && !without.tso_v6,
    }
}

fn connect(
    guest: &MachineGuest,
    store: &Arc<dyn Store>,
    options: &Options,
) -> Result<(Frontend<MachineGuest>, Vec<Queue<MachineGuest>>), String> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let config = netfront::Config {
        queues: options.queues.unwrap_or(u32::try_from(cpus).unwrap_or(1)),
        features: features(&**store, options.without),
        split_event_channels: !options.one_event_channel,
        header_channel: !options.no_header_channel,
        persistent_grants: !options.no_persistent_grants,
        patience: PATIENCE,
    };
    Frontend::connect(guest, store.clone(), &toolstack::device_path(0), &config).map_err(display)
}

/// The tap between the stack and the frontend. The stack leaves to it what this end may leave
/// to the backend, no more.
fn open_tap(
    frontend: &Frontend<MachineGuest>,
    queues: usize,
    options: &Options,
    store: &dyn Store,
) -> Result<Vec<TapQueue>, String> {
    let own = features(store, options.without);
    let backend = frontend.features();
    let offload = TapOffload {
        // A tap knows no difference between IPv4 and IPv6 checksums.
        csum: own.csum_v4 && own.csum_v6 && backend.csum_v6,
        tso4: own.tso_v4 && backend.tso_v4 && backend.sg,
        tso6: own.tso_v6 && backend.tso_v6 && backend.sg,
    };
    let taps = Tap::open(&options.device, queues, offload).map_err(display)?;
    let configured = || {
        let text = store.read(None, "data/addresses").unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    };
    let addresses = options.addresses.clone().unwrap_or_else(configured);
    netns::set_mac(&options.name, &options.device, &frontend.mac().to_string())?;
    netns::bring_up(Some(&options.name), &options.device, &addresses)?;
    Ok(taps)
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

/// Waits for the first reason to end: a signal, a backend that has gone, a pump that failed.
/// Has as much memory as it is told meanwhile.
fn wait(
    frontend: &Frontend<MachineGuest>,
    pumps: &[Pump],
    mut balloon: Balloon,
    signals: std::os::fd::BorrowedFd<'_>,
) -> Result<(), String> {
    loop {
        balloon.follow();
        let store = frontend.store().event_fd();
        let mut fds: Vec<_> =
            [store, signals].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).into();
        fds.extend(pumps.iter().map(|pump| PollFd::from_borrowed_fd(pump.ended(), PollFlags::IN)));
        rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(display)?;
        let signalled = !fds[1].revents().is_empty();
        let failed = fds[2..].iter().any(|fd| !fd.revents().is_empty());
        if signalled || failed || !frontend.is_open().unwrap_or(false) {
            return Ok(());
        }
    }
}
