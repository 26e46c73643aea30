//! A token bucket.

use std::ops::AddAssign;
use std::time::Duration;

use port::Frame;

/// Parts of a token: what a rate of one token per second gives in a nanosecond. A level in parts
/// is exact at any rate.
const PARTS: i128 = 1_000_000_000;

/// Tokens that come in at a steady rate and go out in bursts.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Tokens per second, which are parts per nanosecond.
    rate: u64,
    /// The most it holds, in tokens.
    burst: u64,
    /// What it holds, in parts. Negative: a debt.
    level: i128,
    /// The time up to which it is filled.
    filled: Duration,
    /// Tokens needed to start a batch.
    batch: u64,
}

impl Bucket {
    /// A full bucket. A burst of less than one token is one. `largest_batch` bounds the tokens with
    /// which a batch begins.
    pub fn new(rate: u64, burst: u64, largest_batch: u64) -> Self {
        let burst = burst.max(1);
        // What a millisecond gives; half a burst leaves the other half for a late worker.
        let batch = (rate / 1000).min(largest_batch).min(burst / 2).max(1);
        Self { rate, burst, level: i128::from(burst) * PARTS, filled: Duration::ZERO, batch }
    }

    /// Puts in what has come until `now`. Time that goes back brings nothing: another worker has
    /// read its clock later.
    pub fn fill(&mut self, now: Duration) {
        let Some(elapsed) = now.checked_sub(self.filled) else { return };
        self.filled = now;
        // A Duration has less than 2^94 nanoseconds: only the product can overflow.
        let elapsed = i128::try_from(elapsed.as_nanos()).unwrap_or(i128::MAX);
        let level = self.level.saturating_add(elapsed.saturating_mul(self.rate.into()));
        self.level = level.min(self.full());
    }

    fn full(&self) -> i128 {
        i128::from(self.burst) * PARTS
    }

    /// The whole tokens in it.
    pub fn tokens(&self) -> u64 {
        // No more than the burst.
        u64::try_from(self.level.max(0) / PARTS).unwrap_or(u64::MAX)
    }

    /// The tokens for `batches` batches, or a full bucket.
    fn tokens_for(&self, batches: u64) -> u64 {
        self.batch.saturating_mul(batches).min(self.burst)
    }

    /// The tokens with which a batch begins.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// Whether it has the tokens for this number of batches, or is full.
    pub fn has_batches(&self, batches: u64) -> bool {
        self.tokens() >= self.tokens_for(batches)
    }

    /// How long it takes until it has the tokens for this number of batches, or is full.
    pub fn time_until(&self, batches: u64) -> Duration {
        let missing = i128::from(self.tokens_for(batches)) * PARTS - self.level;
        let missing = u128::try_from(missing).unwrap_or(0);
        match missing.checked_div(self.rate.into()) {
            _ if missing == 0 => Duration::ZERO,
            // Rounded up: the tokens are there then.
            Some(nanos) => Duration::from_nanos(u64::try_from(nanos + 1).unwrap_or(u64::MAX)),
            None => Duration::MAX,
        }
    }

    /// Takes tokens out, if need be more than it has.
    pub fn take(&mut self, tokens: u64) {
        self.level = self.level.saturating_sub(i128::from(tokens) * PARTS);
    }

    /// Puts back tokens that were taken.
    pub fn put_back(&mut self, tokens: u64) {
        let level = self.level.saturating_add(i128::from(tokens) * PARTS);
        self.level = level.min(self.full());
    }
}

/// Bytes and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub bytes: u64,
    pub packets: u64,
}

impl Tokens {
    /// What a frame costs.
    #[inline]
    pub fn of(frame: &Frame) -> Self {
        Self { bytes: frame.len.into(), packets: frame.packets().into() }
    }
}

impl AddAssign for Tokens {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.packets += other.packets;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(nanos: u64) -> Duration {
        Duration::from_nanos(nanos)
    }

    #[test]
    fn fills_at_the_rate_up_to_the_burst() {
        let mut bucket = Bucket::new(1000, 50, 64);
        assert_eq!(bucket.tokens(), 50, "full at first");
        bucket.take(50);
        assert_eq!(bucket.tokens(), 0);
        bucket.fill(at(999_999));
        assert_eq!(bucket.tokens(), 0);
        bucket.fill(at(1_000_000));
        assert_eq!(bucket.tokens(), 1);
        bucket.fill(at(1));
        assert_eq!(bucket.tokens(), 1, "time that goes back");
        bucket.fill(at(1_999_999));
        bucket.fill(at(2_000_000));
        assert_eq!(bucket.tokens(), 2, "no part is lost");
        bucket.fill(at(u64::MAX));
        assert_eq!(bucket.tokens(), 50);
        bucket.put_back(7);
        assert_eq!(bucket.tokens(), 50);
    }

    #[test]
    fn a_debt_is_filled_first() {
        let mut bucket = Bucket::new(1000, 10, 64);
        bucket.take(30);
        bucket.fill(Duration::from_millis(20));
        assert_eq!(bucket.tokens(), 0);
        assert_eq!(bucket.time_until(1).as_millis(), 1);
        bucket.fill(Duration::from_millis(21));
        assert_eq!(bucket.tokens(), 1);
        assert!(bucket.has_batches(1) && bucket.time_until(1).is_zero());
    }

    #[test]
    fn the_largest_numbers() {
        let forever = Duration::MAX;
        for rate in [0, 1, 12_500_000_000, u64::MAX] {
            for burst in [0, 1, 1 << 30, u64::MAX] {
                let mut bucket = Bucket::new(rate, burst, u64::MAX);
                bucket.take(u64::MAX);
                bucket.take(u64::MAX);
                let _ = bucket.time_until(u64::MAX);
                bucket.fill(forever);
                bucket.put_back(u64::MAX);
                assert!(bucket.tokens() <= burst.max(1));
            }
        }
        let mut stopped = Bucket::new(0, 1, 64);
        stopped.take(1);
        assert_eq!(stopped.time_until(1), Duration::MAX);
        // 100 Gb/s after three years of silence.
        let mut bucket = Bucket::new(12_500_000_000, 250_000_000, 1 << 18);
        bucket.take(250_000_000);
        bucket.fill(Duration::from_secs(100_000_000));
        assert_eq!(bucket.tokens(), 250_000_000);
    }

    proptest! {
        /// Over any stretch of any pattern: rate × time + burst + one frame.
        #[test]
        fn never_more_than_the_rate_and_a_burst(
            rate in 1u64..=12_500_000_000,
            burst in 1u64..=1 << 24,
            steps in prop::collection::vec((0u64..50_000_000, 1u64..=65_535, any::<bool>()), 1..200),
            from: prop::sample::Index,
        ) {
            let from = from.index(steps.len());
            let mut bucket = Bucket::new(rate, burst, 1 << 18);
            let (mut now, mut since, mut passed, mut last) = (0, 0, 0u128, 0);
            for (n, (pause, frame, is_greedy)) in steps.into_iter().enumerate() {
                now += pause;
                if n == from {
                    (since, passed) = (now, 0);
                }
                bucket.fill(at(now));
                while bucket.tokens() > 0 {
                    bucket.take(frame);
                    passed += u128::from(frame);
                    last = frame;
                    if !is_greedy {
                        break;
                    }
                }
                let earned = u128::from(rate) * u128::from(now - since) / 1_000_000_000;
                prop_assert!(passed <= earned + u128::from(burst) + u128::from(last));
            }
        }

        /// Who sends as soon as it may gets the rate, to the token.
        #[test]
        fn a_greedy_sender_gets_the_rate(
            rate in 1u64..=12_500_000_000,
            burst in 1u64..=1 << 24,
            frames in prop::collection::vec(1u64..=65_535, 500),
        ) {
            let mut bucket = Bucket::new(rate, burst, 1 << 18);
            let (mut now, mut passed) = (Duration::ZERO, 0u128);
            for frame in frames {
                now += bucket.time_until(1);
                bucket.fill(now);
                prop_assert!(bucket.has_batches(1));
                bucket.take(frame);
                passed += u128::from(frame);
            }
            let earned = u128::from(rate) * now.as_nanos() / 1_000_000_000;
            prop_assert!(passed * 100 >= earned * 99);
        }
    }
}
