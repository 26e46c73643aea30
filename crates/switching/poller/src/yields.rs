//! When a thread that polls yields its CPU.

use std::time::{Duration, Instant};

/// A yield that took longer than this, or than 2.5 times the shortest one, gave the CPU to another thread. Alone on its CPU, a thread has it back
/// after 0.4 to 1.0 µs, which depends on the machine; beside another one that polls, after 2.4 µs and more.
const TAKEN_MIN: Duration = Duration::from_micros(1);
/// However long the shortest one was.
const TAKEN_MAX: Duration = Duration::from_micros(2);
/// Time between two yields after a first one that nobody took. It doubles with each further one,
const SPIN_MIN: Duration = Duration::from_nanos(500);
/// up to this. A thread that becomes runnable on this CPU, and does not preempt the one that polls, waits for this time.
const SPIN_MAX: Duration = Duration::from_micros(400);

/// The yields of a thread that polls: one per poll while other threads take the CPU, and few while none does.
///
/// A yield takes as long as twenty polls, and a frame that comes meanwhile waits for its end.
#[derive(Clone, Debug)]
pub struct Yields {
    /// The next one is not due before this time.
    next: Option<Instant>,
    /// The time between two of them.
    spin: Duration,
    /// The shortest one.
    shortest: Duration,
}

impl Default for Yields {
    fn default() -> Self {
        Self { next: None, spin: Duration::ZERO, shortest: TAKEN_MAX }
    }
}

impl Yields {
    /// Yields the CPU after a poll that found nothing, if a yield is due. Returns whether it did. `now` is the time of the
    /// poll.
    #[inline]
    pub fn after_poll(&mut self, now: Instant) -> bool {
        if self.next.is_some_and(|next| now < next) {
            // Without a pause instruction, which takes as long as a poll.
            return false;
        }
        std::thread::yield_now();
        self.yielded(now, Instant::now());
        true
    }

    /// Learns from a yield.
    fn yielded(&mut self, began: Instant, ended: Instant) {
        let time = ended.saturating_duration_since(began);
        self.shortest = self.shortest.min(time);
        let taken = match self.shortest <= TAKEN_MIN {
            true => (self.shortest * 5 / 2).clamp(TAKEN_MIN, TAKEN_MAX),
            // All of them may have been taken.
            false => TAKEN_MIN,
        };
        self.spin = match time > taken {
            true => Duration::ZERO,
            false => (self.spin * 2).clamp(SPIN_MIN, SPIN_MAX),
        };
        self.next = Some(ended + self.spin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times between yields, each of which takes `yield_time`.
    fn pauses(yields: &mut Yields, count: usize, yield_time: Duration) -> Vec<Duration> {
        let mut now = yields.next.unwrap_or_else(Instant::now);
        let pause = |_| {
            yields.yielded(now, now + yield_time);
            let pause = yields.next.unwrap() - (now + yield_time);
            now = yields.next.unwrap();
            pause
        };
        (0..count).map(pause).collect()
    }

    #[test]
    fn a_thread_alone_on_its_cpu_hardly_yields() {
        // Of a fast machine, and of a slow one.
        for time in [TAKEN_MIN / 3, TAKEN_MIN] {
            let pauses = pauses(&mut Yields::default(), 100, time);
            assert!(pauses.windows(2).all(|pair| pair[0] <= pair[1]), "{pauses:?}");
            assert_eq!((pauses[0], pauses[99]), (SPIN_MIN, SPIN_MAX));
        }
    }

    #[test]
    fn a_thread_yields_at_each_poll_once_another_one_takes_the_cpu() {
        let mut yields = Yields::default();
        let taken = TAKEN_MAX + Duration::from_nanos(400);
        assert_eq!(pauses(&mut yields, 10, taken), [Duration::ZERO; 10]);
        // Beside a thread that gives the CPU back at once.
        assert_eq!(pauses(&mut yields, 10, TAKEN_MIN * 3 / 2), [Duration::ZERO; 10]);
        pauses(&mut yields, 100, TAKEN_MIN / 3);
        assert_eq!(pauses(&mut yields, 10, taken / 2), [Duration::ZERO; 10]);
    }

    #[test]
    fn polls_before_the_next_yield_do_not_yield() {
        let mut yields = Yields::default();
        let now = Instant::now();
        yields.yielded(now, now);
        assert!(!yields.after_poll(now + SPIN_MIN / 2));
        assert!(yields.after_poll(now + SPIN_MIN));
    }
}
