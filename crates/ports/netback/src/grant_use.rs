//! How the pages that stay mapped are used, for an operator.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts of one table of pages that stay mapped. Who owns the table writes them, and anybody reads.
#[derive(Debug, Default)]
pub struct GrantUse {
    /// Most pages that can be mapped.
    pub(crate) bound: usize,
    /// Of the pages of packets.
    pub(crate) tx: DirectionUse,
    /// Of buffers.
    pub(crate) rx: DirectionUse,
}

/// Counts of one direction. Only who owns the table changes `mapped`, and only the queue that does the
/// lookups changes the others, so plain loads and stores suffice, once per batch.
#[derive(Debug, Default)]
pub(crate) struct DirectionUse {
    /// Pages that are mapped: of an agreed table, those that are read only for TX, the others for RX.
    pub(crate) mapped: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

/// The state of tables of pages that stay mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantUsage {
    /// Most pages that can be mapped.
    pub bound: usize,
    /// The pages of packets from the guest.
    pub tx: DirectionUsage,
    /// The buffers for packets to the guest.
    pub rx: DirectionUsage,
}

/// The same for one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectionUsage {
    /// Pages that are mapped: the active set.
    pub mapped: usize,
    /// Lookups that found their page mapped.
    pub hits: u64,
    /// Lookups of a page that was not mapped.
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
        GrantUsage { bound: self.bound, tx: self.tx.usage(), rx: self.rx.usage() }
    }
}

impl DirectionUse {
    fn usage(&self) -> DirectionUsage {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DirectionUsage {
            mapped: self.mapped.load(Ordering::Relaxed),
            hits: count(&self.hits),
            misses: count(&self.misses),
            evictions: count(&self.evictions),
        }
    }

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
            bound: sum.bound + one.bound,
            tx: sum.tx + one.tx,
            rx: sum.rx + one.rx,
        })
    }
}

impl std::ops::Add for DirectionUsage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            mapped: self.mapped + other.mapped,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            evictions: self.evictions + other.evictions,
        }
    }
}
