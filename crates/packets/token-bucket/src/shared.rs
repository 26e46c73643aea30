//! A token bucket in one atomic word. It is not a [`TokenBucket`](crate::TokenBucket), whose level and time are two words that
//! threads could not change at once.

use std::sync::atomic::{AtomicU64, Ordering};

/// Tokens that come in at a steady rate. Any number of threads may take from it at once, without a lock.
///
/// Its clock counts tokens: `now` is how many have come in since the clock began, so nothing is rounded twice.
#[derive(Debug, Default)]
pub struct SharedBucket {
    /// The time at which the bucket would be full, if all that was taken were paid at the rate.
    paid: AtomicU64,
}

impl SharedBucket {
    /// Takes `count` tokens out if the bucket holds any. From any moment on, no more are taken than come in, a
    /// burst and one `count`.
    #[inline]
    pub fn take(&self, count: u64, burst: u64, now: u64) -> bool {
        self.paid
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |paid| {
                // A worker whose clock lags finds less, never more.
                (paid.saturating_sub(now) < burst).then(|| paid.max(now).saturating_add(count))
            })
            .is_ok()
    }

    /// Fills the bucket.
    pub fn fill(&self) {
        self.paid.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_debt_is_filled_first() {
        let bucket = SharedBucket::default();
        assert!(bucket.take(1, 1, 0) && !bucket.take(1, 1, 0), "a burst of one");
        assert!(bucket.take(30, 10, 100));
        assert!(!bucket.take(1, 10, 120), "20 of 30 are paid");
        assert!(bucket.take(1, 10, 121));
        bucket.fill();
        assert!(bucket.take(u64::MAX, 10, 0) && bucket.take(1, 10, u64::MAX));
        assert!(!bucket.take(1, 0, u64::MAX), "a burst of nothing");
    }

    proptest! {
        /// Against a bucket that is a number: the same takers pass, at any clock that goes forward.
        #[test]
        fn it_is_a_bucket(
            burst in 1u64..100,
            steps in prop::collection::vec((0u64..50, 1u64..60), 1..200),
        ) {
            let bucket = SharedBucket::default();
            let (mut level, mut now) = (i128::from(burst), 0);
            for (pause, count) in steps {
                now += pause;
                level = (level + i128::from(pause)).min(burst.into());
                let passes = level > 0;
                prop_assert_eq!(bucket.take(count, burst, now), passes);
                level -= if passes { i128::from(count) } else { 0 };
            }
        }

        /// Workers with clocks that are apart: from any moment on, no more than what came in, a burst and a taker.
        #[test]
        fn clocks_that_differ_bring_nothing(
            burst in 1u64..100,
            steps in prop::collection::vec((0u64..50, 0u64..30, 1u64..60), 1..200),
            from: prop::sample::Index,
        ) {
            let bucket = SharedBucket::default();
            let from = from.index(steps.len());
            let (mut clock, mut since, mut taken) = (100, 0, 0);
            for (n, (pause, lag, count)) in steps.into_iter().enumerate() {
                clock += pause;
                if n == from {
                    (since, taken) = (clock, 0);
                }
                if bucket.take(count, burst, clock - lag) {
                    taken += count;
                }
                prop_assert!(taken <= clock - since + burst + 60 + 30);
            }
        }
    }

    #[test]
    fn workers_take_no_token_twice() {
        const BURST: u64 = 1000;
        let bucket = SharedBucket::default();
        let taken: u64 = std::thread::scope(|scope| {
            let take = || (0..BURST).filter(|_| bucket.take(1, BURST, 0)).count() as u64;
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            workers.into_iter().map(|worker| worker.join().expect("no panic")).sum()
        });
        assert_eq!(taken, BURST);
    }
}
