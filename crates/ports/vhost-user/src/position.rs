//! Where a ring is continued.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use virtqueue::Queue;

/// Where the next device continues a ring, see [`Queue::position`]. A queue leaves it here when it is dropped.
#[derive(Clone, Debug, Default)]
pub struct Position(Arc<AtomicU32>);

impl Position {
    /// The position.
    #[must_use]
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Sets it.
    pub fn set(&self, position: u32) {
        self.0.store(position, Ordering::Release);
    }
}

/// A queue that leaves its position behind.
#[derive(Debug)]
pub(crate) struct Continued {
    pub(crate) queue: Queue,
    position: Position,
}

impl Continued {
    pub(crate) fn new(queue: Queue, position: Position) -> Self {
        Self { queue, position }
    }

    /// Chains were published: a device in the place of this one goes on behind them, also if this one is never dropped.
    #[inline]
    pub(crate) fn note_position(&self) {
        self.position.set(self.queue.position());
    }
}

impl Drop for Continued {
    fn drop(&mut self) {
        self.note_position();
    }
}
