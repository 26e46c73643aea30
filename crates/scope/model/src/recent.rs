//! The pages that were used last.

use crate::tlb::Index;
use crate::walker::{KNOWN, Side};

/// How many there are of each side: no more than the smallest TLB has entries (for large pages, half of 16).
const PAGES: usize = 8;
/// Places of pages: of each side those that can be known.
pub const PLACES: usize = 2 * KNOWN;

/// A page in TLBs: in those for small pages or in those for large ones.
pub type Held = (bool, Index);

/// The pages that were used last, of 4 KiB, in front of all TLBs: these hold them, and hear nothing of
/// their uses until they go.
#[derive(Debug)]
pub struct Recent {
    places: Box<[Place; PLACES]>,
    /// When each was used.
    used: [u64; 2 * PAGES],
    pages: [Page; 2 * PAGES],
    /// How many there are, of each side.
    count: [usize; 2],
    /// Counts uses.
    now: u64,
}

/// Of the page in a place.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The physical number of its first line.
    frame: u64,
    /// Its number among the recent ones; [`NONE`] if it is not one of them.
    number: u8,
}

const NONE: u8 = u8::MAX;

/// One of them.
#[derive(Clone, Copy, Debug)]
struct Page {
    place: usize,
    /// What it is in TLBs, policy by policy.
    held: [Option<Held>; 3],
}

impl Recent {
    /// None.
    pub fn new() -> Self {
        Self {
            places: Box::new([Place { frame: 0, number: NONE }; PLACES]),
            used: [0; 2 * PAGES],
            pages: [Page { place: 0, held: [None; 3] }; 2 * PAGES],
            count: [0; 2],
            now: 0,
        }
    }

    /// Uses a page, if it is one of these.
    #[inline]
    pub fn use_again(&mut self, place: usize) -> bool {
        let number = self.places[place % PLACES].number;
        if number == NONE {
            return false;
        }
        self.now += 1;
        self.used[usize::from(number) % (2 * PAGES)] = self.now;
        true
    }

    /// Whether a page is one of these.
    pub fn has(&self, place: usize) -> bool {
        self.places[place % PLACES].number != NONE
    }

    /// Puts a page, which is used now, in the place of the one that was not for longest. Answers what is to be let go of,
    /// and where what is held is kept.
    pub fn put(
        &mut self,
        side: Side,
        place: usize,
        frame: u64,
    ) -> ([Option<Held>; 3], &mut [Option<Held>; 3]) {
        let first = side as usize * PAGES;
        let count = &mut self.count[side as usize];
        let number = if *count < PAGES {
            *count += 1;
            first + *count - 1
        } else {
            let used = &self.used[first..first + PAGES];
            let oldest = (0..PAGES).min_by_key(|number| used[*number]).unwrap_or(0);
            self.places[self.pages[first + oldest].place].number = NONE;
            first + oldest
        };
        self.now += 1;
        self.used[number] = self.now;
        self.places[place % PLACES] = Place { frame, number: u8::try_from(number).unwrap_or(NONE) };
        let before = std::mem::replace(&mut self.pages[number], Page { place, held: [None; 3] });
        (before.held, &mut self.pages[number].held)
    }

    /// Corrects where a page lies.
    pub fn set_frame(&mut self, place: usize, frame: u64) {
        self.places[place % PLACES].frame = frame;
    }

    /// The physical number of the first line of a page that is one of these.
    #[inline]
    pub fn frame(&self, place: usize) -> u64 {
        self.places[place % PLACES].frame
    }

    /// Takes all of a side out: answers what has to be let go of, the least recently used first.
    pub fn take_all(&mut self, side: Side) -> impl Iterator<Item = Held> + use<> {
        let first = side as usize * PAGES;
        let count = std::mem::take(&mut self.count[side as usize]);
        let mut order: [usize; PAGES] = std::array::from_fn(|number| first + number);
        order[..count].sort_unstable_by_key(|number| self.used[*number]);
        let mut taken = [[None; 3]; PAGES];
        for (taken, number) in taken.iter_mut().zip(&order[..count]) {
            let page = &mut self.pages[*number];
            self.places[page.place].number = NONE;
            *taken = std::mem::take(&mut page.held);
        }
        taken.into_iter().flatten().flatten()
    }
}
