//! The unified L2, in all sizes.

use crate::cache::{Cache, Lookup};
use crate::config::Config;
use crate::geometry::L2_BYTES;

/// Unified L2s of every size side by side. Each sees every line that an L1 missed.
#[derive(Clone, Debug)]
pub struct L2Bank {
    caches: Vec<Cache>,
    /// The number of the first size.
    first: usize,
}

impl L2Bank {
    /// Empty caches. All lines have numbers below `lines`.
    #[must_use]
    pub fn new(config: Config, lines: u64) -> Self {
        let first = if config.single { config.l2 } else { 0 };
        let sizes = if config.single { &L2_BYTES[first..=first] } else { &L2_BYTES[..] };
        Self { caches: sizes.iter().map(|bytes| Cache::new(*bytes, lines)).collect(), first }
    }

    /// Looks lines up in their order. For each, `missed` receives the sizes that missed it, one bit each, at the lookup's
    /// index. The contents of `lookups` are unspecified afterwards.
    ///
    /// One size goes after the other, so that each in turn stays in the caches of the host. Each has twice the sets of the
    /// one before and as many ways, so the lines of a set all lie in one set of the smaller one. A line that is the newest
    /// of its set is therefore the newest in all larger sizes too, and nothing changes there.
    pub fn access_all(&mut self, mut lookups: &mut [Lookup], missed: &mut [u8]) {
        missed.fill(0);
        for (number, cache) in self.caches.iter_mut().enumerate() {
            let left = cache.access_all(lookups, missed, 1 << (self.first + number));
            lookups = &mut lookups[..left];
        }
    }
}
