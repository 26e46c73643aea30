//! The callers of functions that have not returned, by the slots of their return addresses.

use std::collections::HashMap;

use scope_model::PAGE_SLOTS;

/// The bytes of a page, of a slot, and the number of slots in a page.
const PAGE: u64 = 4096;
const SLOT: u64 = 8;
const SLOTS: usize = (PAGE / SLOT) as usize;
/// The number of no page.
const NONE: u32 = u32::MAX;

/// A call that has not returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The node of the caller.
    pub caller: u32,
    /// Whether the call stays in its function, as those that load an address do.
    pub is_inside: bool,
    /// Where it returns to; 0 for no call.
    pub returns_to: u64,
}

/// The calls that have not returned. Slots are known by their physical addresses, so each stack has its own, in whichever
/// address space, and the order of calls on different stacks does not matter.
#[derive(Debug)]
pub struct ReturnSlots {
    /// The physical address of each mapped page, by the lower bits of its virtual number.
    mapped: Box<[u64; PAGE_SLOTS]>,
    /// The number of each page that had a call, by its physical address.
    known: HashMap<u64, u32>,
    pages: Vec<Box<[Frame; SLOTS]>>,
    /// The page that was used last, and its number.
    last: (u64, u32),
}

impl ReturnSlots {
    /// No calls.
    pub fn new() -> Self {
        Self {
            mapped: Box::new([0; PAGE_SLOTS]),
            known: HashMap::new(),
            pages: Vec::new(),
            last: (0, NONE),
        }
    }

    /// The page of this virtual number lies at a physical address.
    pub fn map(&mut self, page: u64, physical: u64) {
        self.mapped[slot_of(page)] = physical;
    }

    /// The physical address of data. The bits of a [`LineId`](scope_model::LineId) of its virtual address suffice.
    #[inline]
    pub fn physical(&self, address: u64) -> u64 {
        self.mapped[slot_of(address / PAGE)] | (address % PAGE)
    }

    /// The slot at a physical address.
    pub fn at(&mut self, address: u64) -> &mut Frame {
        let page = address & !(PAGE - 1);
        if self.last.0 != page || self.last.1 == NONE {
            let next = u32::try_from(self.pages.len()).unwrap_or(NONE);
            let number = *self.known.entry(page).or_insert(next);
            if number == next {
                self.pages.push(Box::new([Frame::default(); SLOTS]));
            }
            self.last = (page, number);
        }
        let slot = usize::try_from(address % PAGE / SLOT).unwrap_or(0);
        &mut self.pages[self.last.1 as usize][slot % SLOTS]
    }
}

fn slot_of(page: u64) -> usize {
    // The remainder is small.
    usize::try_from(page % PAGE_SLOTS as u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_pages_that_share_an_address_are_apart() {
        let mut slots = ReturnSlots::new();
        let address = 0x7fff_0000_3ff8;
        for (physical, caller) in [(0x5000, 1), (0x9000, 2)] {
            slots.map(address / PAGE, physical);
            let slot = slots.physical(address & 0x3f_ffff);
            assert_eq!(slot, physical + 0xff8);
            *slots.at(slot) = Frame { caller, is_inside: false, returns_to: 7 };
        }
        assert_eq!((slots.at(0x5ff8).caller, slots.at(0x9ff8).caller), (1, 2));
        assert_eq!(*slots.at(0x5ff0), Frame::default());
    }
}
