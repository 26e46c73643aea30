//! How often something may happen.

use std::time::{Duration, Instant};

use crate::TokenBucket;

/// Permits a number of events at once, and after that a number per second, or one in an interval.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    bucket: TokenBucket,
    /// Tokens of an event.
    each: u64,
    /// Where the bucket's clock begins.
    start: Instant,
}

impl Pace {
    /// `burst` events at once from `now` on, then `per_second`. Neither is 0.
    #[must_use]
    pub fn new(burst: u32, per_second: u32, now: Instant) -> Self {
        let bucket = TokenBucket::new(per_second.max(1).into(), burst.into());
        Self { bucket, each: 1, start: now }
    }

    /// `burst` events at once from `now` on, then one in `interval`, which is exact to a millisecond. Neither is 0.
    #[must_use]
    pub fn one_in(interval: Duration, burst: u32, now: Instant) -> Self {
        let each = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX).max(1);
        let bucket = TokenBucket::new(1000, each.saturating_mul(burst.into()));
        Self { bucket, each, start: now }
    }

    /// How long to wait before another event.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        Duration::from_nanos(self.filled(now).time_until(self.each))
    }

    /// Counts an event. Returns how long it must wait first.
    #[must_use]
    pub fn begin(&mut self, now: Instant) -> Duration {
        let wait = self.wait(now);
        self.count(1, now);
        wait
    }

    /// Counts events.
    pub fn count(&mut self, events: u32, now: Instant) {
        self.bucket = self.filled(now);
        self.bucket.take(self.each.saturating_mul(events.into()));
    }

    fn filled(&self, now: Instant) -> TokenBucket {
        let mut bucket = self.bucket;
        let nanos = now.saturating_duration_since(self.start).as_nanos();
        bucket.fill(u64::try_from(nanos).unwrap_or(u64::MAX));
        bucket
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_beyond_the_burst_come_at_the_rate() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let slow = Pace::one_in(ms(2000), 3, start);
        for (mut pace, unit) in [(Pace::new(3, 10, start), 1), (slow, 20)] {
            let ms = |count: u64| ms(count * unit);
            for _ in 0..3 {
                assert_eq!(pace.begin(start), Duration::ZERO);
            }
            assert_eq!(pace.wait(start), ms(100));
            assert_eq!(pace.wait(start + ms(60)), ms(40));
            // Three at once again after a pause, and no more for a longer one.
            for pause in [300, 100_000] {
                let later = start + ms(pause);
                let mut pace = pace;
                pace.count(2, later);
                assert_eq!(pace.wait(later), Duration::ZERO);
                pace.count(1, later);
                assert_eq!(pace.wait(later), ms(100));
                pace.count(2, later);
                assert_eq!(pace.wait(later), ms(300), "events that did not wait are a debt");
            }
        }
    }
}
