//! What wakes a worker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use hypervisor::EventChannel;
use rustix::event::{EventfdFlags, eventfd};

/// Something that announces work. Its descriptor becomes readable with an event and is waited for
/// edge-triggered.
pub trait Event: AsFd + Send + Sync {
    /// Takes what is pending, so that the next event makes a new edge. Never blocks.
    ///
    /// Called before the look at the work, never after: an event between the two would be lost.
    fn take(&self);
}

impl<E: EventChannel> Event for E {
    fn take(&self) {
        // A guest that is gone announces nothing more; the daemon notices its end elsewhere.
        let _ = EventChannel::take(self);
    }
}

/// An event within this process.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A doorbell that nobody has rung.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Announces work. Never blocks.
    pub fn ring(&self) {
        // The counter cannot fill up within the life of a machine.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Event for Doorbell {
    /// Nothing: each ring makes a new edge, read or not.
    fn take(&self) {}
}
