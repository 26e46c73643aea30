//! The unified L2, in all sizes.

use crate::cache::{Cache, WAYS};
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

    /// Uses a line, by its physical number. Answers which sizes missed it, a bit each.
    ///
    /// Each has twice the sets of the one before it and as many ways, so the lines of a set are of one set of that one:
    /// where a line is the newest of its set, it is in all that are larger, too, and nothing changes there.
    #[inline]
    pub fn access(&mut self, line: u64) -> u8 {
        let mut missed = 0;
        for (number, cache) in self.caches.iter_mut().enumerate() {
            let way = cache.access(line);
            missed |= u8::from(way == WAYS) << (self.first + number);
            if way == 0 {
                break;
            }
        }
        missed
    }
}
