//! The stack's end of a queue, which outlives a daemon.

use std::io;
use std::sync::Arc;

use netdev::SentFrame;
use parking_lot::Mutex;
use uplink::tap::TapQueue;

/// A queue of the stack's tap, and the frames that come before those in the tap.
#[derive(Debug)]
pub(super) struct StackQueue {
    pub(super) tap: TapQueue,
    pub(super) unconfirmed: Unconfirmed,
}

impl StackQueue {
    pub(super) fn new(tap: TapQueue) -> Self {
        Self { tap, unconfirmed: Unconfirmed::default() }
    }

    /// Another handle of it.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { tap: self.tap.try_clone()?, unconfirmed: self.unconfirmed.clone() })
    }
}

/// The frames that an earlier device has taken and not confirmed: the next one sends them first.
#[derive(Clone, Debug, Default)]
pub(super) struct Unconfirmed(Arc<Mutex<Vec<SentFrame>>>);

impl Unconfirmed {
    /// Replaces them.
    pub(super) fn set(&self, frames: Vec<SentFrame>) {
        *self.0.lock() = frames;
    }

    /// Takes them.
    pub(super) fn take(&self) -> Vec<SentFrame> {
        std::mem::take(&mut *self.0.lock())
    }
}
