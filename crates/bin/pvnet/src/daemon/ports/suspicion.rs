//! Guests in whose memory workers were held up, while nobody can prove that it was on purpose.
//!
//! The machine may be short of memory, and read swapped pages. Or a front-end has its own pages written to swap, or shares huge pages that the kernel
//! has to clear first, or has thousands wait for an eventfd. Whichever it is, neighbours pay for it no longer than their share.

use std::time::{Duration, Instant};

use token_bucket::TokenBucket;

/// Microseconds for which one port may hold workers up: at once, and then in each second.
const AT_ONCE: u64 = 50_000;
const PER_SECOND: u64 = 3_000;
/// The longest rest.
const REST_MAX: Duration = Duration::from_secs(10);
/// How long it is suspect. Frames from it and for it are copied meanwhile.
const LENGTH: Duration = Duration::from_secs(60);

/// What a port has cost its neighbours.
#[derive(Debug)]
pub(in crate::daemon) struct Suspicion {
    start: Instant,
    /// Microseconds.
    share: TokenBucket,
    until: Option<Instant>,
}

impl Default for Suspicion {
    fn default() -> Self {
        Self { start: Instant::now(), share: TokenBucket::new(PER_SECOND, AT_ONCE), until: None }
    }
}

impl Suspicion {
    /// A worker was held up in memory of this port, or of another one.
    pub(in crate::daemon) fn begin(&mut self, now: Instant) {
        self.until = Some(now + LENGTH);
    }

    pub(in crate::daemon) fn is_on(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// A worker was held up for `time`, in memory of this port alone. Returns how long to leave that memory alone, if the port's share is used up.
    pub(in crate::daemon) fn charge(&mut self, time: Duration, now: Instant) -> Option<Duration> {
        let elapsed = now.saturating_duration_since(self.start).as_nanos();
        self.share.fill(u64::try_from(elapsed).unwrap_or(u64::MAX));
        self.share.take(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
        let rest = self.share.time_until(PER_SECOND);
        self.share.is_empty().then(|| Duration::from_nanos(rest).min(REST_MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_wait_for_fifty_milliseconds_and_then_three_in_a_second() {
        let mut port = Suspicion::default();
        let (start, hold_up) = (port.start, Duration::from_millis(4));
        let rests = |port: &mut Suspicion, now| port.charge(hold_up, now).is_some();
        let before = (0..100).take_while(|_| !rests(&mut port, start)).count();
        assert_eq!(before, 12);
        // It holds workers up again as soon as it may.
        let (mut now, mut lost) = (start, Duration::ZERO);
        while now - start < Duration::from_secs(60) {
            lost += hold_up;
            now += port.charge(hold_up, now).unwrap_or_default();
        }
        assert!(lost <= Duration::from_millis(60 * 3 + 8), "{lost:?}");
    }

    #[test]
    fn suspicion_ends() {
        let (mut port, now) = (Suspicion::default(), Instant::now());
        assert!(!port.is_on(now));
        port.begin(now);
        assert!(port.is_on(now) && !port.is_on(now + LENGTH));
    }
}
