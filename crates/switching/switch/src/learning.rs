//! What the table does with the source addresses of a port's frames, and how much of it each port takes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use token_bucket::SharedBucket;

use crate::PortId;
use crate::entry::Word;

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

/// The shares of all ports, by number.
pub(crate) struct Shares(Box<[Share]>);

#[derive(Default)]
struct Share {
    /// Slots with addresses learnt from the port.
    learnt: AtomicU32,
    /// Moves to the port.
    moves: SharedBucket,
}

impl Shares {
    pub(crate) fn new() -> Self {
        Self((0..=u16::MAX).map(|_| Share::default()).collect())
    }

    fn of(&self, PortId(port): PortId) -> &Share {
        &self.0[usize::from(port)]
    }

    /// How many addresses the port has.
    pub(crate) fn learnt(&self, port: PortId) -> u32 {
        self.of(port).learnt.load(Ordering::Relaxed)
    }

    /// Takes one of the port's entries, if its bound leaves one.
    pub(crate) fn reserve(&self, port: PortId, bound: u32) -> bool {
        self.of(port)
            .learnt
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| {
                (count < bound).then_some(count + 1)
            })
            .is_ok()
    }

    /// Gives an entry back to its port. An empty word has no entry, and one that was taught takes no share.
    pub(crate) fn release(&self, word: Word) {
        if !word.is_empty() && !word.is_taught() {
            self.of(word.port()).learnt.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Takes one of the moves that come to the port at `rate` per second, if any is left in second `now`.
    pub(crate) fn take_move(&self, port: PortId, rate: u32, now: u32) -> bool {
        let rate = u64::from(rate);
        self.of(port).moves.take(1, rate, rate * u64::from(now))
    }

    /// The port's number gets a new owner.
    pub(crate) fn forget(&self, port: PortId) {
        self.of(port).moves.fill();
    }
}
