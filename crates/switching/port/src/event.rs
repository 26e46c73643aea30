//! What wakes a worker.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use hypervisor::EventChannel;
use rustix::event::{EventfdFlags, eventfd};

/// Something that announces work. Its descriptor becomes readable with an event and is waited for
/// edge-triggered, unless the event [is of work](Self::is_of_work).
pub trait Event: AsFd + Send + Sync {
    /// Takes pending events, so that the next one makes a new edge. Never blocks.
    ///
    /// Call it before polling for work, never after: an event in between would be lost.
    fn take(&self);

    /// Whether its descriptor is readable exactly while there is work, as that of a tap is. It is waited for level-triggered, so a queue may have a turn
    /// before its event was polled for, and be armed before it has taken everything: the event tells of the rest, and is silent if there is none.
    fn is_of_work(&self) -> bool {
        false
    }
}

impl<E: EventChannel> Event for E {
    fn take(&self) {
        // This fails only if the guest is gone, and then no event comes.
        let _ = EventChannel::take(self);
    }
}

/// An event within this process.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A doorbell without a pending event.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub fn new() -> io::Result<Self> {
        Ok(Self(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Announces work. Never blocks.
    pub fn ring(&self) {
        // The counter has 64 bits and cannot fill up.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Event for Doorbell {
    /// Does nothing: each ring makes a new edge, read or not.
    fn take(&self) {}
}

/// When a sleeper is woken up for frames: after a number of frames, or a time after the last one, whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// Frames of one wake-up, at least one. With one, each wakes.
    pub frames: u32,
    /// How long after the last frame.
    pub after: Duration,
}

impl Coalescing {
    /// The most frames of one wake-up.
    pub const FRAMES_MAX: u32 = 64;
    /// Each frame wakes.
    pub const OFF: Self = Self { frames: 1, after: Duration::ZERO };
}
