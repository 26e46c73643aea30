//! What each port takes of the table, and how fast.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::PortId;
use crate::entry::Word;
use crate::tokens::Tokens;

/// The shares of all ports, by number.
pub(crate) struct Shares(Box<[Share]>);

#[derive(Default)]
struct Share {
    /// Slots with addresses learnt from the port.
    learnt: AtomicU32,
    /// Moves to the port.
    moves: Tokens,
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
