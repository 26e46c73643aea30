//! One set-associative cache.

/// A cache of lines, least recently used out first, that allocates on reads and writes alike.
#[derive(Clone, Debug)]
pub struct Cache {
    /// The lines of each set, the most recently used first.
    lines: Box<[u32]>,
    ways: usize,
    /// Sets less one: which bits of a line's number choose its set.
    mask: u64,
}

/// No line: it would be the last of 256 GiB.
const NOTHING: u32 = u32::MAX;

impl Cache {
    /// A cache of so many bytes in lines of [`LINE`](crate::LINE), so many to a set. The number of sets
    /// is rounded down to a power of two.
    ///
    /// # Panics
    /// If there is not one set.
    #[must_use]
    pub fn new(bytes: usize, ways: usize) -> Self {
        let sets = bytes / crate::LINE / ways;
        assert!(sets > 0, "a cache of no sets");
        let sets = 1usize << sets.ilog2();
        Self { lines: vec![NOTHING; sets * ways].into(), ways, mask: sets as u64 - 1 }
    }

    /// Uses the line `tag`, in the set that `index` chooses: answers whether it was there. A cache that
    /// is physically indexed has the same for both; one that is virtually indexed and
    /// physically tagged does not. Lines of 256 GiB are told apart: half the bytes of a whole number,
    /// and so half the misses of this model's own in the caches of the machine that it runs on.
    #[inline]
    pub fn access(&mut self, index: u64, tag: u64) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "as said above")]
        let tag = tag as u32;
        let set = usize::try_from(index & self.mask).unwrap_or(0) * self.ways;
        let set = &mut self.lines[set..set + self.ways];
        // Each line makes room for the one before it, up to where the line was, or the last way.
        let mut newer = tag;
        for line in set {
            std::mem::swap(line, &mut newer);
            if newer == tag {
                return true;
            }
        }
        false
    }
}
