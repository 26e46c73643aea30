//! When a sender's bursts begin.

use std::time::{Duration, Instant};

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
