//! Histograms with one writer each.

use std::sync::atomic::{AtomicU64, Ordering};

use switch::add_alone;

/// Counts of values by powers of two. One worker adds values, with plain loads and stores; any thread reads.
///
/// Bucket `n` counts the values up to 2^(`FIRST` + n) that no bucket before it counts; the last bucket has no upper bound.
/// No other worker writes its cache lines. The sum and the first seven buckets are in one line.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Histogram<const FIRST: u32, const BUCKETS: usize> {
    sum: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

impl<const FIRST: u32, const BUCKETS: usize> Histogram<FIRST, BUCKETS> {
    /// Adds a value. No other thread may add one meanwhile: its value could be lost.
    #[inline]
    pub(crate) fn add(&self, value: u64) {
        // As many bits as the value has above the first bound, so that a power of two is in the bucket that it bounds.
        let above = value.saturating_sub(1) >> FIRST;
        let bucket = (u64::BITS - above.leading_zeros()) as usize;
        add_alone(&self.buckets[bucket.min(BUCKETS - 1)], 1);
        add_alone(&self.sum, value);
    }

    /// Adds what was counted to `distribution`.
    pub(crate) fn add_to(&self, distribution: &mut Distribution) {
        let bounds = (0..BUCKETS - 1).map(|n| 1 << (FIRST as usize + n));
        let bounds = bounds.chain(std::iter::once(u64::MAX));
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        distribution.sum += self.sum.load(Ordering::Relaxed);
        if distribution.buckets.is_empty() {
            distribution.buckets = bounds.zip(counts).collect();
        } else {
            distribution.buckets.iter_mut().zip(counts).for_each(|(own, count)| own.1 += count);
        }
    }
}

impl<const FIRST: u32, const BUCKETS: usize> Default for Histogram<FIRST, BUCKETS> {
    fn default() -> Self {
        Self { buckets: std::array::from_fn(|_| AtomicU64::new(0)), sum: AtomicU64::new(0) }
    }
}

/// The values of all workers' histograms of one thing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Distribution {
    /// The largest value of each bucket, ascending, and how many values it has. The last bucket has `u64::MAX`.
    pub buckets: Vec<(u64, u64)>,
    /// The sum of all values.
    pub sum: u64,
}

impl Distribution {
    /// How many values there are.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn distribution<const FIRST: u32, const BUCKETS: usize>(
        histogram: &Histogram<FIRST, BUCKETS>,
    ) -> Distribution {
        let mut distribution = Distribution::default();
        histogram.add_to(&mut distribution);
        distribution
    }

    #[test]
    fn a_power_of_two_is_in_the_bucket_that_it_bounds() {
        let histogram = Histogram::<0, 8>::default();
        for size in 1..=64 {
            histogram.add(size);
        }
        let seen = distribution(&histogram);
        let all = [(1, 1), (2, 1), (4, 2), (8, 4), (16, 8), (32, 16), (64, 32), (u64::MAX, 0)];
        assert_eq!((seen.buckets.as_slice(), seen.sum), (&all[..], 65 * 32));
        assert_eq!(seen.count(), 64);
    }

    #[test]
    fn two_workers_histograms_become_one_distribution() {
        let (one, other) = (Histogram::<8, 3>::default(), Histogram::<8, 3>::default());
        one.add(256);
        one.add(257);
        other.add(512);
        other.add(513);
        let mut both = distribution(&one);
        other.add_to(&mut both);
        assert_eq!(both.buckets, [(256, 1), (512, 2), (u64::MAX, 1)]);
        assert_eq!(both.sum, 256 + 257 + 512 + 513);
    }

    proptest! {
        #[test]
        fn every_value_is_in_one_bucket_within_its_bounds(value: u64) {
            let histogram = Histogram::<8, 23>::default();
            histogram.add(value);
            let seen = distribution(&histogram);
            let place = seen.buckets.iter().position(|(_, count)| *count == 1).unwrap();
            prop_assert_eq!(seen.count(), 1);
            prop_assert!(value <= seen.buckets[place].0);
            prop_assert!(place == 0 || value > seen.buckets[place - 1].0);
        }
    }
}
