//! What becomes of the source addresses of frames.

use std::sync::atomic::{AtomicU64, Ordering};

/// What the table did with a frame's source address.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum Learning {
    /// Nothing: the address was on this port already, no station can have it, or other workers changed its bucket at
    /// the same time.
    Unchanged,
    /// It is new, or had aged.
    Added,
    /// Its station moved to this port.
    Moved,
    /// Its station stays on another port, which was taught to have it, or because the limits leave no move.
    RefusedMove,
    /// It was not learnt: the port has as many addresses as it may, or the bucket is full.
    Refused,
}

/// What became of the source addresses of frames: of a port, or of all.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct LearningCounts {
    /// Stations that moved from one port to another.
    pub moves: u64,
    /// Frames whose source address another port kept.
    pub refused_moves: u64,
    /// Frames whose source address was not learnt, because of its port's bound or because its bucket was full.
    pub refused_addresses: u64,
}

/// The same, as it is counted. On a separate cache line: a flood of addresses must not slow the readers of the fields
/// beside it.
#[derive(Default, Debug)]
#[repr(align(64))]
pub(crate) struct LearningCounters {
    moves: AtomicU64,
    refused_moves: AtomicU64,
    refused_addresses: AtomicU64,
}

impl LearningCounters {
    #[inline]
    pub(crate) fn add(&self, learning: Learning) {
        let counter = match learning {
            Learning::Unchanged | Learning::Added => return,
            Learning::Moved => &self.moves,
            Learning::RefusedMove => &self.refused_moves,
            Learning::Refused => &self.refused_addresses,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> LearningCounts {
        LearningCounts {
            moves: self.moves.load(Ordering::Relaxed),
            refused_moves: self.refused_moves.load(Ordering::Relaxed),
            refused_addresses: self.refused_addresses.load(Ordering::Relaxed),
        }
    }
}
