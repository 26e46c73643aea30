//! When to look at a queue that is full.

use std::time::Duration;

/// The time between two checks: at first, and at most.
const PAUSE: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(50)];

/// The checks of a queue that is full. Each may be a system call, and every worker with frames for it asks for one in each turn, so they
/// go by the time and not by how often they are asked for.
#[derive(Debug)]
pub(super) struct Looks {
    due: Duration,
    pause: Duration,
}

impl Looks {
    /// The first one is due.
    pub(super) const fn new() -> Self {
        Self { due: Duration::ZERO, pause: PAUSE[0] }
    }

    pub(super) fn are_due(&self, now: Duration) -> bool {
        now >= self.due
    }

    /// When the next one is due.
    pub(super) fn due(&self) -> Duration {
        self.due
    }

    /// There was a look. Those that find nothing are fewer and fewer.
    pub(super) fn looked(&mut self, has_found: bool, now: Duration) {
        self.pause = if has_found { PAUSE[0] } else { (self.pause * 2).min(PAUSE[1]) };
        self.due = now + self.pause;
    }

    /// The last one has found enough: where the kernel copies, the next may too.
    pub(super) fn renew(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_go_by_the_time() {
        let us = Duration::from_micros;
        let mut looks = Looks::new();
        assert!(looks.are_due(us(0)));
        for pause in [100, 200, 400] {
            looks.looked(false, us(1000));
            assert_eq!(looks.due(), us(1000 + pause));
        }
        assert!(!looks.are_due(us(1399)) && looks.are_due(us(1400)));
        for _ in 0..20 {
            looks.looked(false, us(2000));
        }
        assert_eq!(looks.due(), us(52_000));
        looks.looked(true, us(60_000));
        assert_eq!(looks.due(), us(60_050));
        looks.renew();
        assert!(looks.are_due(us(0)));
    }
}
