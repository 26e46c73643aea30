//! How the pages that stay mapped are used, for an operator.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts of one table of pages that stay mapped. Who owns the table writes them, and anybody reads.
#[derive(Debug, Default)]
pub struct GrantUse {
    /// Most pages that can be mapped.
    pub(crate) bound: usize,
    /// Pages that are mapped.
    pub(crate) mapped: AtomicUsize,
    /// Of the pages of packets.
    pub(crate) tx: LookUps,
    /// Of buffers.
    pub(crate) rx: LookUps,
}

/// Look-ups of one direction. Only the queue that does them changes the counts, so plain loads and
/// stores suffice, once per batch.
#[derive(Debug, Default)]
pub(crate) struct LookUps {
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

/// The state of tables of pages that stay mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantUsage {
    /// Pages that are mapped.
    pub mapped: usize,
    /// Most pages that can be mapped.
    pub bound: usize,
    /// Look-ups that found their page mapped.
    pub hits: u64,
    /// Look-ups that did not.
    pub misses: u64,
    /// Pages that lost their place to others.
    pub evictions: u64,
}

impl GrantUse {
    pub(crate) fn new(bound: usize) -> Self {
        Self { bound, ..Self::default() }
    }

    /// The counts at this moment.
    pub fn usage(&self) -> GrantUsage {
        let sum = |of: fn(&LookUps) -> &AtomicU64| {
            [&self.tx, &self.rx].map(|one| of(one).load(Ordering::Relaxed)).iter().sum()
        };
        GrantUsage {
            mapped: self.mapped.load(Ordering::Relaxed),
            bound: self.bound,
            hits: sum(|one| &one.hits),
            misses: sum(|one| &one.misses),
            evictions: sum(|one| &one.evictions),
        }
    }
}

impl LookUps {
    /// Adds what one batch did.
    #[inline]
    pub(crate) fn add(&self, hits: u64, misses: u64, evictions: u64) {
        for (count, more) in
            [(&self.hits, hits), (&self.misses, misses), (&self.evictions, evictions)]
        {
            if more > 0 {
                count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
            }
        }
    }
}

impl std::iter::Sum for GrantUsage {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            mapped: sum.mapped + one.mapped,
            bound: sum.bound + one.bound,
            hits: sum.hits + one.hits,
            misses: sum.misses + one.misses,
            evictions: sum.evictions + one.evictions,
        })
    }
}
