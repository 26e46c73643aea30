//! TLBs of several sizes at once.

/// The number of DTLBs of each layout, one for each size.
pub const LAYOUT_TLBS: u64 = 16;

/// No page, in a place of the list.
const FREE: u32 = u32::MAX;

/// Fully associative TLBs with LRU replacement. Their sizes go from three quarters to five quarters of a number of entries: at least
/// 32, as sizes differ by one entry at least.
///
/// A path whose pages just fit into a TLB misses nothing, and with one page more it misses all of them. So two versions of a
/// program would differ by chance if one uses a page more. Over several sizes they do not.
///
/// They are one list, the most recently used page first: a TLB of `n` entries holds the first `n` (Mattson et al. 1970). An
/// invalidated page leaves a free place, which the next page that the list moves down fills. [`Tlb`](crate::Tlb) is another
/// set of TLBs, for many accesses.
#[derive(Clone, Debug)]
pub struct LruTlbs {
    /// The key of each page, with the lowest bit set if it is global; or [`FREE`].
    places: Vec<u32>,
    /// Whether no place is free, if that is known.
    is_full: bool,
    /// Entries of the smallest TLB.
    smallest: usize,
    /// How many more each next one has.
    step: usize,
}

impl LruTlbs {
    /// Empty TLBs.
    #[must_use]
    pub fn new(entries: usize) -> Self {
        let sizes = usize::try_from(LAYOUT_TLBS).unwrap_or(1);
        let (smallest, step) = (entries * 3 / 4, (entries / (2 * sizes)).max(1));
        let largest = smallest + (sizes - 1) * step;
        Self { places: vec![FREE; largest], is_full: false, smallest, step }
    }

    /// The entries of the smallest TLB.
    #[must_use]
    pub fn smallest(&self) -> usize {
        self.smallest
    }

    /// Sorts the first `count` pages of the list by the time of their last use, newest first; `used` returns it for a key.
    pub fn sort_first(&mut self, count: usize, used: impl Fn(u32) -> u64) {
        let first = self.places.get_mut(..count).unwrap_or_default();
        first.sort_unstable_by_key(|word| std::cmp::Reverse(used(*word >> 1)));
    }

    /// Uses a page. Returns how many of the TLBs missed it, of [`LAYOUT_TLBS`].
    #[inline]
    pub fn access(&mut self, key: u32, global: bool) -> u64 {
        if self.places[0] >> 1 == key {
            return 0;
        }
        let found = self.place_of(key);
        let above = found.unwrap_or(self.places.len());
        let free = if self.is_full { None } else { self.free_place(above) };
        let word = match found {
            Some(place) if free.is_some() => std::mem::replace(&mut self.places[place], FREE),
            Some(place) => self.places[place],
            None => {
                self.is_full = free.is_none();
                key << 1 | u32::from(global)
            }
        };
        let end = free.or(found).unwrap_or(self.places.len() - 1);
        self.places.copy_within(..end, 1);
        self.places[0] = word;
        self.missed_by(found)
    }

    /// Where a page is in the list. Places are compared some at a time: that has fewer branches.
    #[inline]
    fn place_of(&self, key: u32) -> Option<usize> {
        const TOGETHER: usize = 8;
        let is_it = |word: &u32| *word >> 1 == key;
        let parts = self.places.chunks(TOGETHER).enumerate();
        let (number, part) =
            { parts }.find(|(_, part)| part.iter().fold(false, |any, word| any | is_it(word)))?;
        Some(number * TOGETHER + part.iter().position(is_it)?)
    }

    /// The first free place above another one.
    #[cold]
    fn free_place(&self, above: usize) -> Option<usize> {
        self.places.iter().take(above).position(|word| *word == FREE)
    }

    /// How many TLBs do not have this place of the list.
    #[inline]
    fn missed_by(&self, place: Option<usize>) -> u64 {
        match place {
            Some(place) if place < self.smallest => 0,
            Some(place) => ((place - self.smallest) / self.step + 1) as u64,
            None => LAYOUT_TLBS,
        }
    }

    /// Removes a page.
    pub fn remove(&mut self, key: u32) {
        let place = self.places.iter_mut().find(|word| **word >> 1 == key);
        if let Some(place) = place {
            *place = FREE;
            self.is_full = false;
        }
    }

    /// Removes all pages; global ones only if `globals`.
    pub fn clear(&mut self, globals: bool) {
        for word in self.places.iter_mut().filter(|word| globals || **word & 1 == 0) {
            *word = FREE;
            self.is_full = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_used_long_ago_is_in_the_larger_tlbs_only() {
        // 48 to 78 entries.
        let mut tlbs = LruTlbs::new(64);
        assert_eq!(tlbs.access(7, false), LAYOUT_TLBS);
        (100..147).for_each(|key| assert_eq!(tlbs.access(key, false), LAYOUT_TLBS));
        assert_eq!(tlbs.access(7, false), 0);
        (200..250).for_each(|key| assert_eq!(tlbs.access(key, false), LAYOUT_TLBS));
        // 50 pages since then: TLBs of 48 and of 50 entries have lost it.
        assert_eq!(tlbs.access(7, false), 2);
    }

    #[test]
    fn an_invalidated_page_leaves_a_free_place_in_each_tlb_that_had_it() {
        let mut tlbs = LruTlbs::new(64);
        (0..48).for_each(|key| _ = tlbs.access(key, key == 3));
        tlbs.remove(40);
        // It takes the free place, so the smallest TLB still has the oldest page.
        assert_eq!(tlbs.access(100, false), LAYOUT_TLBS);
        assert_eq!(tlbs.access(0, false), 0);
        tlbs.clear(false);
        assert_eq!((tlbs.access(3, true), tlbs.access(0, false)), (0, LAYOUT_TLBS));
        tlbs.clear(true);
        assert_eq!(tlbs.access(3, true), LAYOUT_TLBS);
    }
}
