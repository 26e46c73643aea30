//! When a worker polls before it sleeps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use datapath::Config;
use port::{Armed, Broken, Budget, Ingress, IngressWrapper, Received};
use port_testing::Sender;

use crate::common::{frame, wait_until};
use crate::receiver::Receiver;
use crate::{Plugged, Switch, plain, plug, refresh};

/// What a worker did with a queue.
#[derive(Clone, Default)]
struct Counts {
    polls: Arc<AtomicUsize>,
    /// The most polls between two turns.
    most_polls: Arc<AtomicUsize>,
    turns: Arc<AtomicUsize>,
    armed: Arc<AtomicUsize>,
}

impl Counts {
    /// Turns, and how often the queue was armed.
    fn read(&self) -> [usize; 2] {
        [&self.turns, &self.armed].map(|count| count.load(Ordering::Relaxed))
    }
}

struct Counting {
    inner: Box<dyn Ingress>,
    counts: Counts,
    /// Polls since the last turn.
    polls: usize,
}

impl IngressWrapper for Counting {
    port::wraps!(inner: Ingress);

    fn has_work(&mut self) -> bool {
        self.counts.polls.fetch_add(1, Ordering::Relaxed);
        self.polls += 1;
        self.counts.most_polls.fetch_max(self.polls, Ordering::Relaxed);
        self.inner.has_work()
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.counts.turns.fetch_add(1, Ordering::Relaxed);
        self.polls = 0;
        self.inner.receive(budget, received)
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        self.counts.armed.fetch_add(1, Ordering::Relaxed);
        self.inner.arm()
    }
}

/// Two ports whose worker is watched.
struct Pair {
    ends: [Plugged<Receiver>; 2],
    counts: Counts,
    sent: usize,
    switch: Switch,
}

impl Pair {
    fn new(poll: Duration) -> Self {
        let switch = Switch::with(&Config { poll, ..Config::default() });
        let counts = Counts::default();
        let ends = [0, 1].map(|n| {
            let (sender, inner) = Sender::new();
            let counting = Counting { inner, counts: counts.clone(), polls: 0 };
            plug(&switch.datapath, n, (sender, Box::new(counting)), Receiver::new())
        });
        Self { ends, counts, sent: 0, switch }
    }

    /// Sends a frame the other way than the one before, and waits until it has come.
    fn send(&mut self, len: usize) {
        let [from, to] = [self.sent % 2, (self.sent + 1) % 2].map(|n| &self.ends[n]);
        let sent = u32::try_from(self.sent).unwrap();
        self.sent += 1;
        from.sender.send(frame(to.mac, from.mac, len, sent));
        let began = Instant::now();
        while to.egress.count() == 0 && began.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        wait_until("a frame", || to.egress.count() > 0);
        to.egress.take();
    }
}

/// A limit that is not missed on a machine with other work.
const LONG: Duration = Duration::from_millis(5);

#[test]
fn round_trips_are_polled() {
    let mut pair = Pair::new(LONG);
    wait_until("fifty frames without sleep", || {
        let [_, before] = pair.counts.read();
        (0..50).for_each(|_| pair.send(100));
        pair.counts.read()[1] == before
    });
}

#[test]
fn between_turns_a_polling_worker_only_polls() {
    wait_until("polls without a turn", || {
        // Another worker each time: one that shares its CPU has a turn for each yield that another thread takes, and may stay there.
        let mut pair = Pair::new(LONG);
        (0..20).for_each(|_| pair.send(100));
        let has_polled = pair.counts.most_polls.load(Ordering::Relaxed) >= 4;
        if !has_polled && are_yields_taken() {
            eprintln!("skipped: others take each CPU that is yielded");
            return true;
        }
        has_polled
    });
}

/// Whether other threads take nearly every CPU that is yielded, just now. Then no worker only polls.
fn are_yields_taken() -> bool {
    let mut yields = poller::Yields::default();
    (0..100).filter(|_| yields.after_poll(Instant::now())).count() > 50
}

#[test]
fn bulk_is_not_polled() {
    let mut pair = Pair::new(LONG);
    (0..100).for_each(|_| pair.send(100));
    let [_, before] = pair.counts.read();
    for _ in 0..200 {
        pair.send(40_000);
        // The worker finds that there is no more.
        std::thread::sleep(LONG / 3);
    }
    let armed = pair.counts.read()[1] - before;
    assert!(armed > 100, "{armed}");
}

#[test]
fn a_frame_now_and_then_is_not_polled_for() {
    let mut pair = Pair::new(Duration::from_micros(50));
    wait_until("the worker's sleep", || pair.counts.read()[1] > 0);
    let [before, _] = pair.counts.read();
    for _ in 0..200 {
        pair.send(100);
        std::thread::sleep(Duration::from_millis(1));
    }
    let turns = pair.counts.read()[0] - before;
    assert!(turns < 2000, "{turns}");
}

/// A guest has the worker poll for its next frame, which never comes. The queues of others sleep meanwhile, and their frames, and commands, are heard by
/// polls for events: nobody waits for the end of the poll, here one that lasts longer than the test.
#[test]
fn a_guest_for_which_a_worker_polls_in_vain_delays_no_neighbour() {
    const POLL: Duration = Duration::from_secs(60);
    const LATE: Duration = Duration::from_secs(5);
    let mut pair = Pair::new(POLL);
    // Each sends once: a queue that has sent is polled too.
    let silent: Vec<_> = (2..8).map(|n| plain(&pair.switch.datapath, n)).collect();
    let blue = plain(&pair.switch.datapath, 8);
    refresh(&pair.switch.datapath);
    for (n, red) in (1..).zip(&silent) {
        (0..20).for_each(|_| pair.send(100));
        let [_, armed] = pair.counts.read();
        // One that shares its CPU with this thread has turns in place of polls.
        let polls = || pair.counts.polls.load(Ordering::Relaxed) + pair.counts.read()[0];
        let before = polls();
        wait_until("polls", || polls() > before + 100);
        let began = Instant::now();
        red.sender.send(frame(blue.mac, red.mac, 100, n));
        wait_until("red's frame", || blue.egress.count() == n as usize);
        pair.switch.datapath.synchronise(red.port.id());
        assert!(began.elapsed() < LATE, "{:?}", began.elapsed());
        assert_eq!(pair.counts.read()[1], armed, "the worker slept, and did not poll");
    }
}

#[test]
fn no_frame_is_forgotten_between_polling_and_sleep() {
    let mut pair = Pair::new(Duration::from_micros(30));
    let mut pause = 0x9e37_79b9_u32;
    for _ in 0..3000 {
        // The 60 µs around the limit, in an order that does not repeat.
        pause = pause.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let end = Instant::now() + Duration::from_micros((pause >> 26).into());
        while Instant::now() < end {
            std::hint::spin_loop();
        }
        pair.send(100);
    }
}

/// A worker for a CPU of its own.
#[test]
fn a_worker_that_always_polls_arms_no_queue_and_sleeps_without_one() {
    let switch = Switch::with(&Config { always_poll: true, ..Config::default() });
    let asleep = || switch.datapath.loads()[0].times.asleep;
    wait_until("sleep before there is a queue", || asleep() > LONG);
    let counts = Counts::default();
    let ends = [0, 1].map(|n| {
        let (sender, inner) = Sender::new();
        let counting = Counting { inner, counts: counts.clone(), polls: 0 };
        plug(&switch.datapath, n, (sender, Box::new(counting)), Receiver::new())
    });
    let before = asleep();
    for n in 0..20 {
        // Long enough for any other worker to fall asleep.
        std::thread::sleep(LONG);
        ends[0].sender.send(frame(ends[1].mac, ends[0].mac, 100, n));
        wait_until("a frame", || ends[1].egress.count() == n as usize + 1);
    }
    assert_eq!((asleep() - before, counts.read()[1]), (Duration::ZERO, 0));
    ends.iter().for_each(|end| switch.datapath.detach(end.port.id()));
    wait_until("sleep after the last queue", || asleep() > before);
}

/// Frames that wait for room, while nothing sleeps.
#[test]
fn a_worker_that_always_polls_hears_of_room() {
    let switch = Switch::with(&Config { always_poll: true, ..Config::default() });
    let red = plug(&switch.datapath, 0, Sender::new(), Receiver::new());
    let blue = plug(&switch.datapath, 1, Sender::new(), Receiver::with_room(0));
    for n in 0..8 {
        red.sender.send(frame(blue.mac, red.mac, 100, n));
        std::thread::sleep(LONG);
        blue.egress.make_room(1);
        wait_until("a frame", || blue.egress.count() == n as usize + 1);
    }
}
