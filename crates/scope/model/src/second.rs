//! The unified L2, in all sizes.

use crate::cache::{Asked, Cache};
use crate::config::{Config, L2_BYTES};

/// What is asked for the lines that an L1 misses.
#[derive(Clone, Debug)]
pub struct Second {
    caches: Vec<Cache>,
    /// The number of the first size.
    first: usize,
}

impl Second {
    /// Empty caches. The numbers of all lines are below `lines`.
    #[must_use]
    pub fn new(config: Config, lines: u64) -> Self {
        let first = if config.single { config.l2 } else { 0 };
        let sizes = if config.single { &L2_BYTES[first..=first] } else { &L2_BYTES[..] };
        Self { caches: sizes.iter().map(|bytes| Cache::new(*bytes, lines)).collect(), first }
    }

    /// Uses lines in their order, and answers in their places of `missed` which sizes missed them, a bit for a size. `asked` is
    /// of no use afterwards.
    ///
    /// One size goes after the other, so that one after another is in the caches of the machine that this runs on. Each has
    /// twice the sets of the one before it and as many ways, so the lines of a set are of one set of that one: where a line is
    /// the newest of its set, it is in all that are larger, too, and nothing changes there.
    pub fn access_all(&mut self, mut asked: &mut [Asked], missed: &mut [u8]) {
        missed.fill(0);
        for (number, cache) in self.caches.iter_mut().enumerate() {
            let left = cache.access_all(asked, missed, 1 << (self.first + number));
            asked = &mut asked[..left];
        }
    }
}
