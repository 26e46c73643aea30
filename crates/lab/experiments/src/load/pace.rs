//! A limit on the rate of one thread.

use std::time::{Duration, Instant};

/// How many bytes may go at once after a pause, in time.
const BURST: Duration = Duration::from_millis(2);

/// A token bucket.
#[derive(Debug)]
pub struct Pace {
    /// Bytes per second; no limit if absent.
    rate: Option<f64>,
    /// Bytes that may go now; negative if too many went.
    tokens: f64,
    at: Instant,
}

impl Pace {
    /// A rate in bytes per second; no limit if absent.
    pub fn new(rate: Option<f64>, now: Instant) -> Self {
        Self { rate, tokens: 0.0, at: now }
    }

    /// Bytes went.
    pub fn spend(&mut self, bytes: usize) {
        self.tokens -= bytes as f64;
    }

    /// How long to wait before the next bytes go.
    pub fn wait(&mut self, now: Instant) -> Duration {
        let Some(rate) = self.rate else { return Duration::ZERO };
        let new = now.saturating_duration_since(self.at).as_secs_f64() * rate;
        self.at = now;
        self.tokens = (self.tokens + new).min(rate * BURST.as_secs_f64());
        Duration::from_secs_f64((-self.tokens / rate).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_as_long_as_what_went_takes() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut pace = Pace::new(Some(1000.0), start);
        assert_eq!(pace.wait(start), Duration::ZERO);
        pace.spend(500);
        assert_eq!(pace.wait(after(100)).as_millis(), 400);
        assert_eq!(pace.wait(after(500)), Duration::ZERO);
        // A long pause is no permission for a long burst.
        assert_eq!(pace.wait(after(60_000)), Duration::ZERO);
        pace.spend(1002);
        assert_eq!(pace.wait(after(60_000)).as_millis(), 1000);
        assert_eq!(Pace::new(None, start).wait(start), Duration::ZERO);
    }
}
