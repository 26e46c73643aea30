//! The unified L2, in all sizes.

use crate::cache::{Cache, Lookup};
use crate::config::Config;
use crate::geometry::L2_BYTES;

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
    /// One size goes after the other, so that each in turn stays in the caches of the host. Each has a multiple of the
    /// sets of the one before and as many ways, so the lines of a set all lie in one set of the smaller one. A line that is the newest
    /// of its set is therefore the newest in all larger sizes too, and nothing changes there.
    pub fn access_all(&mut self, mut lookups: &mut [Lookup], missed: &mut [u8]) {
        missed.fill(0);
        for (cache, bit) in &mut self.caches {
            let left = cache.access_all(lookups, missed, *bit);
            lookups = &mut lookups[..left];
        }
    }
}
