use proptest::prelude::*;

use super::*;

const MICROSECOND: Duration = Duration::from_micros(1);

/// A thread that polls once per microsecond.
struct Thread {
    poller: Poller,
    now: Instant,
    /// How long it polled in waits that ended in time, and in others.
    polled: [Duration; 2],
}

impl Thread {
    fn new(limit: Duration) -> Self {
        Self { poller: Poller::new(limit), now: Instant::now(), polled: [Duration::ZERO; 2] }
    }

    /// Work, and then a wait. Returns whether the wait was polled.
    fn wait(&mut self, frames: usize, bytes: u64, wait: Duration) -> bool {
        self.poller.worked(frames, bytes, || self.now);
        let (began, end) = (self.now, self.now + wait);
        while self.now < end && self.poller.is_worth_polling(self.now) {
            self.now += MICROSECOND;
        }
        let polled = self.now - began;
        self.polled[usize::from(self.now < end)] += polled;
        self.now = end;
        polled > Duration::ZERO
    }

    /// The same many times. Returns how many waits were polled.
    fn waits(&mut self, count: usize, frames: usize, bytes: u64, wait: Duration) -> usize {
        (0..count).filter(|_| self.wait(frames, bytes, wait)).count()
    }
}

#[test]
fn round_trips_are_polled() {
    let mut thread = Thread::new(POLL);
    // All threads sleep at first, so the waits are longer.
    assert!(thread.waits(10, 1, 100, POLL * 3 / 2) > 0);
    assert_eq!(thread.waits(1000, 1, 100, POLL / 2), 1000);
}

#[test]
fn a_thread_of_which_every_second_wait_is_long_polls() {
    let mut thread = Thread::new(POLL);
    thread.waits(8, 1, 100, POLL / 3);
    for _ in 0..1000 {
        assert!(thread.wait(1, 100, POLL * 2));
        assert!(thread.wait(1, 100, POLL / 3));
    }
}

#[test]
fn an_idle_thread_never_polls() {
    let mut thread = Thread::new(POLL);
    assert_eq!(thread.waits(1000, 1, 100, POLL * SLOW), 0);
    assert_eq!(thread.polled, [Duration::ZERO; 2]);
}

#[test]
fn a_pause_after_round_trips_costs_one_limit() {
    let mut thread = Thread::new(POLL);
    thread.waits(100, 1, 100, POLL / 2);
    let [_, before] = thread.polled;
    thread.wait(1, 100, Duration::from_secs(1));
    assert_eq!(thread.polled[1] - before, POLL);
}

#[test]
fn bulk_is_not_polled() {
    for (frames, bytes) in [(1, BULK_BYTES + 1), (BULK_FRAMES + 1, 1000)] {
        let mut thread = Thread::new(POLL);
        thread.waits(100, 1, 100, POLL / 2);
        assert_eq!(thread.waits(100, frames, bytes, POLL / 2), 0);
        // Acknowledgements between the bursts.
        for _ in 0..100 {
            assert!(!thread.wait(frames, bytes, POLL / 2) && !thread.wait(2, 132, POLL / 2));
        }
        // Round trips again.
        assert!(thread.waits(1000, 1, 100, POLL / 2) > 950);
    }
}

#[test]
fn round_trips_of_which_every_poll_finds_a_frame_are_no_bulk() {
    let mut thread = Thread::new(POLL);
    thread.waits(100, 1, 1514, POLL / 2);
    for _ in 0..100 {
        (0..1000).for_each(|_| thread.poller.worked(1, 1514, || thread.now));
        assert!(thread.wait(1, 1514, POLL / 2));
    }
    // With more frames per poll it is, also after many with one, and between polls that bring none.
    (0..1000).for_each(|_| thread.poller.worked(1, 60, || thread.now));
    for _ in 0..2 * BURST_POLLS {
        thread.poller.worked(3, 180, || thread.now);
        thread.poller.worked(0, 0, || thread.now);
    }
    assert!(!thread.wait(3, 180, POLL / 2));
}

#[test]
fn without_a_limit_nothing_is_polled() {
    let mut thread = Thread::new(Duration::ZERO);
    for wait in [Duration::ZERO, MICROSECOND, POLL] {
        assert_eq!(thread.waits(100, 1, 100, wait), 0);
    }
}

#[test]
fn work_that_always_comes_just_too_late_is_hardly_polled_for() {
    let mut thread = Thread::new(POLL);
    let began = thread.now;
    thread.waits(100_000, 1, 100, POLL * 2);
    let share = thread.polled[1].as_secs_f64() / (thread.now - began).as_secs_f64();
    assert!(share < 0.01, "{share}");
}

#[test]
fn somebody_who_keeps_the_cpu_ends_polling() {
    let mut thread = Thread::new(POLL);
    let mut lost = 0;
    for _ in 0..100_000 {
        thread.waits(10, 1, 100, POLL / 2);
        // The yield takes a time slice. Work comes meanwhile.
        thread.poller.worked(1, 100, || thread.now);
        if thread.poller.is_worth_polling(thread.now) {
            lost += 1;
            thread.now += Duration::from_millis(3);
        }
    }
    assert!(lost < 1000, "{lost} of a million waits");
}

#[test]
fn somebody_who_takes_the_cpu_once_hardly_ends_polling() {
    for (calm, rests) in [(CALM, REST_MIN * 2), (CALM - 1, REST_CROWDED)] {
        let mut thread = Thread::new(POLL);
        // The first ones begin polling.
        thread.waits(usize::from(START) + usize::from(calm), 1, 100, POLL / 2);
        thread.poller.worked(1, 100, || thread.now);
        assert!(thread.poller.is_worth_polling(thread.now));
        thread.now += Duration::from_millis(3);
        let slept = (0..5000).take_while(|_| !thread.wait(1, 100, POLL / 2)).count();
        assert_eq!(slept, usize::from(rests) + usize::from(START), "after {calm} waits");
    }
}

/// With more threads on their way than CPUs, each yield gives the CPU to another one of them.
#[test]
fn threads_of_one_round_trip_that_share_a_cpu_poll() {
    let mut thread = Thread::new(POLL);
    thread.waits(10, 1, 100, POLL / 2);
    for _ in 0..1000 {
        thread.poller.worked(1, 100, || thread.now);
        assert!(thread.poller.is_worth_polling(thread.now));
        thread.now += POLL * (LATE - 1);
        thread.poller.worked(1, 100, || thread.now);
        assert!(thread.wait(1, 100, POLL / 2));
    }
}

proptest! {
    /// However work comes, what is polled in vain is bounded by what is polled with success.
    #[test]
    fn polling_in_vain_is_bounded(
        waits in prop::collection::vec((1usize..30, 0u64..40_000, 0u64..400), 1..2000),
    ) {
        let mut thread = Thread::new(POLL);
        let mut hits = 0;
        for (frames, bytes, wait) in &waits {
            let [before, _] = thread.polled;
            thread.wait(*frames, *bytes, Duration::from_micros(*wait));
            hits += u32::from(thread.polled[0] > before);
        }
        // Each spell of polling begins after some short waits, and ends after as many vain ones as its score has.
        let spells = u32::try_from(waits.len()).unwrap() / u32::from(REST_MIN) + 1;
        let vain = hits * u32::from(HIT) + spells * u32::from(SCORE_MAX) + 1;
        prop_assert!(thread.polled[1] <= POLL * vain, "{:?} {hits}", thread.polled);
    }

    #[test]
    fn a_wait_is_not_polled_for_longer_than_the_limit(waits in prop::collection::vec(0u64..400, 1..500)) {
        let mut thread = Thread::new(POLL);
        for wait in waits {
            let before = thread.polled;
            thread.wait(1, 100, Duration::from_micros(wait));
            for (after, before) in thread.polled.iter().zip(before) {
                prop_assert!(*after - before <= POLL);
            }
        }
    }
}
