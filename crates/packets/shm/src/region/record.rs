//! The record of a guarded region, which the handler of a signal reads while other threads change records.
//!
//! A record is used again for another region. A reader that took its start from one region and its length from the other would replace memory
//! that belongs to neither. So it is a sequence lock: the state is odd while the record is valid, and changes whenever the record does.
//! The reader takes no lock and never waits: a record that changes is not that of a region in use.
//!
//! Its own file, because `tests/loom.rs` checks it with loom's words in place of atomics.

use std::sync::atomic::Ordering;

/// The words of a record, by their numbers.
pub(crate) trait Words {
    fn load(&self, word: usize, order: Ordering) -> usize;
    fn store(&self, word: usize, value: usize, order: Ordering);
    fn fence(&self, order: Ordering);
}

/// How many words a record has.
pub(crate) const WORDS: usize = 3;
const STATE: usize = 0;
const START: usize = 1;
const LEN: usize = 2;

/// Whether the record has no region. Whoever publishes one in it must know that from here, and publish alone.
pub(crate) fn is_free(words: &impl Words) -> bool {
    words.load(STATE, Ordering::Acquire).is_multiple_of(2)
}

/// Enters the `len` bytes at `start` into a record that is free.
pub(crate) fn publish(words: &impl Words, start: usize, len: usize) {
    let state = words.load(STATE, Ordering::Relaxed);
    // Whoever reads one of the new words below must see that the record was retired.
    words.fence(Ordering::Release);
    words.store(START, start, Ordering::Relaxed);
    words.store(LEN, len, Ordering::Relaxed);
    words.store(STATE, state.wrapping_add(1), Ordering::Release);
}

/// Makes a record free that was published. Its region may be unmapped after this.
pub(crate) fn retire(words: &impl Words) {
    let state = words.load(STATE, Ordering::Relaxed);
    words.store(STATE, state.wrapping_add(1), Ordering::Release);
}

/// The start and the length of the record's region, if it contains the address.
pub(crate) fn region_of(words: &impl Words, address: usize) -> Option<(usize, usize)> {
    let state = words.load(STATE, Ordering::Acquire);
    let start = words.load(START, Ordering::Relaxed);
    let len = words.load(LEN, Ordering::Relaxed);
    // Both words before the second read of the state.
    words.fence(Ordering::Acquire);
    let is_whole = !state.is_multiple_of(2) && words.load(STATE, Ordering::Relaxed) == state;
    (is_whole && address.wrapping_sub(start) < len).then_some((start, len))
}
