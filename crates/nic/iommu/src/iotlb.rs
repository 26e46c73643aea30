//! The card's cache of translations.

use std::ops::Range;

use crate::table::Entry;

/// The size of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Translations that fit. 0 is no cache.
    pub entries: u32,
    /// Places where one page's translation can be; 1 is a direct-mapped cache.
    pub ways: u32,
}

impl Default for Geometry {
    /// 64 entries, 4 ways.
    fn default() -> Self {
        Self { entries: 64, ways: 4 }
    }
}

impl Geometry {
    /// Whether it has a power of two of sets, each of `ways` entries.
    #[must_use]
    pub fn is_sound(self) -> bool {
        self.entries == 0
            || self.ways > 0
                && self.entries.is_multiple_of(self.ways)
                && (self.entries / self.ways).is_power_of_two()
    }
}

/// What a cache has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IotlbCount {
    /// Translations found in it.
    pub hits: u64,
    /// Translations read from the table.
    pub misses: u64,
    /// Requests to invalidate some pages.
    pub invalidations: u64,
    /// Times that all of it was cleared.
    pub clears: u64,
}

#[derive(Clone, Copy, Debug)]
struct CachedEntry {
    page: u32,
    /// Not valid: the line is empty.
    entry: Entry,
}

/// The line of no page.
const EMPTY: CachedEntry = CachedEntry { page: 0, entry: Entry::EMPTY };

/// A set-associative cache of valid entries. A full set replaces its lines in turn.
#[derive(Debug)]
pub struct Iotlb {
    /// The lines of one set are neighbours.
    lines: Box<[CachedEntry]>,
    ways: usize,
    /// One less than the sets.
    mask: usize,
    /// The next line of each set that is replaced.
    victims: Box<[u32]>,
    count: IotlbCount,
}

impl Iotlb {
    /// An empty cache. A geometry that is not [sound](Geometry::is_sound) is rounded down to one that is.
    #[must_use]
    pub fn new(Geometry { entries, ways }: Geometry) -> Self {
        let ways = ways.max(1) as usize;
        let sets = match entries as usize / ways {
            0 => 0,
            sets => 1 << sets.ilog2(),
        };
        Self {
            lines: vec![EMPTY; sets * ways].into(),
            ways,
            mask: sets.saturating_sub(1),
            victims: vec![0; sets].into(),
            count: IotlbCount::default(),
        }
    }

    /// What it has counted.
    #[must_use]
    pub fn count(&self) -> IotlbCount {
        self.count
    }

    #[inline]
    fn set(&mut self, page: u32) -> &mut [CachedEntry] {
        let first = (page as usize & self.mask) * self.ways;
        self.lines.get_mut(first..first + self.ways).unwrap_or_default()
    }

    /// The cached entry of a page. Counts a hit or a miss.
    #[inline]
    pub fn lookup(&mut self, page: u32) -> Option<Entry> {
        let found = |line: &&mut CachedEntry| line.page == page && line.entry.is_valid();
        let entry = self.set(page).iter_mut().find(found).map(|line| line.entry);
        match entry {
            Some(_) => self.count.hits += 1,
            None => self.count.misses += 1,
        }
        entry
    }

    /// Keeps a valid entry of a page that is not in the cache.
    pub fn insert(&mut self, page: u32, entry: Entry) {
        let set = page as usize & self.mask;
        let Some(victim) = self.victims.get_mut(set) else { return };
        let first = set * self.ways;
        let lines = &mut self.lines[first..first + self.ways];
        let place = lines.iter().position(|line| !line.entry.is_valid()).unwrap_or_else(|| {
            let place = *victim as usize % self.ways;
            *victim = victim.wrapping_add(1);
            place
        });
        lines[place] = CachedEntry { page, entry };
    }

    /// Forgets pages.
    pub fn invalidate(&mut self, pages: Range<u32>) {
        self.count.invalidations += 1;
        let remove = |line: &mut CachedEntry| {
            if pages.contains(&line.page) {
                *line = EMPTY;
            }
        };
        if pages.len() < self.victims.len() {
            for page in pages.clone() {
                self.set(page).iter_mut().for_each(remove);
            }
        } else {
            self.lines.iter_mut().for_each(remove);
        }
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.count.clears += 1;
        self.lines.fill(EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Permission;

    fn entry(page: u32) -> Entry {
        Entry::new(u64::from(page) + 1000, Permission::Read).unwrap()
    }

    #[test]
    fn what_was_kept_is_found_until_it_is_invalidated() {
        for ways in [1, 2, 8] {
            let mut cache = Iotlb::new(Geometry { entries: 8, ways });
            (0..8).for_each(|page| cache.insert(page, entry(page)));
            for page in 0..8 {
                assert_eq!(cache.lookup(page), Some(entry(page)), "{ways} ways");
            }
            assert_eq!(cache.lookup(8), None);
            cache.invalidate(2..4);
            assert_eq!(cache.lookup(1), Some(entry(1)));
            assert_eq!((cache.lookup(2), cache.lookup(3)), (None, None));
            cache.invalidate(0..u32::MAX);
            assert_eq!(cache.lookup(7), None);
            assert_eq!(cache.count().hits, 9);
            assert_eq!(cache.count().misses, 4);
        }
    }

    #[test]
    fn a_full_set_replaces_in_turn() {
        let mut cache = Iotlb::new(Geometry { entries: 4, ways: 2 });
        for page in [0, 2, 4] {
            cache.insert(page, entry(page));
        }
        assert_eq!(cache.lookup(0), None);
        assert_eq!((cache.lookup(2), cache.lookup(4)), (Some(entry(2)), Some(entry(4))));
        cache.insert(6, entry(6));
        assert_eq!((cache.lookup(2), cache.lookup(6)), (None, Some(entry(6))));
        cache.clear();
        assert_eq!(cache.lookup(4), None);
    }

    #[test]
    fn a_cache_of_nothing_keeps_nothing() {
        let mut cache = Iotlb::new(Geometry { entries: 0, ways: 4 });
        cache.insert(1, entry(1));
        cache.invalidate(0..9);
        cache.clear();
        assert_eq!(cache.lookup(1), None);
        assert!(Geometry { entries: 0, ways: 0 }.is_sound());
        assert!(Geometry::default().is_sound());
        assert!(!Geometry { entries: 12, ways: 4 }.is_sound());
        assert!(!Geometry { entries: 8, ways: 0 }.is_sound());
    }
}
