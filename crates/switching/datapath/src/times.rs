//! How a worker's thread counts its time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use switch::add_alone;

/// What a worker did with its time since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTimes {
    /// Turns of queues and tasks that had work.
    pub carrying: Duration,
    /// All else while it did not sleep: it polled.
    pub polling: Duration,
    /// It waited for events.
    pub asleep: Duration,
}

/// Nanoseconds that one thread counts.
#[derive(Debug, Default)]
pub(crate) struct Busy(AtomicU64);

impl Busy {
    #[inline]
    pub(crate) fn add(&self, took: Duration) {
        add_alone(&self.0, nanoseconds(took));
    }

    pub(crate) fn read(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The time of a worker. Its thread writes it; all times are since the start of the datapath.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Times {
    carried: Busy,
    /// Twice the nanoseconds for which it has slept; while it sleeps, twice those for which it has not, and one. So one word says both, and
    /// whoever reads it sees no sleep twice.
    slept: AtomicU64,
}

impl Times {
    /// A queue or a task had a turn with work.
    #[inline]
    pub(crate) fn carried(&self, took: Duration) {
        self.carried.add(took);
    }

    /// It waits for events from now on.
    pub(crate) fn falls_asleep(&self, now: Duration) {
        let awake = nanoseconds(now).saturating_sub(self.slept.load(Ordering::Relaxed) >> 1);
        self.slept.store(awake << 1 | 1, Ordering::Relaxed);
    }

    /// It does so no more.
    pub(crate) fn wakes(&self, now: Duration) {
        let asleep = nanoseconds(now).saturating_sub(self.slept.load(Ordering::Relaxed) >> 1);
        self.slept.store(asleep << 1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, now: Duration) -> WorkerTimes {
        let slept = self.slept.load(Ordering::Relaxed);
        let asleep = match (slept & 1 == 1, Duration::from_nanos(slept >> 1)) {
            (true, awake) => now.saturating_sub(awake),
            (false, asleep) => asleep.min(now),
        };
        // A turn is counted after its end.
        let awake = now - asleep;
        let carrying = self.carried.read().min(awake);
        WorkerTimes { carrying, polling: awake - carrying, asleep }
    }
}

/// It wraps after 584 years.
#[inline]
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    time.as_secs().wrapping_mul(1_000_000_000).wrapping_add(time.subsec_nanos().into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_sleep_counts_while_it_lasts_and_once() {
        let times = Times::default();
        times.carried(MS * 3);
        times.falls_asleep(MS * 10);
        let during = times.read(MS * 14);
        let expected = |asleep| WorkerTimes { carrying: MS * 3, polling: MS * 7, asleep };
        assert_eq!(during, expected(MS * 4));
        times.wakes(MS * 20);
        assert_eq!(times.read(MS * 20), expected(MS * 10));
        times.carried(MS * 5);
        let after = times.read(MS * 25);
        assert_eq!(after, WorkerTimes { carrying: MS * 8, ..expected(MS * 10) });
    }

    proptest! {
        #[test]
        fn the_parts_are_the_whole(steps in prop::collection::vec((0u32..2000, any::<bool>()), 1..40)) {
            let (times, mut now, mut sleeps) = (Times::default(), Duration::ZERO, false);
            let mut slept = Duration::ZERO;
            for (step, turn) in steps {
                now += MS * step;
                if sleeps {
                    slept += MS * step;
                    times.wakes(now);
                } else if turn {
                    times.carried(MS * step);
                }
                sleeps = !sleeps && !turn;
                if sleeps {
                    times.falls_asleep(now);
                }
                let WorkerTimes { carrying, polling, asleep } = times.read(now);
                prop_assert_eq!((carrying + polling + asleep, asleep), (now, slept));
            }
        }
    }
}
