//! One bucket of the table: eight slots, and what is beside each.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::entry::Word;
use crate::moves::Record;

/// Slots per bucket: eight words fill one 64-byte cache line.
pub(crate) const SLOTS: usize = 8;

/// Another worker changed the slot first.
pub(crate) struct Raced;

/// One bucket. Its words fill the first cache line, so a lookup reads two lines.
#[derive(Default)]
#[repr(C, align(64))]
pub(crate) struct Bucket {
    words: [AtomicU64; SLOTS],
    /// When each slot's address was last seen, in seconds.
    seen: [AtomicU32; SLOTS],
    /// The last move of each slot's address. Looked at only when a station moves.
    moved: [AtomicU64; SLOTS],
}

/// A slot, and what was found in it.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) bucket: &'a Bucket,
    pub(crate) slot: usize,
    pub(crate) word: Word,
}

impl Bucket {
    fn load(&self, slot: usize) -> Word {
        Word::from_raw(self.words[slot].load(Ordering::Relaxed))
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = (usize, Word)> + Clone {
        (0..SLOTS).map(move |slot| (slot, self.load(slot)))
    }

    pub(crate) fn last_seen(&self, slot: usize) -> u32 {
        self.seen[slot].load(Ordering::Relaxed)
    }

    /// Publishes `new` in place of `old`.
    ///
    /// Sequentially consistent, as is the scan in [`holders`](Self::holders): of two workers that put the same
    /// address into two slots, at least one must see the other's.
    pub(crate) fn swap(&self, slot: usize, old: Word, new: Word) -> Result<(), Raced> {
        self.words[slot]
            .compare_exchange(old.raw(), new.raw(), Ordering::SeqCst, Ordering::Relaxed)
            .map(drop)
            .map_err(|_| Raced)
    }

    /// The first slot that holds this address.
    pub(crate) fn find(&self, key: u64) -> Option<(usize, Word)> {
        self.slots().find(|(_, word)| word.key() == key)
    }

    /// The slots that hold this address: one, or for a moment several. The first of them is the one that stays: one
    /// that was taught, else the first in the bucket.
    pub(crate) fn holders(&self, key: u64) -> impl Iterator<Item = (usize, Word)> + use<> {
        let slots: [Word; SLOTS] =
            std::array::from_fn(|slot| Word::from_raw(self.words[slot].load(Ordering::SeqCst)));
        let all = move |taught| {
            let slots = slots.into_iter().enumerate();
            slots.filter(move |(_, word)| word.key() == key && word.is_taught() == taught)
        };
        all(true).chain(all(false))
    }

    /// Notes that the slot's address was seen. Writes only when the second changed, so that a busy station's
    /// line stays shared between the workers' caches; and only forward, since a worker's clock may lag.
    pub(crate) fn refresh(&self, slot: usize, now: u32) {
        if self.last_seen(slot) < now {
            self.set_seen(slot, now);
        }
    }

    /// Notes when the slot's address, which is new there, was seen.
    pub(crate) fn set_seen(&self, slot: usize, now: u32) {
        self.seen[slot].store(now, Ordering::Relaxed);
    }

    /// The last move of an address in this slot.
    pub(crate) fn last_move(&self, slot: usize) -> Record {
        Record::from_raw(self.moved[slot].load(Ordering::Relaxed))
    }

    /// Notes a move, unless another worker has noted one since `old`.
    pub(crate) fn set_move(&self, slot: usize, old: Record, new: Record) -> Result<(), Raced> {
        self.moved[slot]
            .compare_exchange(old.raw(), new.raw(), Ordering::Relaxed, Ordering::Relaxed)
            .map(drop)
            .map_err(|_| Raced)
    }
}
