//! Each queue has its share of a worker, however much work its frames are.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use datapath::PortMemory;
use port::{Armed, Broken, Doorbell, Egress, Event, Outcome, Task};
use port_testing::{FakeEgress, Sender};

use crate::common::{frame, wait_until};
use crate::parts::to_be_cut;
use crate::{ALL, Receiver, Switch, attach, lockstep, mac, plain, plug};

/// What a delivery to a slow port takes.
const WORK: Duration = Duration::from_micros(500);

/// An egress queue at which each frame takes a while, and the number of frames that it took.
fn laborious() -> (Arc<AtomicUsize>, Box<dyn Egress>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    let egress = FakeEgress::new(move |_, _| {
        std::thread::sleep(WORK);
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(Outcome::Delivered)
    });
    (count, Box::new(egress))
}

#[test]
fn frames_that_are_much_work_do_not_take_the_turns_of_others() {
    const FRAMES: u32 = 20_000;
    let (datapath, mut worker) = lockstep();
    let (count, egress) = laborious();
    let (mut left, taken) = (FRAMES, Arc::new(AtomicUsize::new(usize::MAX)));
    let at_the_end = taken.clone();
    let light = FakeEgress::new(move |_, _| {
        left -= 1;
        if left == 0 {
            at_the_end.store(count.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        Ok(Outcome::Delivered)
    });
    let add = |n, egress: Box<dyn Egress>| {
        attach(&datapath, n, PortMemory::default(), Sender::new(), ((), egress))
    };
    let (red, heavy) = (add(0, Receiver::new().1), add(2, Receiver::new().1));
    let (blue, slow) = (add(1, Box::new(light)), add(3, egress));
    worker.run();
    (0..3000).for_each(|n| heavy.sender.send(frame(slow.mac, heavy.mac, 100, n)));
    (0..FRAMES).for_each(|n| red.sender.send(frame(blue.mac, red.mac, 100, n)));
    wait_until("all frames", || worker.run() && taken.load(Ordering::Relaxed) != usize::MAX);
    // More than 300 windows. With a turn for each queue in each round, all of the other frames would be delivered before the last one.
    let taken = taken.load(Ordering::Relaxed);
    assert!(taken < 1500, "{taken}");
}

/// Frames of as many packets as a Xen guest's ring can hold are one turn, and the lock of the port is released between them. Each takes longer than a turn.
#[test]
fn the_frames_of_a_whole_ring_are_answered_together() {
    let (datapath, mut worker) = lockstep();
    let sender = Sender::new();
    let (of_sender, answers) = (sender.0.clone(), Arc::new(Mutex::new(Vec::new())));
    let before_each = answers.clone();
    let egress = FakeEgress::new(move |_, _| {
        before_each.lock().unwrap().push(of_sender.answers().len());
        std::thread::sleep(WORK);
        Ok(Outcome::Delivered)
    });
    let calls = egress.log();
    let heavy = attach(&datapath, 0, PortMemory::default(), sender, Receiver::new());
    let egress: Box<dyn Egress> = Box::new(egress);
    let slow = attach(&datapath, 1, PortMemory::default(), Sender::new(), ((), egress));
    assert!(worker.run());
    // The longest frame of a Xen guest is 45 packets.
    (0..45).for_each(|n| heavy.sender.send(to_be_cut(slow.mac, heavy.mac, 45, n)));
    assert!(worker.run());
    let answers = answers.lock().unwrap();
    let turns: Vec<usize> = answers.chunk_by(|one, next| one == next).map(<[_]>::len).collect();
    assert_eq!(turns, [18, 18, 9]);
    let calls: Vec<usize> = calls.lock().unwrap().calls.iter().map(Vec::len).collect();
    assert_eq!(calls, [6, 6, 6, 6, 6, 6, 6, 3]);
}

#[test]
fn a_turn_of_floods_ends() {
    let switch = Switch::new(1);
    let (red, blue) = (plain(&switch.datapath, 0), plain(&switch.datapath, 1));
    let loud = plain(&switch.datapath, 2);
    let listeners: Vec<_> =
        (10..42).map(|n| plug(&switch.datapath, n, Sender::new(), laborious())).collect();
    let heard = || -> usize {
        listeners.iter().map(|listener| listener.egress.load(Ordering::Relaxed)).sum()
    };
    (0..300).for_each(|n| loud.sender.send(frame(ALL, loud.mac, 100, n)));
    wait_until("the first of them", || heard() > 0);
    let before = heard();
    red.sender.send(frame(mac(1), red.mac, 100, 0));
    wait_until("a frame", || blue.egress.take().iter().any(|bytes| bytes[..6] == mac(1)));
    // Not the 64 x 32 copies of a whole window.
    let copies = heard() - before;
    assert!(copies <= 1000, "{copies}");
}

/// A task that never runs out of work.
struct Endless {
    doorbell: Arc<Doorbell>,
    steps: Arc<AtomicUsize>,
}

impl Task for Endless {
    fn event(&self) -> Arc<dyn Event> {
        self.doorbell.clone()
    }

    fn step(&mut self) -> Result<bool, Broken> {
        std::thread::sleep(WORK);
        self.steps.fetch_add(1, Ordering::Relaxed);
        // Its guest also sends events without end.
        self.doorbell.ring();
        Ok(true)
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        Ok(Armed::Ready)
    }
}

#[test]
fn a_task_has_a_tenth_of_its_worker() {
    let switch = Switch::new(1);
    let steps = Arc::new(AtomicUsize::new(0));
    let task = Endless { doorbell: Arc::new(Doorbell::new().unwrap()), steps: steps.clone() };
    let began = Instant::now();
    switch.datapath.attach("busy", Vec::new(), vec![Box::new(task)]);
    wait_until("some steps", || steps.load(Ordering::Relaxed) >= 20);
    // Each step takes at least as long as its work, and is followed by nine times that.
    assert!(began.elapsed() >= 19 * 10 * WORK);
}

#[test]
fn events_without_work_let_their_queue_rest() {
    let switch = Switch::new(1);
    let (storm, blue) = (plain(&switch.datapath, 0), plain(&switch.datapath, 1));
    let ring_for = |time: Duration| {
        let (began, turns) = (Instant::now(), storm.sender.turns());
        while began.elapsed() < time {
            storm.sender.doorbell().ring();
        }
        (began.elapsed().as_millis(), storm.sender.turns() - turns)
    };
    let (ms, turns) = ring_for(Duration::from_millis(300));
    assert!(u128::from(turns) <= 100 + 3 * ms, "{turns} polls in {ms} ms");
    // A frame that comes while it rests is late, not lost.
    storm.sender.send(frame(blue.mac, storm.mac, 100, 0));
    wait_until("the frame", || blue.egress.count() == 1);
    // Frames between the events make up for them, and each is carried.
    for n in 1..=100 {
        ring_for(Duration::from_micros(100));
        storm.sender.send(frame(blue.mac, storm.mac, 100, n));
    }
    wait_until("all frames", || blue.egress.count() == 101);
}
