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

/// Bursts at equal distances. One that begins late is not followed sooner than after three quarters of the distance, so that
/// two of them never become one; a longer delay shifts all later ones.
#[derive(Debug)]
pub struct Bursts {
    distance: Duration,
    next: Instant,
}

impl Bursts {
    /// The first one begins now.
    pub fn new(distance: Duration, now: Instant) -> Self {
        Self { distance, next: now }
    }

    /// For how long the next burst has to wait.
    pub fn wait(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// A burst begins.
    pub fn begin(&mut self, now: Instant) {
        self.next = (self.next + self.distance).max(now + self.distance * 3 / 4);
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

    #[test]
    fn a_little_delay_is_made_up_for_and_a_long_one_is_not() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let mut bursts = Bursts::new(Duration::from_micros(400), start);
        bursts.begin(start);
        assert_eq!(bursts.wait(start).as_micros(), 400);
        // 50 µs late: the next is on time.
        bursts.begin(at(450));
        assert_eq!(bursts.wait(at(450)).as_micros(), 350);
        // A whole burst late: no two begin at once.
        bursts.begin(at(1200));
        assert_eq!(bursts.wait(at(1200)).as_micros(), 300);
        bursts.begin(at(1500));
        assert_eq!(bursts.wait(at(1500)).as_micros(), 400);
    }
}
