//! When a worker that does not sleep polls for events, and when it reads the clock.

use std::time::{Duration, Instant};

/// A worker polls for events of its sleeping queues once per this many rounds with work.
const POLL_EVERY: u32 = 16;
/// It also polls when this time has passed. A round without work takes a tenth of the time that such a poll takes.
const POLL_AFTER: Duration = Duration::from_micros(50);
/// When no queue sleeps, it polls for commands after this time.
const POLL_AFTER_ALONE: Duration = Duration::from_micros(500);
/// With a yield of its CPU it polls after this time: one frame then waits for both.
const POLL_WITH_YIELD: Duration = Duration::from_micros(250);
/// Every 16 empty polls of each queue re-read the clock; arrival times lag by that much, a third of a microsecond with two queues. The first
/// round without work reads it too. A round counts as two polls where a poll cannot tell whether there is work.
const POLLS_PER_CLOCK: u32 = 16;

/// What a worker has done since it last polled for events.
pub(super) struct EventPolls {
    /// When that was.
    last: Instant,
    /// Rounds with work since then.
    rounds: u32,
    /// Whether the CPU was yielded since then.
    has_yielded: bool,
    /// Polls of each queue since the clock was read, or since the last round with work; 0 also after a yield, whose length nobody
    /// knows.
    dry: u32,
}

impl EventPolls {
    /// It has just polled for events.
    pub(super) fn new(now: Instant) -> Self {
        Self { last: now, rounds: 0, has_yielded: false, dry: 0 }
    }

    /// Whether the next round reads the clock; otherwise it takes the time of the round before.
    #[inline]
    pub(super) fn reads_clock(&self) -> bool {
        self.dry == 0
    }

    #[inline]
    pub(super) fn round_ended(&mut self, has_work: bool) {
        self.rounds += u32::from(has_work);
        self.dry = if has_work { 0 } else { Self::after(self.dry, 2) };
    }

    /// Each queue was polled in place of a round, and had nothing.
    #[inline]
    pub(super) fn queues_polled(&mut self) {
        self.dry = Self::after(self.dry, 1);
    }

    #[inline]
    fn after(dry: u32, polls: u32) -> u32 {
        if dry + polls < POLLS_PER_CLOCK { dry + polls } else { 0 }
    }

    /// The CPU was yielded.
    #[inline]
    pub(super) fn yielded(&mut self) {
        (self.has_yielded, self.dry) = (true, 0);
    }

    /// Whether another round with work may come before it polls for events.
    #[inline]
    pub(super) fn may_postpone(&self) -> bool {
        self.rounds < POLL_EVERY
    }

    /// Whether it polls for events now. `sleeps` says whether a queue sleeps, whose next frames are announced by an event.
    #[inline]
    pub(super) fn is_due(&self, now: Instant, sleeps: bool) -> bool {
        let after = match self.has_yielded {
            _ if sleeps => POLL_AFTER,
            true => POLL_WITH_YIELD,
            false => POLL_AFTER_ALONE,
        };
        sleeps && self.rounds >= POLL_EVERY || now - self.last >= after
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MICROSECOND: Duration = Duration::from_micros(1);

    /// A worker that always has another round.
    #[derive(Clone, Copy)]
    struct Rounds {
        length: Duration,
        has_work: bool,
        sleeps: bool,
        /// After how much time it yields its CPU, again and again.
        yields: Option<Duration>,
    }

    impl Rounds {
        /// The times between its polls for events, in twenty thousand rounds.
        fn times(self) -> Vec<Duration> {
            let mut time = Instant::now();
            let (mut polls, mut polled, mut yielded) = (EventPolls::new(time), time, time);
            let (mut now, mut times) = (time, Vec::new());
            for _ in 0..20_000 {
                if polls.reads_clock() {
                    now = time;
                }
                polls.round_ended(self.has_work);
                if self.yields.is_some_and(|yields| now - yielded >= yields) {
                    yielded = now;
                    polls.yielded();
                }
                if polls.is_due(now, self.sleeps) {
                    times.push(time - polled);
                    (polled, polls) = (time, EventPolls::new(time));
                }
                time += self.length;
            }
            times
        }

        /// Asserts that so much time is between any two polls: at most so many rounds more as do not read the clock.
        fn polls_after(self, after: Duration) {
            let (times, late) = (self.times(), self.length * 8);
            assert!(times.len() > 1);
            for time in times {
                assert!(after <= time && time < after + late, "{time:?} in place of {after:?}");
            }
        }
    }

    fn rounds(length: Duration, has_work: bool, sleeps: bool) -> Rounds {
        Rounds { length, has_work, sleeps, yields: None }
    }

    #[test]
    fn a_queue_that_sleeps_is_heard_after_16_rounds_with_work() {
        for length in [MICROSECOND / 10, MICROSECOND, MICROSECOND * 3] {
            let times = rounds(length, true, true).times();
            // The first poll was no round.
            assert_eq!(times[0], length * 15);
            assert!(times.len() > 600 && times[1..].iter().all(|time| *time == length * 16));
        }
    }

    #[test]
    fn a_queue_that_sleeps_is_heard_after_50_us() {
        for yields in [None, Some(MICROSECOND * 10)] {
            for has_work in [false, true] {
                let long = rounds(MICROSECOND * 5, has_work, true);
                Rounds { yields, ..long }.polls_after(MICROSECOND * 50);
            }
            let dry = rounds(MICROSECOND / 10, false, true);
            Rounds { yields, ..dry }.polls_after(MICROSECOND * 50);
        }
    }

    #[test]
    fn where_no_queue_sleeps_commands_are_heard_after_500_us() {
        for length in [MICROSECOND / 10, MICROSECOND, MICROSECOND * 5] {
            for has_work in [false, true] {
                rounds(length, has_work, false).polls_after(MICROSECOND * 500);
            }
        }
    }

    #[test]
    fn a_poll_comes_with_a_yield_after_250_us() {
        let alone = rounds(MICROSECOND / 2, false, false);
        // Later yields have a poll with them, and of earlier ones the first after the time.
        for (yields, after) in [(300, 300), (400, 400), (100, 250), (10, 250)] {
            let yields = Some(MICROSECOND * yields);
            Rounds { yields, ..alone }.polls_after(MICROSECOND * after);
        }
    }

    #[test]
    fn of_sixteen_polls_one_reads_the_clock() {
        let mut polls = EventPolls::new(Instant::now());
        polls.round_ended(true);
        let reads = |_| {
            let reads = polls.reads_clock();
            // The worker polls its queues in place of a round that does not read it.
            if reads {
                polls.round_ended(false);
            } else {
                polls.queues_polled();
            }
            reads
        };
        let all: Vec<bool> = (0..45).map(reads).collect();
        let at: Vec<usize> = (0..45).filter(|n| all[*n]).collect();
        assert_eq!(at, [0, 15, 30]);
    }

    #[test]
    fn where_a_poll_cannot_tell_each_eighth_round_reads_the_clock() {
        let mut polls = EventPolls::new(Instant::now());
        let mut reads = |has_work, count| {
            let reads = |_| {
                let reads = polls.reads_clock();
                polls.round_ended(has_work);
                usize::from(reads)
            };
            (0..count).map(reads).sum::<usize>()
        };
        assert_eq!([reads(true, 80), reads(false, 80), reads(false, 1)], [80, 10, 1]);
        assert_eq!(reads(false, 3), 0);
        // The one after a round with work.
        assert_eq!([reads(true, 1), reads(false, 1), reads(false, 6)], [0, 1, 0]);
        polls.yielded();
        assert!(polls.reads_clock());
    }
}
