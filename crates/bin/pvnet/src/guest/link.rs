//! A frontend, a tap, and the threads that forward frames between them.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use hypervisor::Guest;
use netfront::{Frontend, Queue};
use offload::Features;
use rustix::event::{PollFd, PollFlags, poll};
use uplink::tap::{Tap, TapOffload, TapQueue};
use xenstore::Store;

use super::forward::QueueThread;
use super::options::Options;
use crate::error::text;
use crate::netns;

/// How long the backend may take for each step of the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the backend may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The location of an interface.
pub(super) struct Location {
    /// Its node in the store.
    pub(super) node: String,
    /// The namespace of its stack, in which this process runs; none for the system's.
    pub(super) namespace: Option<String>,
}

/// An interface that is up. Its frames are carried until it is dropped or [closed](Self::close).
pub(super) struct Link<G: Guest> {
    frontend: Frontend<G>,
    threads: Vec<QueueThread>,
}

impl<G: Guest> Link<G> {
    /// Connects the frontend and brings the tap up. `own` are this end's offloads.
    pub(super) fn open(
        guest: &G,
        store: &Arc<dyn Store>,
        location: &Location,
        own: Features,
        options: &Options,
    ) -> Result<Self, String> {
        let (frontend, queues) = connect(guest, store, location, own, options)?;
        let taps = open_tap(&frontend, queues.len(), location, own, options)?;
        let threads = queues
            .into_iter()
            .zip(taps)
            .enumerate()
            .map(|(number, (queue, tap))| QueueThread::start(number, queue, tap))
            .collect::<Result<_, _>>()
            .map_err(text)?;
        Ok(Self { frontend, threads })
    }

    /// Waits for the first reason to end: a signal, a backend that has gone, a queue that failed.
    /// `follow` is called once, and again after each change in the store.
    pub(super) fn wait(&self, signals: impl AsFd, mut follow: impl FnMut()) -> Result<(), String> {
        loop {
            follow();
            let store = self.frontend.store().event_fd();
            let mut fds: Vec<_> = [store, signals.as_fd()]
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .into();
            let ended = self.threads.iter().map(QueueThread::ended);
            fds.extend(ended.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(text)?;
            let signalled = !fds[1].revents().is_empty();
            let failed = fds[2..].iter().any(|fd| !fd.revents().is_empty());
            if signalled || failed || !self.frontend.is_open().unwrap_or(false) {
                return Ok(());
            }
        }
    }

    /// Stops forwarding and closes the interface. The error is why a queue's thread had ended early.
    pub(super) fn close(self) -> Result<(), String> {
        for thread in &self.threads {
            thread.stop();
        }
        let faults: Vec<String> = self.threads.into_iter().filter_map(QueueThread::join).collect();
        // This times out if the backend has gone first.
        let _ = self.frontend.close(CLOSE_TIMEOUT);
        faults.into_iter().next().map_or(Ok(()), Err)
    }
}

fn connect<G: Guest>(
    guest: &G,
    store: &Arc<dyn Store>,
    location: &Location,
    own: Features,
    options: &Options,
) -> Result<(Frontend<G>, Vec<Queue<G>>), String> {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let config = netfront::Config {
        queues: options.queues.unwrap_or(u32::try_from(cpus).unwrap_or(1)),
        features: own,
        split_event_channels: !options.one_event_channel,
        header_channel: !options.no_header_channel,
        persistent_grants: !options.no_persistent_grants,
        timeout: HANDSHAKE_TIMEOUT,
    };
    Frontend::connect(guest, store.clone(), &location.node, &config).map_err(text)
}

/// The tap between the stack and the frontend. It offers the stack only those offloads that this end
/// may leave to the backend.
fn open_tap<G: Guest>(
    frontend: &Frontend<G>,
    queues: usize,
    location: &Location,
    own: Features,
    options: &Options,
) -> Result<Vec<TapQueue>, String> {
    let backend = frontend.features();
    let offload = TapOffload {
        // A tap does not distinguish IPv4 and IPv6 checksums.
        csum: own.csum_v4 && own.csum_v6 && backend.csum_v6,
        tso4: own.tso_v4 && backend.tso_v4 && backend.sg,
        tso6: own.tso_v6 && backend.tso_v6 && backend.sg,
    };
    let taps = Tap::open(&options.device, queues, offload).map_err(text)?;
    let configured = || {
        let text = frontend.store().read(None, "data/addresses").unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    };
    let addresses = options.addresses.clone().unwrap_or_else(configured);
    let namespace = location.namespace.as_deref();
    netns::set_mac(namespace, &options.device, &frontend.mac().to_string())?;
    netns::bring_up(namespace, &options.device, &addresses)?;
    Ok(taps)
}
