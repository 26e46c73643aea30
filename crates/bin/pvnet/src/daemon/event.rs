//! What the control thread reacts to.

use std::sync::mpsc;

use capture::{Capture, Request};
use control_socket::Status;
use datapath::Failure;
use xenstore::WatchEvent;

use crate::config::Guest;
use crate::daemon::backends::VifId;

/// A message to the control thread.
pub(super) enum Event {
    /// The toolstack has made an interface.
    Plugged { id: VifId, guest: Box<Guest>, answer: mpsc::Sender<Result<(), String>> },
    /// An interface is gone, and with it perhaps its domain.
    Unplugged { id: VifId, answer: mpsc::Sender<()> },
    /// Something changed in the store. The next change is reported once `done` is dropped.
    Store { event: WatchEvent, done: mpsc::Sender<()> },
    /// A queue broke.
    Failure(Failure),
    /// Somebody asks for the status.
    Status(mpsc::Sender<Status>),
    /// Somebody wants a guest to have so many MiB of memory.
    Balloon { name: String, mib: usize, answer: mpsc::Sender<Result<(), String>> },
    /// Somebody wants to see the frames of a port.
    Capture { request: Request, answer: mpsc::Sender<Result<Capture, String>> },
    /// Time to stop.
    Stop,
}
