//! The DTLBs of each layout.

use std::collections::HashMap;

use wide::u16x8;

use crate::config::LAYOUTS;
use crate::layout_lines::Each;
use crate::lru_tlbs::LruTlbs;
use crate::mapping::Mapping;
use crate::paging::PageSize;

/// All layouts, a bit each.
const ALL: u32 = u32::MAX;
const _: () = assert!(LAYOUTS == ALL.count_ones() as usize, "each layout has a bit");
/// No number of a page.
const NONE: u32 = u32::MAX;
/// Slots of the table of pages that were used last.
const SLOTS: usize = 1024;
/// The most uses of pages between two times that the lists are put in order.
const TURN: u64 = u16::MAX as u64;

/// DTLBs of several sizes for small and for large pages, of each layout.
///
/// The first pages of a list, as many as the smallest TLB has entries, are in all TLBs: another use changes only their rank. So
/// only the time of the use of such a *recent* page is noted, for all layouts at once. Recent pages have the first places of the
/// lists, in any order. Once there may be too many of them, the lists are put in order, and no page is recent.
#[derive(Debug)]
pub struct LayoutPages {
    /// The TLBs of each layout, for small and for large pages.
    tlbs: Vec<[LruTlbs; 2]>,
    /// The numbers of pages that do not move, by [`key_of`]: of all, and of those in a slot.
    numbers: HashMap<u64, u32>,
    slots: Box<[(u64, u32); SLOTS]>,
    /// When each of them was used last.
    fixed: Vec<u64>,
    /// When pages of sections were used last.
    moved: Vec<MovedPage>,
    /// The number of uses so far.
    now: u64,
    /// A page is recent if it was used after this many uses.
    begin: u64,
    /// How many pages are recent in any layout, and the most that may be.
    count: [usize; 2],
    most: [usize; 2],
    recent: [Each<u16>; 2],
    /// The page that was used last, and by which layouts: using it again changes nothing.
    last: (u32, u32),
    misses: Each<u64>,
}

/// When a page of a section was used last.
#[derive(Clone, Debug)]
struct MovedPage {
    /// [`LayoutPages::begin`] at that time.
    begin: u64,
    /// The layouts in which it is recent, a bit each.
    recent: u32,
    /// Uses of pages since then, of each layout in which it is recent.
    times: Each<u16>,
}

/// The key of a page that does not move, from the number of any of its pages of 4 KiB.
fn key_of(page: u64, size: PageSize) -> u64 {
    (page >> (size.bits() - PageSize::Small.bits())) << 2 | size as u64
}

impl LayoutPages {
    /// Empty DTLBs whose middle size has `entries` entries for small pages, and half as many for large ones.
    pub fn new(entries: usize) -> Self {
        let tlbs = [LruTlbs::new(entries), LruTlbs::new(entries / 2)];
        Self {
            most: [0, 1].map(|kind: usize| tlbs[kind].smallest()),
            tlbs: vec![tlbs; LAYOUTS],
            numbers: HashMap::new(),
            slots: Box::new([(u64::MAX, NONE); SLOTS]),
            fixed: Vec::new(),
            moved: Vec::new(),
            now: 0,
            begin: 0,
            count: [0; 2],
            recent: [[0; LAYOUTS]; 2],
            last: (NONE, 0),
            misses: [0; LAYOUTS],
        }
    }

    /// The misses of each layout so far.
    pub fn misses(&self) -> &Each<u64> {
        &self.misses
    }

    /// A number for a page of a section.
    pub fn add_moved(&mut self) -> u32 {
        let page = MovedPage { begin: u64::MAX, recent: 0, times: [0; LAYOUTS] };
        self.moved.push(page);
        u32::try_from(self.moved.len() - 1).unwrap_or(NONE)
    }

    /// Uses a page that does not move. Returns the misses of all layouts together.
    #[inline]
    pub fn fixed(&mut self, page: u64, mapping: Mapping) -> u64 {
        // Nothing maps it, so no TLB holds it.
        let Some(size) = mapping.size else { return 0 };
        let key = key_of(page, size);
        let (held, number) = self.slots[slot_of(key)];
        let number = if held == key { number } else { self.number(key) };
        let word = word_of(number, false);
        if self.last == (word, ALL) {
            return 0;
        }
        self.last = (word, ALL);
        self.next();
        let used = &mut self.fixed[number as usize];
        if *used > self.begin {
            *used = self.now;
            return 0;
        }
        let kind = usize::from(size != PageSize::Small);
        self.make_room(kind);
        self.fixed[number as usize] = self.now;
        self.enter(kind, word, mapping.global, ALL)
    }

    /// Uses a page of a section in some layouts, a bit each. Returns their misses together.
    #[inline]
    pub fn moved(&mut self, number: u32, layouts: u32) -> u64 {
        let word = word_of(number, true);
        if self.last == (word, layouts) {
            return 0;
        }
        self.last = (word, layouts);
        self.next();
        if self.moved[number as usize].begin != self.begin {
            self.make_room(0);
            let page = &mut self.moved[number as usize];
            (page.begin, page.recent) = (self.begin, 0);
        }
        let page = &mut self.moved[number as usize];
        let entering = layouts & !page.recent;
        page.recent |= layouts;
        page.set_times(u16::try_from(self.now - self.begin).unwrap_or(u16::MAX), layouts);
        if entering == 0 { 0 } else { self.enter(0, word, false, entering) }
    }

    #[cold]
    fn number(&mut self, key: u64) -> u32 {
        let next = u32::try_from(self.fixed.len()).unwrap_or(NONE);
        let number = *self.numbers.entry(key).or_insert(next);
        if number == next {
            self.fixed.push(0);
        }
        self.slots[slot_of(key)] = (key, number);
        number
    }

    /// Counts a use.
    #[inline]
    fn next(&mut self) {
        self.now += 1;
        if self.now - self.begin > TURN {
            self.settle(self.now - 1);
        }
    }

    /// Makes room for one more recent page.
    #[inline]
    fn make_room(&mut self, kind: usize) {
        if self.count[kind] == self.most[kind] {
            self.settle(self.now - 1);
        }
        self.count[kind] += 1;
    }

    /// Uses a page that is not recent in some layouts. Returns their misses together.
    fn enter(&mut self, kind: usize, word: u32, global: bool, layouts: u32) -> u64 {
        let mut all = 0;
        for layout in (0..LAYOUTS).filter(|layout| layouts >> layout & 1 != 0) {
            let missed = self.tlbs[layout][kind].access(word, global);
            self.recent[kind][layout] += 1;
            self.misses[layout] += missed;
            all += missed;
        }
        all
    }

    /// Puts the recent pages of all lists in order. Pages that are used after `begin` uses are recent from here on.
    #[cold]
    fn settle(&mut self, begin: u64) {
        let (fixed, moved) = (&self.fixed, &self.moved);
        for (layout, tlbs) in self.tlbs.iter_mut().enumerate() {
            for (tlb, recent) in tlbs.iter_mut().zip(&mut self.recent) {
                let count = std::mem::take(&mut recent[layout]);
                tlb.sort_first(count.into(), |word| match (word & 1 != 0, (word >> 1) as usize) {
                    (true, number) => self.begin + u64::from(moved[number].times[layout]),
                    (false, number) => fixed[number],
                });
            }
        }
        self.count = [0; 2];
        self.begin = begin;
    }

    /// Puts the lists in order, before pages are removed from them.
    fn settle_all(&mut self) {
        self.settle(self.now);
        self.last = (NONE, 0);
    }

    /// Removes all pages; global ones only if `globals`.
    pub fn clear(&mut self, globals: bool) {
        self.settle_all();
        self.tlbs.as_flattened_mut().iter_mut().for_each(|tlb| tlb.clear(globals));
    }

    /// Removes page number `page`, of any size, if it does not move.
    pub fn remove(&mut self, page: u64) {
        self.settle_all();
        for (kind, size) in [(0, PageSize::Small), (1, PageSize::Large), (1, PageSize::Huge)] {
            if let Some(number) = self.numbers.get(&key_of(page, size)) {
                let word = word_of(*number, false);
                self.tlbs.iter_mut().for_each(|tlbs| tlbs[kind].remove(word));
            }
        }
    }
}

/// The slot of the key of a page that does not move.
#[inline]
fn slot_of(key: u64) -> usize {
    usize::try_from(key % SLOTS as u64).unwrap_or(0)
}

/// The key of a page for [`LruTlbs`].
fn word_of(number: u32, is_moved: bool) -> u32 {
    number << 1 | u32::from(is_moved)
}

impl MovedPage {
    /// Notes a time for some layouts, a bit each.
    #[inline]
    fn set_times(&mut self, time: u16, layouts: u32) {
        const BITS: u16x8 = u16x8::new([1, 2, 4, 8, 16, 32, 64, 128]);
        let time = u16x8::splat(time);
        let (vectors, _) = self.times.as_chunks_mut::<8>();
        for (times, bits) in vectors.iter_mut().zip(layouts.to_le_bytes()) {
            let is_used = (u16x8::splat(bits.into()) & BITS).simd_eq(BITS);
            *times = ((time & is_used) | (u16x8::from(*times) & !is_used)).to_array();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TlbSet;

    fn numbers() -> impl Iterator<Item = u64> {
        let next = |word: &u64| {
            Some(
                word.wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407),
            )
        };
        std::iter::successors(Some(1), next).map(|word| word >> 40)
    }

    #[test]
    fn a_page_that_is_recent_for_long_keeps_its_rank() {
        let mut pages = LayoutPages::new(64);
        let mut lists = vec![LruTlbs::new(64); LAYOUTS];
        let mut misses = [0; LAYOUTS];
        let moved: Vec<u32> = (0..30).map(|_| pages.add_moved()).collect();
        let size = Some(PageSize::Small);
        let mapping = Mapping { frame: 0, size, global: false, large: TlbSet::NONE };
        let mut random = numbers();
        let mut below = |limit: u64| random.next().unwrap_or(0) % limit;
        // Few pages stay recent for more uses than a turn has.
        for (uses, count) in [(3 * TURN, 20), (20_000, 60), (2 * TURN, 15), (500, 60)] {
            for _ in 0..uses {
                let page = below(count);
                // Pages of sections have the second half of the numbers of the lists.
                let (key, layouts) = if page < count / 2 {
                    pages.fixed(page, mapping);
                    (page, ALL)
                } else {
                    let page = page - count / 2;
                    let layouts = u32::try_from(below(1 << 24)).unwrap_or(0) << 8 | 1;
                    pages.moved(moved[usize::try_from(page).unwrap_or(0)], layouts);
                    (page + 1000, layouts)
                };
                for layout in (0..LAYOUTS).filter(|layout| layouts >> layout & 1 != 0) {
                    misses[layout] += lists[layout].access(u32::try_from(key).unwrap_or(0), false);
                }
            }
        }
        assert_eq!(pages.misses(), &misses);
        assert!(misses[0] > 1000, "{misses:?}");
    }
}
