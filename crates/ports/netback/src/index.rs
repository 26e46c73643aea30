//! From a grant reference to the place where its page is mapped.

use std::hash::{BuildHasher, RandomState};

use hypervisor::GrantRef;

/// A mapped page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) place: u16,
    /// Whether it may be written to.
    pub(crate) writable: bool,
}

/// References that differ in their last bits only are stored together: frontends use adjacent
/// references, and these then lie in one cache line.
const RUN: usize = 16;

/// The pages of a run of references.
#[derive(Clone, Copy, Default)]
struct Run {
    pages: [Option<Found>; RUN],
}

/// A map with a lookup per fragment of a packet: a hash table of runs, with open addressing.
///
/// A guest chooses the references and must not be able to make them collide, so each table has a
/// secret multiplier.
pub(crate) struct Index {
    /// The slots: a run, and the bits that its references share.
    slots: Box<[Option<(u32, u16)>]>,
    runs: Box<[Run]>,
    unused: Vec<u16>,
    multiplier: u64,
    /// The bits of a product above these are the slot's number.
    shift: u32,
}

impl Index {
    /// For at most `bound` pages.
    pub(crate) fn new(bound: u16) -> Self {
        // At most half full: there is always an empty slot, at which a search ends.
        let len = (usize::from(bound) * 2).next_power_of_two().max(2);
        Self {
            slots: vec![None; len].into(),
            // Every reference may belong to a different run.
            runs: vec![Run::default(); bound.into()].into(),
            unused: (0..bound).rev().collect(),
            multiplier: RandomState::new().hash_one(bound) | 1,
            shift: u64::BITS - len.ilog2(),
        }
    }

    /// The slot where the search for a run begins.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a slot's number")]
    fn home(&self, key: u32) -> usize {
        (u64::from(key).wrapping_mul(self.multiplier) >> self.shift) as usize
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The slot of a run, or the empty one that it would take.
    #[inline]
    fn search(&self, key: u32) -> usize {
        let mut slot = self.home(key);
        while self.slots[slot].is_some_and(|(other, _)| other != key) {
            slot = self.after(slot);
        }
        slot
    }

    /// Where the page of a reference is mapped.
    #[inline]
    pub(crate) fn find(&self, gref: GrantRef) -> Option<Found> {
        let (key, at) = split(gref);
        let (_, run) = self.slots[self.search(key)]?;
        self.runs[usize::from(run)].pages[at]
    }

    /// Adds a reference. The caller keeps to the bound.
    pub(crate) fn insert(&mut self, gref: GrantRef, found: Found) {
        let (key, at) = split(gref);
        let slot = self.search(key);
        let run = match self.slots[slot] {
            Some((_, run)) => run,
            None => {
                let Some(run) = self.unused.pop() else { return };
                self.slots[slot] = Some((key, run));
                run
            }
        };
        self.runs[usize::from(run)].pages[at] = Some(found);
    }

    /// Removes a reference.
    pub(crate) fn remove(&mut self, gref: GrantRef) -> Option<Found> {
        let (key, at) = split(gref);
        let slot = self.search(key);
        let (_, run) = self.slots[slot]?;
        let pages = &mut self.runs[usize::from(run)].pages;
        let removed = pages[at].take();
        if pages.iter().all(Option::is_none) {
            self.unused.push(run);
            self.clear(slot);
        }
        removed
    }

    /// Empties a slot.
    fn clear(&mut self, mut hole: usize) {
        self.slots[hole] = None;
        // A run that collided with this one is moved into the hole; otherwise no search would find
        // it.
        let mut slot = self.after(hole);
        while let Some((other, _)) = self.slots[slot] {
            let mask = self.slots.len() - 1;
            let from_home = slot.wrapping_sub(self.home(other)) & mask;
            let from_hole = slot.wrapping_sub(hole) & mask;
            if from_home >= from_hole {
                self.slots.swap(hole, slot);
                hole = slot;
            }
            slot = self.after(slot);
        }
    }
}

/// The bits that a run shares, and the place in it.
#[inline]
fn split(gref: GrantRef) -> (u32, usize) {
    const BITS: u32 = RUN.ilog2();
    (gref.0 >> BITS, gref.0 as usize % RUN)
}

// A cache line each.
const _: () = assert!(size_of::<Run>() == 64);

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map(
            steps in prop::collection::vec((0u32..40, any::<bool>(), any::<bool>()), 0..200),
            multiplier in prop::option::of(Just(0u64)),
            spread in prop::sample::select(vec![1u32, 7, 16, 0x0808_8405]),
        ) {
            let mut index = Index::new(20);
            // With a multiplier of zero, all runs collide.
            index.multiplier = multiplier.unwrap_or(index.multiplier);
            let mut model = HashMap::new();
            for (n, (key, add, writable)) in (0..).zip(steps) {
                let gref = GrantRef(key.wrapping_mul(spread));
                if add && model.len() < 20 {
                    let found = Found { place: n, writable };
                    index.insert(gref, found);
                    model.insert(gref, found);
                } else {
                    prop_assert_eq!(index.remove(gref), model.remove(&gref));
                }
                for key in 0..40u32 {
                    let gref = GrantRef(key.wrapping_mul(spread));
                    prop_assert_eq!(index.find(gref), model.get(&gref).copied());
                }
            }
        }
    }
}
