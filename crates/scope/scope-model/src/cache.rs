//! One set-associative cache.

use wide::{u16x8, u32x8};

use crate::config::{Config, L2_BYTES, LINE};

/// Lines of a set.
pub const WAYS: usize = 8;

/// A cache of sets of [`WAYS`] lines with LRU replacement, which allocates on reads and on writes.
///
/// Tags have as few bits as the lines need: the less memory a modelled cache takes, the less often it misses the caches of
/// the host.
#[derive(Clone, Debug)]
pub enum Cache {
    /// With tags of 16 bits.
    Short(Sets<u16>),
    /// With tags of 32 bits.
    Long(Sets<u32>),
}

/// The sets of a cache.
#[derive(Clone, Debug, Default)]
pub struct Sets<Tag> {
    /// The tags of each set, the most recently used first.
    tags: Box<[[Tag; WAYS]]>,
    index: Index,
}

/// Divides a line's number into set and tag.
#[derive(Clone, Copy, Debug, Default)]
struct Index {
    /// The number of sets, less one.
    mask: u64,
    /// Bits of the mask.
    bits: u32,
}

impl Default for Cache {
    /// A cache without sets, which misses every line.
    fn default() -> Self {
        Self::Short(Sets::default())
    }
}

impl Cache {
    /// An empty cache of `bytes` bytes in lines of [`LINE`], for lines whose numbers are below `lines`. The number of sets
    /// is rounded down to a power of two.
    ///
    /// # Panics
    /// If the cache has no set, or `lines` are more than 16 TiB.
    #[must_use]
    pub fn new(bytes: usize, lines: u64) -> Self {
        let sets = bytes / LINE / WAYS;
        assert!(sets > 0, "a cache of no sets");
        let bits = sets.ilog2();
        let (tags, sets) = (lines >> bits, 1 << bits);
        assert!(tags < u32::MAX.into(), "too much memory for the models");
        let index = Index { mask: (1 << bits) - 1, bits };
        // The highest tag marks an empty way.
        if tags < u16::MAX.into() {
            Self::Short(Sets { tags: vec![[u16::MAX; WAYS]; sets].into(), index })
        } else {
            Self::Long(Sets { tags: vec![[u32::MAX; WAYS]; sets].into(), index })
        }
    }

    /// Looks a line up by its physical number, and makes it the newest of its set. Returns the way that it was in, or
    /// [`WAYS`] for a miss. (A virtually indexed cache behaves the same as long as it has no more sets than a page has
    /// lines.)
    #[inline]
    pub fn access(&mut self, line: u64) -> usize {
        match self {
            Self::Short(sets) => sets.access(line),
            Self::Long(sets) => sets.access(line),
        }
    }

    /// Looks lines up in their order. Sets the bits of `mark` in `missed` at the index of each lookup that misses. Lookups
    /// of lines that were already the newest of their sets are removed; returns how many remain, at the front.
    pub fn access_all(&mut self, lookups: &mut [Lookup], missed: &mut [u8], mark: u8) -> usize {
        match self {
            Self::Short(sets) => filter(lookups, missed, mark, |line| sets.access(line)),
            Self::Long(sets) => filter(lookups, missed, mark, |line| sets.access(line)),
        }
    }
}

/// The sets of a cache, whatever its tags.
pub trait Lines {
    /// As [`Cache::access`].
    fn access(&mut self, line: u64) -> usize;
}

/// A lookup of a line by its physical number, and the index at which its result is stored.
///
/// ```text
///  63…48   47…0
///  ┌──────┬──────┐
///  │index │line  │
///  └──────┴──────┘
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Lookup(u64);

impl Lookup {
    const LINE_BITS: u32 = 48;

    /// A lookup of `line`; `index` is below 65536.
    #[inline]
    #[must_use]
    pub fn new(line: u64, index: usize) -> Self {
        Self(line | (index as u64) << Self::LINE_BITS)
    }

    #[inline]
    fn line(self) -> u64 {
        self.0 & ((1 << Self::LINE_BITS) - 1)
    }

    #[inline]
    fn index(self) -> usize {
        (self.0 >> Self::LINE_BITS) as usize
    }
}

/// Does what [`Cache::access_all`] promises; `way` looks one line up. It has no branch, for the reason given below.
#[inline]
fn filter(
    lookups: &mut [Lookup],
    missed: &mut [u8],
    mark: u8,
    mut way: impl FnMut(u64) -> usize,
) -> usize {
    let mut left = 0;
    for number in 0..lookups.len() {
        let this = lookups[number];
        let way = way(this.line());
        if let Some(missed) = missed.get_mut(this.index()) {
            *missed |= if way == WAYS { mark } else { 0 };
        }
        lookups[left] = this;
        left += usize::from(way != 0);
    }
    left
}

/// Defines how a line is looked up in sets with these tags. It has no branch, since the way of a hit is unpredictable. It
/// reads and writes the set as one vector, because a load that spans several recent smaller stores stalls until they reach
/// the cache.
macro_rules! lookup {
    ($tag:ty, $set:ty) => {
        impl Lines for Sets<$tag> {
            #[inline(always)]
            fn access(&mut self, line: u64) -> usize {
                /// The ways whose tag changes, by the way that the tag was in, or `WAYS`.
                static MOVED: [[$tag; WAYS]; WAYS + 1] = {
                    let mut moved = [[0; WAYS]; WAYS + 1];
                    let mut used = 0;
                    while used <= WAYS {
                        let mut way = 0;
                        while way < WAYS {
                            moved[used][way] = if way <= used { <$tag>::MAX } else { 0 };
                            way += 1;
                        }
                        used += 1;
                    }
                    moved
                };
                let set = usize::try_from(line & self.index.mask).unwrap_or(0);
                #[expect(clippy::cast_possible_truncation, reason = "`Cache::new` checked it")]
                let tag = (line >> self.index.bits) as $tag;
                let Some(ways) = self.tags.get_mut(set) else { return WAYS };
                let old = <$set>::from(*ways);
                let found = old.simd_eq(<$set>::splat(tag)).to_bitmask();
                let way = (found | 1 << WAYS).trailing_zeros() as usize;
                let [a, b, c, d, e, f, g, _] = old.to_array();
                let later = <$set>::from([tag, a, b, c, d, e, f, g]);
                // The tags move up to the way that the tag was in, or up to the last way.
                let moved = <$set>::from(MOVED[way]);
                *ways = ((later & moved) | (old & !moved)).to_array();
                way
            }
        }
    };
}

lookup!(u16, u16x8);
lookup!(u32, u32x8);

/// Unified L2s of every size side by side. Each sees every line that an L1 missed.
#[derive(Clone, Debug)]
pub struct L2Bank {
    /// The caches with the bit of each, the smallest first.
    caches: Vec<(Cache, u8)>,
}

impl L2Bank {
    /// Empty caches. All lines have numbers below `lines`.
    #[must_use]
    pub fn new(config: Config, lines: u64) -> Self {
        let is_modelled =
            |size: usize| !config.single || size == config.l2 || Some(size) == config.l3;
        let sizes = (0..L2_BYTES.len()).filter(|size| is_modelled(*size));
        Self { caches: sizes.map(|size| (Cache::new(L2_BYTES[size], lines), 1 << size)).collect() }
    }

    /// Looks lines up in their order. For each, `missed` receives the sizes that missed it, one bit each, at the lookup's
    /// index. The contents of `lookups` are unspecified afterwards.
    ///
    /// The sizes take turns, so that each stays in the host's caches during its turn. A size has a multiple of the previous one's sets
    /// and as many ways, so the lines of a set all lie in one set of the smaller one. A line that is the newest of its set is
    /// therefore the newest in all larger sizes too, and nothing changes there.
    pub fn access_all(&mut self, mut lookups: &mut [Lookup], missed: &mut [u8]) {
        missed.fill(0);
        for (cache, bit) in &mut self.caches {
            let left = cache.access_all(lookups, missed, *bit);
            lookups = &mut lookups[..left];
        }
    }
}
