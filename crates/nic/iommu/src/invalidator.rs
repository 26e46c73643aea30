//! The daemon's half of the invalidation protocol.

use crate::invalidation::{Barrier, Index, Invalidation, Request};

/// The number of an invalidation, modulo 2³².
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(u32);

/// Requests invalidations and learns that they hold good.
#[derive(Debug)]
pub struct Invalidator<P> {
    words: P,
    requested: u32,
    /// Requests that are known to hold good.
    confirmed: u32,
}

impl<P: Invalidation> Invalidator<P> {
    /// The half of fresh words: all zero.
    pub fn new(words: P) -> Self {
        let requested = words.load(Index::Requested);
        Self { words, requested, confirmed: requested }
    }

    /// Asks the card to forget pages. Their entries must have been cleared before. The ticket is
    /// of the last request; without any, of the one before.
    pub fn request(&mut self, batch: impl IntoIterator<Item = Request>) -> Ticket {
        for request in batch {
            // The card may still read this place as an older request. If it sees the new one, this
            // makes it see how far the count was, and it clears its cache.
            self.words.barrier(Barrier::Release);
            self.words.write(self.requested & (P::PLACES - 1), request);
            self.requested = self.requested.wrapping_add(1);
            self.words.store(Index::Requested, self.requested);
        }
        Ticket(self.requested)
    }

    /// Whether the card uses no translation that this invalidation, or an earlier one, was for: none
    /// is in its cache, and no transfer is in progress that used one.
    pub fn is_confirmed(&mut self, ticket: Ticket) -> bool {
        if reached(self.confirmed, ticket) {
            return true;
        }
        // The request is visible before the card's state is read. So a card that is seen asleep
        // finds the request when it wakes, before it uses a translation.
        self.words.barrier(Barrier::Full);
        self.confirmed = match self.words.load(Index::Asleep) {
            0 => self.words.load(Index::Confirmed),
            _ => self.requested,
        };
        reached(self.confirmed, ticket)
    }

    /// The card's process has ended, or it has stopped the context for good: nothing uses a
    /// translation any more.
    pub fn card_stopped(&mut self) {
        self.confirmed = self.requested;
    }
}

/// Whether a count has come as far as a ticket. The two are less than 2³¹ apart.
fn reached(count: u32, Ticket(number): Ticket) -> bool {
    count.wrapping_sub(number).cast_signed() >= 0
}
