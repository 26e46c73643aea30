//! From a grant reference to the place where its page is mapped.

use std::hash::{BuildHasher, RandomState};

use hypervisor::GrantRef;

/// A mapped page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) place: u16,
    /// Whether it may be written to.
    pub(super) writable: bool,
}

/// A hash table with open addressing, for a look-up for each piece of a packet: a multiplication
/// and nearly always one cache line.
///
/// References are a guest's choice, and it must not be able to make them collide: the multiplier
/// is a secret of each table, made anew for each.
pub(super) struct Index {
    slots: Box<[Option<(GrantRef, Found)>]>,
    multiplier: u64,
    /// The bits of a product above these are a slot's number.
    shift: u32,
}

impl Index {
    /// For at most `bound` pages.
    pub(super) fn new(bound: u16) -> Self {
        // At most half full: there is always an empty slot, at which a search ends.
        let len = (usize::from(bound) * 2).next_power_of_two().max(2);
        let multiplier = RandomState::new().hash_one(bound) | 1;
        Self { slots: vec![None; len].into(), multiplier, shift: u64::BITS - len.ilog2() }
    }

    /// The slot where the search for a reference begins.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "a slot's number")]
    fn home(&self, gref: GrantRef) -> usize {
        (u64::from(gref.0).wrapping_mul(self.multiplier) >> self.shift) as usize
    }

    #[inline]
    fn after(&self, slot: usize) -> usize {
        (slot + 1) & (self.slots.len() - 1)
    }

    /// The slot of a reference, or the empty one that it would take.
    #[inline]
    fn search(&self, gref: GrantRef) -> usize {
        let mut slot = self.home(gref);
        while self.slots[slot].is_some_and(|(other, _)| other != gref) {
            slot = self.after(slot);
        }
        slot
    }

    /// Where the page of a reference is mapped.
    #[inline]
    pub(super) fn find(&self, gref: GrantRef) -> Option<Found> {
        self.slots[self.search(gref)].map(|(_, found)| found)
    }

    /// Adds a reference. The caller keeps to the bound.
    pub(super) fn insert(&mut self, gref: GrantRef, found: Found) {
        let slot = self.search(gref);
        self.slots[slot] = Some((gref, found));
    }

    /// Removes a reference.
    pub(super) fn remove(&mut self, gref: GrantRef) -> Option<Found> {
        let mut hole = self.search(gref);
        let (_, removed) = self.slots[hole].take()?;
        // What was pushed beyond the hole is moved into it, or no search would find it again.
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
        Some(removed)
    }
}

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
        ) {
            let mut index = Index::new(20);
            // With nothing to tell references apart all of them collide.
            index.multiplier = multiplier.unwrap_or(index.multiplier);
            let mut model = HashMap::new();
            for (n, (key, add, writable)) in (0..).zip(steps) {
                let gref = GrantRef(key.wrapping_mul(0x0808_8405));
                if add && model.len() < 20 {
                    let found = Found { place: n, writable };
                    index.insert(gref, found);
                    model.insert(gref, found);
                } else {
                    prop_assert_eq!(index.remove(gref), model.remove(&gref));
                }
                for key in 0..40u32 {
                    let gref = GrantRef(key.wrapping_mul(0x0808_8405));
                    prop_assert_eq!(index.find(gref), model.get(&gref).copied());
                }
            }
        }
    }
}
