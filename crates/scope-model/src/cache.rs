//! One set-associative cache.

use wide::{u16x8, u32x8};

/// The lines of a set.
pub const WAYS: usize = 8;

/// A cache of sets of [`WAYS`] lines, least recently used out first, that allocates on reads and writes
/// alike.
///
/// Lines are told apart by as few bits as they need: the less memory a cache of the model takes, the less often
/// it misses the caches of the machine that it runs on.
#[derive(Clone, Debug)]
pub struct Cache {
    tags: Tags,
    /// Sets less one: which bits of a line's number choose its set.
    mask: u64,
    /// How many bits that are.
    bits: u32,
}

/// The tags of each set, the most recently used first, after one that is none's.
#[derive(Clone, Debug)]
enum Tags {
    Short(Box<[u16]>),
    Long(Box<[u32]>),
}

impl Cache {
    /// A cache of so many bytes in lines of [`LINE`](crate::LINE), for lines whose numbers are below `lines`. The
    /// number of sets is rounded down to a power of two.
    ///
    /// # Panics
    /// If there is not one set, or there are more lines than in 16 TiB.
    #[must_use]
    pub fn new(bytes: usize, lines: u64) -> Self {
        let sets = bytes / crate::LINE / WAYS;
        assert!(sets > 0, "a cache of no sets");
        let bits = sets.ilog2();
        let (tags, ways) = (lines >> bits, ((1 << bits) + 1) * WAYS);
        assert!(tags < u32::MAX.into(), "too much memory for the models");
        // The last number is that of no line.
        let tags = if tags < u16::MAX.into() {
            Tags::Short(vec![u16::MAX; ways].into())
        } else {
            Tags::Long(vec![u32::MAX; ways].into())
        };
        Self { tags, mask: (1 << bits) - 1, bits }
    }

    /// Uses a line, by its physical number: answers in which way it was, or [`WAYS`]. (A cache that is indexed by virtual
    /// numbers is one that is indexed by physical ones as long as its sets are no more than a page's lines.)
    #[inline]
    pub fn access(&mut self, line: u64) -> usize {
        let set = usize::try_from(line & self.mask).unwrap_or(0);
        let tag = line >> self.bits;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "`new` was told how many lines there are"
        )]
        match &mut self.tags {
            Tags::Short(tags) => use_short(tags, set, tag as u16),
            Tags::Long(tags) => use_long(tags, set, tag as u32),
        }
    }
}

/// Makes the function that uses a tag in a set. Without a branch: which way it is in nobody could predict.
macro_rules! use_tag {
    ($name:ident, $tag:ty, $vector:ty) => {
        #[inline]
        fn $name(tags: &mut [$tag], set: usize, tag: $tag) -> usize {
            /// Which ways are another's after a use, by the way that the tag was in, or `WAYS`.
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
            // The tag before the set's first is there that all can be read one way further on.
            let window = tags[set * WAYS + WAYS - 1..].first_chunk_mut::<{ WAYS + 1 }>();
            let Some(window) = window else { return WAYS };
            let [before @ .., _] = *window;
            let [_, ways @ ..] = window;
            let (old, later) = (<$vector>::from(*ways), <$vector>::from(before));
            let found = old.simd_eq(<$vector>::splat(tag)).to_bitmask();
            let way = (found | 1 << WAYS).trailing_zeros() as usize;
            // Each makes room for the one before it, up to where the tag was, or the last way.
            let moved = <$vector>::from(MOVED[way]);
            *ways = ((later & moved) | (old & !moved)).to_array();
            ways[0] = tag;
            way
        }
    };
}

use_tag!(use_short, u16, u16x8);
use_tag!(use_long, u32, u32x8);
