//! The pages used last, in front of the TLBs.

use crate::mapping::{PAGE_SLOTS, Side};
use crate::tlb::Entry;

/// Hot pages of each side: as many as the smallest TLB for large pages has entries, which is half of 16.
const PAGES: usize = 8;
/// The slots of both sides.
pub const SLOTS: usize = 2 * PAGE_SLOTS;

/// A pinned entry: whether it is of the TLBs for large pages, and which.
pub type Pin = (bool, Entry);
/// The entries of a page: global and not, as a large page and in its own size. Policies that treat a page alike share one.
pub type Pins = [Option<Pin>; 4];
/// No entries.
pub const NO_PINS: Pins = [None; 4];

/// The pages of 4 KiB used last, in front of all TLBs. Their entries are pinned there, and the TLBs learn of their uses
/// only when they are unpinned. Whoever makes a page hot keeps its pins.
#[derive(Debug)]
pub struct HotPages {
    slots: Box<[Slot; SLOTS]>,
    /// When each was used.
    used: [u64; 2 * PAGES],
    /// The slot of each.
    pages: [usize; 2 * PAGES],
    /// How many there are, of each side.
    count: [usize; 2],
    /// Counts uses.
    now: u64,
}

/// The page in a slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The physical number of its first line.
    frame: u64,
    /// Its number among the hot pages; [`NONE`] if it is not one of them.
    number: u8,
}

const NONE: u8 = u8::MAX;

impl HotPages {
    /// No hot page.
    pub fn new() -> Self {
        Self {
            slots: Box::new([Slot { frame: 0, number: NONE }; SLOTS]),
            used: [0; 2 * PAGES],
            pages: [0; 2 * PAGES],
            count: [0; 2],
            now: 0,
        }
    }

    /// Uses the page in a slot if it is hot. Returns whether it is.
    #[inline]
    pub fn use_again(&mut self, slot: usize) -> bool {
        let number = self.slots[slot % SLOTS].number;
        if number == NONE {
            return false;
        }
        self.now += 1;
        self.used[usize::from(number) % (2 * PAGES)] = self.now;
        true
    }

    /// Whether the page in a slot is hot.
    pub fn contains(&self, slot: usize) -> bool {
        self.slots[slot % SLOTS].number != NONE
    }

    /// Makes the page in a slot hot, in place of the least recently used one. Returns the slot of the page that it replaces, if
    /// it does.
    pub fn insert(&mut self, side: Side, slot: usize, frame: u64) -> Option<usize> {
        let first = side as usize * PAGES;
        let count = &mut self.count[side as usize];
        let (number, replaced) = if *count < PAGES {
            *count += 1;
            (first + *count - 1, None)
        } else {
            let used = &self.used[first..first + PAGES];
            let oldest = first + (0..PAGES).min_by_key(|number| used[*number]).unwrap_or(0);
            let replaced = self.pages[oldest];
            self.slots[replaced].number = NONE;
            (oldest, Some(replaced))
        };
        self.now += 1;
        self.used[number] = self.now;
        self.pages[number] = slot;
        self.slots[slot % SLOTS] = Slot { frame, number: u8::try_from(number).unwrap_or(NONE) };
        replaced
    }

    /// Corrects where the page in a slot lies.
    pub fn set_frame(&mut self, slot: usize, frame: u64) {
        self.slots[slot % SLOTS].frame = frame;
    }

    /// The physical number of the first line of the hot page in a slot.
    #[inline]
    pub fn frame(&self, slot: usize) -> u64 {
        self.slots[slot % SLOTS].frame
    }

    /// Removes all hot pages of a side. Returns their slots, the least recently used page first.
    pub fn take_all(&mut self, side: Side) -> impl Iterator<Item = usize> + use<> {
        let first = side as usize * PAGES;
        let count = std::mem::take(&mut self.count[side as usize]);
        let mut order: [usize; PAGES] = std::array::from_fn(|number| first + number);
        order[..count].sort_unstable_by_key(|number| self.used[*number]);
        let slots = order.map(|number| self.pages[number]);
        slots[..count].iter().for_each(|slot| self.slots[*slot].number = NONE);
        slots.into_iter().take(count)
    }
}
