//! The pages that were used last.

use wide::u32x8;

use crate::tlb::Index;

/// How many there are: no more than the smallest TLB has entries (for large pages, half of 16).
const SLOTS: usize = 8;
/// No page: addresses have fewer bits.
const NONE: u64 = u64::MAX;

/// A page in TLBs: in those for small pages or in those for large ones.
pub type Held = (bool, Index);

/// The pages that were used last, of 4 KiB, in front of all TLBs: these hold them, and hear nothing of
/// their uses until they go.
#[derive(Clone, Debug)]
pub struct Recent {
    /// Of each page's number so many bits as are compared at once.
    low: [u32; SLOTS],
    slots: [Slot; SLOTS],
    /// The page that was used last of all.
    latest: usize,
    uses: u64,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Slot {
    page: u64,
    /// The physical number of its first line.
    frame: u64,
    /// When it was used.
    used: u64,
    /// What it is in TLBs, policy by policy.
    held: [Option<Held>; 3],
}

const NOTHING: Slot = Slot { page: NONE, frame: 0, used: 0, held: [None; 3] };

impl Recent {
    /// None.
    pub fn new() -> Self {
        Self { low: [u32::MAX; SLOTS], slots: [NOTHING; SLOTS], latest: 0, uses: 0 }
    }

    /// Uses a page, if it is one of these.
    #[inline]
    pub fn turn(&mut self, page: u64) -> bool {
        if self.slots[self.latest].page != page {
            let Some(slot) = self.find(page) else { return false };
            self.uses += 1;
            self.slots[slot].used = self.uses;
            self.latest = slot;
        }
        true
    }

    #[inline]
    fn find(&self, page: u64) -> Option<usize> {
        let mut same = u32x8::from(self.low).simd_eq(u32x8::splat(low(page))).to_bitmask();
        // Nearly always one or none.
        while same != 0 {
            let slot = same.trailing_zeros() as usize % SLOTS;
            if self.slots[slot].page == page {
                return Some(slot);
            }
            same &= same - 1;
        }
        None
    }

    /// Makes room for a page. Answers what has to be let go of.
    pub fn make_room(&mut self) -> [Option<Held>; 3] {
        let oldest = (0..SLOTS).min_by_key(|slot| self.slots[*slot].used).unwrap_or(0);
        self.latest = oldest;
        self.low[oldest] = u32::MAX;
        std::mem::replace(&mut self.slots[oldest], NOTHING).held
    }

    /// Puts a page, which is used now, where there was made room.
    pub fn put(&mut self, page: u64, frame: u64, held: [Option<Held>; 3]) {
        self.uses += 1;
        self.low[self.latest] = low(page);
        self.slots[self.latest] = Slot { page, frame, used: self.uses, held };
    }

    /// Corrects where the page that was used last lies.
    pub fn set_frame(&mut self, frame: u64) {
        self.slots[self.latest].frame = frame;
    }

    /// The physical number of the first line of the page that was used last.
    #[inline]
    pub fn latest_frame(&self) -> u64 {
        self.slots[self.latest].frame
    }

    /// Takes all out: answers what has to be let go of, the least recently used first.
    pub fn take_all(&mut self) -> impl Iterator<Item = Held> + use<> {
        let mut slots = std::mem::replace(self, Self::new()).slots;
        slots.sort_by_key(|slot| slot.used);
        slots.into_iter().flat_map(|slot| slot.held).flatten()
    }
}

/// So many bits of a page's number as are compared at once: what tells kernels from programs is among its
/// upper ones.
#[inline]
fn low(page: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "these 32 bits")]
    let low = (page ^ page >> 31) as u32;
    low
}
