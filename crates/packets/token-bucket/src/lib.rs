//! Token buckets: tokens come in at a steady rate, up to a burst, and go out in any amount. The last taker may leave a debt,
//! which is filled first. From any moment on, no more go out than come in, a burst and one amount.
//!
//! - [`TokenBucket`] has one owner. Any rate is exact.
//! - [`SharedBucket`] is taken from by many threads without a lock, so it is one word, which has no place for parts of a token.
//! - [`Pace`] is a [`TokenBucket`] for events on the system's clock.

#![forbid(unsafe_code)]

mod pace;
mod shared;

pub use pace::Pace;
pub use shared::SharedBucket;

/// Parts of a token: what a rate of one token per second gives in a nanosecond. A level in parts is exact at any rate.
const PARTS: u64 = 1_000_000_000;

/// Tokens that come in at a steady rate. It holds, and owes, at most 9 · 10⁹ tokens. Times are in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket {
    /// Tokens per second, which are parts per nanosecond.
    rate: u64,
    /// The most it holds, in parts.
    full: i64,
    /// What it holds, in parts. Negative: a debt.
    level: i64,
    /// The time up to which it is filled.
    filled: u64,
}

impl TokenBucket {
    /// A full bucket, at time zero of its owner's clock; `rate` is in tokens per second. A burst of less than one token is one.
    #[must_use]
    pub fn new(rate: u64, burst: u64) -> Self {
        let full = parts(burst.max(1));
        Self { rate, full, level: full, filled: 0 }
    }

    /// Puts in what has come until `now`. Time that goes back brings nothing: another thread has read its clock later.
    #[inline]
    pub fn fill(&mut self, now: u64) {
        let Some(elapsed) = now.checked_sub(self.filled) else { return };
        self.filled = now;
        // The difference fits: the bucket never holds more than it can.
        let missing = self.full.wrapping_sub(self.level).cast_unsigned();
        self.level = match elapsed.checked_mul(self.rate) {
            Some(new) if new < missing => self.level.wrapping_add_unsigned(new),
            _ => self.full,
        };
    }

    /// The whole tokens in it.
    #[inline]
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.level.max(0).unsigned_abs() / PARTS
    }

    /// Whether it holds no whole token.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.level < parts(1)
    }

    /// Whether it holds these tokens, or is full.
    #[inline]
    #[must_use]
    pub fn has(&self, tokens: u64) -> bool {
        self.level >= parts(tokens).min(self.full)
    }

    /// How long it takes until it [has](Self::has) these tokens; for ever is [`u64::MAX`].
    #[must_use]
    pub fn time_until(&self, tokens: u64) -> u64 {
        let wanted = parts(tokens).min(self.full);
        if self.level >= wanted {
            return 0;
        }
        if self.rate == 0 {
            return u64::MAX;
        }
        // Rounded up: the tokens are there then.
        wanted.wrapping_sub(self.level).cast_unsigned().div_ceil(self.rate)
    }

    /// Takes tokens out, if need be more than it has.
    #[inline]
    pub fn take(&mut self, tokens: u64) {
        self.level = self.level.saturating_sub(parts(tokens));
    }

    /// Puts back tokens that were taken.
    #[inline]
    pub fn put_back(&mut self, tokens: u64) {
        self.level = self.level.saturating_add(parts(tokens)).min(self.full);
    }
}

#[inline]
fn parts(tokens: u64) -> i64 {
    const TOKENS_MAX: u64 = i64::MAX.cast_unsigned() / PARTS;
    (tokens.min(TOKENS_MAX) * PARTS).cast_signed()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn fills_at_the_rate_up_to_the_burst() {
        let mut bucket = TokenBucket::new(1000, 50);
        assert_eq!(bucket.tokens(), 50, "full at first");
        bucket.take(50);
        assert_eq!(bucket.tokens(), 0);
        bucket.fill(999_999);
        assert_eq!(bucket.tokens(), 0);
        bucket.fill(1_000_000);
        assert_eq!(bucket.tokens(), 1);
        bucket.fill(1);
        assert_eq!(bucket.tokens(), 1, "time that goes back");
        bucket.fill(1_999_999);
        bucket.fill(2_000_000);
        assert_eq!(bucket.tokens(), 2, "no part is lost");
        bucket.fill(u64::MAX);
        assert_eq!(bucket.tokens(), 50);
        bucket.put_back(7);
        assert_eq!(bucket.tokens(), 50);
    }

    #[test]
    fn a_debt_is_filled_first() {
        let mut bucket = TokenBucket::new(1000, 10);
        bucket.take(30);
        bucket.fill(20 * MS);
        assert_eq!(bucket.tokens(), 0);
        assert_eq!(bucket.time_until(1), MS);
        assert_eq!(bucket.time_until(99), 10 * MS, "no more than the burst");
        bucket.fill(21 * MS);
        assert_eq!(bucket.tokens(), 1);
        assert!(bucket.has(1) && bucket.time_until(1) == 0);
    }

    #[test]
    fn the_largest_numbers() {
        for rate in [0, 1, 12_500_000_000, u64::MAX] {
            for burst in [0, 1, 1 << 30, u64::MAX] {
                let mut bucket = TokenBucket::new(rate, burst);
                bucket.take(u64::MAX);
                bucket.take(u64::MAX);
                let _ = bucket.time_until(u64::MAX);
                bucket.fill(u64::MAX);
                bucket.put_back(u64::MAX);
                assert!(bucket.tokens() <= burst.max(1));
                bucket.fill(u64::MAX);
                assert_eq!(bucket.has(u64::MAX), bucket.time_until(u64::MAX) == 0);
            }
        }
        let mut stopped = TokenBucket::new(0, 1);
        stopped.take(1);
        assert_eq!(stopped.time_until(1), u64::MAX);
        // 100 Gb/s after three years of silence.
        let mut bucket = TokenBucket::new(12_500_000_000, 250_000_000);
        bucket.take(250_000_000);
        bucket.fill(100_000_000_000 * MS);
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
            let mut bucket = TokenBucket::new(rate, burst);
            let (mut now, mut since, mut passed, mut last) = (0, 0, 0u128, 0);
            for (n, (pause, frame, is_greedy)) in steps.into_iter().enumerate() {
                now += pause;
                if n == from {
                    (since, passed) = (now, 0);
                }
                bucket.fill(now);
                while !bucket.is_empty() {
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
            let mut bucket = TokenBucket::new(rate, burst);
            let (mut now, mut passed) = (0, 0u128);
            for frame in frames {
                now += bucket.time_until(1);
                bucket.fill(now);
                prop_assert!(bucket.has(1));
                bucket.take(frame);
                passed += u128::from(frame);
            }
            let earned = u128::from(rate) * u128::from(now) / 1_000_000_000;
            prop_assert!(passed * 100 >= earned * 99);
        }

        /// Against a bucket of numbers without end.
        #[test]
        fn no_part_is_lost(
            scale in prop::sample::select(vec![1, 1 << 20]),
            rate in 0u64..=10_000,
            burst in 1u64..100,
            steps in prop::collection::vec((0u64..5 * MS, 0u64..40, 0u64..10), 1..100),
        ) {
            let (rate, burst) = (rate * scale, burst * scale);
            let mut bucket = TokenBucket::new(rate, burst);
            let full = i128::from(burst) * 1_000_000_000;
            let (mut level, mut now) = (full, 0);
            for (pause, taken, back) in steps {
                now += pause;
                bucket.fill(now);
                level = (level + i128::from(pause) * i128::from(rate)).min(full);
                prop_assert_eq!(i128::from(bucket.tokens()), level.max(0) / 1_000_000_000);
                prop_assert_eq!(bucket.is_empty(), bucket.tokens() == 0);
                let (taken, back) = (taken * scale, back * scale);
                bucket.take(taken);
                bucket.put_back(back);
                level = (level + (i128::from(back) - i128::from(taken)) * 1_000_000_000).min(full);
            }
        }
    }
}
