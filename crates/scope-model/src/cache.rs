//! One set-associative cache.

use wide::u32x8;

/// The lines of a set.
pub const WAYS: usize = 8;

/// A cache of sets of [`WAYS`] lines, least recently used out first, that allocates on reads and writes
/// alike.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The lines of each set, the most recently used first, after one that is none's.
    lines: Box<[u32]>,
    /// Sets less one: which bits of a line's number choose its set.
    mask: u64,
}

/// No line: it would be the last of 256 GiB.
const NOTHING: u32 = u32::MAX;

/// Which ways are another's after a use, by the way that the line was in, or `WAYS`.
static MOVED: [[u32; WAYS]; WAYS + 1] = {
    let mut moved = [[0; WAYS]; WAYS + 1];
    let mut used = 0;
    while used <= WAYS {
        let mut way = 0;
        while way < WAYS {
            moved[used][way] = if way <= used { u32::MAX } else { 0 };
            way += 1;
        }
        used += 1;
    }
    moved
};

impl Cache {
    /// A cache of so many bytes in lines of [`LINE`](crate::LINE). The number of sets is rounded down to
    /// a power of two.
    ///
    /// # Panics
    /// If there is not one set.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        let sets = bytes / crate::LINE / WAYS;
        assert!(sets > 0, "a cache of no sets");
        let sets = 1usize << sets.ilog2();
        Self { lines: vec![NOTHING; (sets + 1) * WAYS].into(), mask: sets as u64 - 1 }
    }

    /// Uses the line `tag`, in the set that `index` chooses: answers whether it was there. A cache that
    /// is physically indexed has the same for both; one that is virtually indexed and
    /// physically tagged does not. Lines of 256 GiB are told apart: half the bytes of a whole number,
    /// and so half the misses of this model's own in the caches of the machine that it runs on.
    ///
    /// Without a branch: which way a line is in nobody could predict.
    #[inline]
    pub fn access(&mut self, index: u64, tag: u64) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "as said above")]
        let tag = tag as u32;
        let set = usize::try_from(index & self.mask).unwrap_or(0);
        // The line before the set's first is there that all can be read one way further on.
        let window = self.lines[set * WAYS + WAYS - 1..].first_chunk_mut::<{ WAYS + 1 }>();
        let Some(window) = window else { return false };
        let [before @ .., _] = *window;
        let [_, ways @ ..] = window;
        let (old, later) = (u32x8::from(*ways), u32x8::from(before));
        let found = old.simd_eq(u32x8::splat(tag)).to_bitmask();
        let way = (found | 1 << WAYS).trailing_zeros() as usize;
        // Each line makes room for the one before it, up to where the line was, or the last way.
        let moved = u32x8::from(MOVED[way]);
        *ways = ((later & moved) | (old & !moved)).to_array();
        ways[0] = tag;
        way < WAYS
    }
}
