//! The events of the control thread.

use std::os::fd::AsFd;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use capture::{Capture, CaptureRequest};
use control_socket::{Change, ChangeReport, MoveReport, Status, WorkerRequest};
use datapath::{Failure, Sleep};
use hypervisor::DomId;
use rustix::event::{PollFd, PollFlags, poll};
use xenstore::{Store, WatchEvent};

use super::error::Error;
use super::thread::spawn;
use crate::config::{Guest, Loaded, Vif};
use crate::daemon::backends::VifId;
use crate::daemon::ports::port_event::{PortEvent, PortId};

/// An interface that a toolstack has created.
pub(super) struct NewInterface {
    pub(super) id: VifId,
    /// Its guest in the configuration.
    pub(super) guest: Guest,
    /// Its port's name.
    pub(super) name: String,
    pub(super) vif: Vif,
}

/// What the ports are to become.
pub(super) struct NewConfig {
    pub(super) source: ConfigSource,
    /// Only say what would be done.
    pub(super) dry_run: bool,
    /// Cut connections, and open devices again, where that is needed.
    pub(super) reconnect: bool,
}

/// Where a new configuration comes from.
pub(super) enum ConfigSource {
    /// The file was read again.
    File(Box<Loaded>),
    /// A command changes the present one.
    Command(Change),
}

/// A message to the control thread.
pub(super) enum Event {
    /// The toolstack has created an interface.
    Plugged { interface: Box<NewInterface>, answer: mpsc::Sender<Result<(), String>> },
    /// An interface is gone, perhaps with its domain.
    Unplugged { id: VifId, answer: mpsc::Sender<()> },
    /// Something changed in the store. The next change is reported once `done` is dropped.
    Store { event: WatchEvent, done: mpsc::Sender<()> },
    /// A queue broke.
    Failure(Failure),
    /// A worker slept in the memory of a guest.
    Slept(Sleep),
    /// Something happened to a port. It is served once `done` is dropped.
    Port { port: PortId, what: PortEvent, done: mpsc::Sender<()> },
    /// A client moves queues between workers.
    Workers { request: WorkerRequest, answer: mpsc::Sender<Result<MoveReport, String>> },
    /// A client asks for the status.
    Status(mpsc::Sender<Status>),
    /// A client sets a guest's memory, in MiB. A guest without vifs is found by its contexts.
    Balloon {
        name: String,
        with_contexts: Option<DomId>,
        mib: usize,
        answer: mpsc::Sender<Result<(), String>>,
    },
    /// A client starts a capture of a port's frames.
    Capture { request: CaptureRequest, answer: mpsc::Sender<Result<Capture, String>> },
    /// A client, or a signal, changes the ports.
    Change { change: Box<NewConfig>, answer: mpsc::Sender<Result<ChangeReport, String>> },
    /// The daemon must stop.
    Stop,
}

/// Sends the control thread an event, and waits for its answer.
///
/// # Errors
/// It has not answered within `limit`, or the daemon is stopping.
pub(super) fn ask<T>(
    events: &mpsc::Sender<Event>,
    limit: Duration,
    event: impl FnOnce(mpsc::Sender<T>) -> Event,
) -> Result<T, RecvTimeoutError> {
    let (answer, answered) = mpsc::channel();
    events.send(event(answer)).map_err(|_| RecvTimeoutError::Disconnected)?;
    answered.recv_timeout(limit)
}

/// The same for an answer that may be a refusal. The error is for an operator.
pub(super) fn request<T>(
    events: &mpsc::Sender<Event>,
    limit: Duration,
    event: impl FnOnce(mpsc::Sender<Result<T, String>>) -> Event,
) -> Result<T, String> {
    ask(events, limit, event).unwrap_or_else(|error| {
        Err(match error {
            RecvTimeoutError::Timeout => {
                format!(
                    "the daemon was busy for {} s; look at `pvnet status` before you try again",
                    limit.as_secs()
                )
            }
            RecvTimeoutError::Disconnected => "the daemon is stopping".to_owned(),
        })
    })
}

/// Tells the control thread what happens to a port.
#[derive(Clone)]
pub(super) struct PortEvents {
    pub(super) port: PortId,
    pub(super) events: mpsc::Sender<Event>,
}

impl PortEvents {
    /// Tells it. Whoever waits for the result knows that it is served: queues that are gone are not used any more.
    pub(super) fn tell(&self, what: PortEvent) -> mpsc::Receiver<()> {
        let (done, served) = mpsc::channel();
        // After the control thread has ended, nobody uses a queue.
        let _ = self.events.send(Event::Port { port: self.port, what, done });
        served
    }
}

/// Passes the store's watch events on to the control thread.
pub(super) fn forward(store: Arc<dyn Store>, events: mpsc::Sender<Event>) -> Result<(), Error> {
    spawn("store events", move || {
        loop {
            match store.event() {
                Ok(Some(event)) => {
                    let (done, taken) = mpsc::channel();
                    if events.send(Event::Store { event, done }).is_err() {
                        return;
                    }
                    // One at a time. A guest that writes its state endlessly then fills the store's
                    // bounded queue and not this channel, which has no bound (XSA-326).
                    let _ = taken.recv();
                }
                Ok(None) => {
                    let fd = store.event_fd();
                    let mut fds = [PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)];
                    // An interrupted wait starts again.
                    let _ = poll(&mut fds, None);
                }
                Err(_) => return,
            }
        }
    })?;
    Ok(())
}
