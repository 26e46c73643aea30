//! The card's half of the invalidation protocol.
//!
//! A transfer counts in the phase in which it begins. New requests turn the phase, and are confirmed
//! when the old phase has no transfers left. So later transfers cannot delay them (the grace period of
//! read-copy-update, as in `machine::dma`).

use crate::invalidation::{Barrier, Index, Invalidation};
use crate::iotlb::Iotlb;

/// A transfer in progress. Give it back to [`Responder::end`].
#[derive(Debug)]
#[must_use = "invalidations wait until it is ended"]
pub struct Transfer {
    phase: usize,
}

/// Serves invalidations.
#[derive(Debug)]
pub struct Responder<P> {
    words: P,
    /// Requests that were applied to the cache.
    applied: u32,
    confirmed: u32,
    /// What is confirmed when the phase before this one has no transfers.
    turned: Option<u32>,
    phase: usize,
    in_progress: [u32; 2],
}

impl<P: Invalidation> Responder<P> {
    /// The card's half of these words, for an empty cache. Requests so far concern nothing that is cached,
    /// and are confirmed.
    pub fn new(words: P) -> Self {
        words.store(Index::Asleep, 0);
        words.barrier(Barrier::Full);
        let applied = words.load(Index::Requested);
        words.store(Index::Confirmed, applied);
        Self { words, applied, confirmed: applied, turned: None, phase: 0, in_progress: [0; 2] }
    }

    /// Begins a transfer: translations from now to its end belong to it.
    #[inline]
    pub fn begin(&mut self) -> Transfer {
        self.in_progress[self.phase] += 1;
        Transfer { phase: self.phase }
    }

    /// The transfer's bytes have been read or written, or it was given up.
    #[inline]
    #[expect(clippy::needless_pass_by_value, reason = "a transfer ends once")]
    pub fn end(&mut self, transfer: Transfer) {
        self.in_progress[transfer.phase] -= 1;
        if self.turned.is_some() {
            self.confirm();
        }
    }

    /// How many transfers are in progress.
    #[must_use]
    pub fn in_progress(&self) -> u32 {
        self.in_progress[0] + self.in_progress[1]
    }

    /// Removes from the cache what the daemon asked for, and confirms what it can. One read if there
    /// is nothing new. The card calls this between transfers, at least once per turn.
    #[inline]
    pub fn serve(&mut self, cache: &mut Iotlb) {
        let requested = self.words.load(Index::Requested);
        if requested != self.applied {
            self.apply(requested, cache);
        }
    }

    #[cold]
    fn apply(&mut self, requested: u32, cache: &mut Iotlb) {
        let new = requested.wrapping_sub(self.applied);
        if new < P::PLACES {
            for number in 0..new {
                let place = self.applied.wrapping_add(number) & (P::PLACES - 1);
                cache.invalidate(self.words.read(place).range());
            }
            self.words.barrier(Barrier::Acquire);
        }
        // A request may have been overwritten while it was read.
        if self.words.load(Index::Requested).wrapping_sub(self.applied) >= P::PLACES {
            cache.clear();
        }
        self.applied = requested;
        self.confirm();
    }

    fn confirm(&mut self) {
        loop {
            match self.turned {
                Some(_) if self.in_progress[self.phase ^ 1] > 0 => return,
                Some(upto) => {
                    self.words.store(Index::Confirmed, upto);
                    (self.confirmed, self.turned) = (upto, None);
                }
                None if self.applied == self.confirmed => return,
                None => {
                    self.phase ^= 1;
                    self.turned = Some(self.applied);
                }
            }
        }
    }

    /// The card will use no translation until [`wake`](Self::wake): invalidations need not wait for
    /// it. Returns false, and changes nothing, while a transfer is in progress.
    pub fn sleep(&mut self) -> bool {
        let idle = self.in_progress() == 0;
        if idle {
            self.words.store(Index::Asleep, 1);
        }
        idle
    }

    /// The card goes on, after it has applied what was asked for meanwhile.
    pub fn wake(&mut self, cache: &mut Iotlb) {
        self.words.store(Index::Asleep, 0);
        // A daemon that saw the card asleep counts on this: its request is read below.
        self.words.barrier(Barrier::Full);
        self.serve(cache);
    }
}
