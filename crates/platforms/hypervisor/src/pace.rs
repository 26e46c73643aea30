//! How often something may happen.

use std::time::{Duration, Instant};

/// Permits a number of events at once, and after that a number per second.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The time that one event uses up.
    each: Duration,
    /// The time that may be used up in advance.
    burst: Duration,
    /// When all that happened so far is paid for.
    paid: Instant,
}

impl Pace {
    /// `burst` events at once from `now` on, then `per_second`. Neither is 0.
    #[must_use]
    pub fn new(burst: u32, per_second: u32, now: Instant) -> Self {
        let each = Duration::from_secs(1) / per_second.max(1);
        Self { each, burst: each * burst, paid: now }
    }

    /// How long to wait before another event.
    #[must_use]
    pub fn wait(&self, now: Instant) -> Duration {
        (self.paid.max(now) + self.each).saturating_duration_since(now + self.burst)
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
        self.paid = self.paid.max(now) + self.each * events;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_beyond_the_burst_come_at_the_rate() {
        let start = Instant::now();
        let mut pace = Pace::new(3, 10, start);
        let ms = Duration::from_millis;
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
        }
    }
}
