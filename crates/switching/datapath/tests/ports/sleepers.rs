//! A port whose memory makes a worker sleep: a page fault in a hole waits until all of the hole is made, here in a gigabyte.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::cpus::CpuList;
use datapath::{Config, Sleep};
use port::{Broken, Egress, Outcome, Queue};
use port_testing::{FakeEgress, Sender};
use rustix::fs::{FallocateFlags, fallocate};
use shm::{PageSize, Region, create_memfd};

use crate::common::{frame, wait_until};
use crate::cpus::cpus_of;
use crate::receiver::Receiver;
use crate::{Plugged, Switch, plain, plug, refresh};

const PAGE: usize = 4096;
const LEN: usize = 1 << 30;
/// How often a test tries: a hole may be ready before a busy machine has run the others.
const TRIES: u32 = 8;
/// How long a try waits to hear that a worker sleeps: none may have been found before the hole was made.
const LIMIT: Duration = Duration::from_secs(5);

/// Memory in which holes are made.
struct Memory {
    file: std::os::fd::OwnedFd,
    region: Region,
    is_punching: AtomicBool,
}

impl Memory {
    fn new() -> Arc<Self> {
        let file = create_memfd("hole", LEN / PAGE, PageSize::Small).unwrap();
        let region = Region::map(&file, 0, LEN).unwrap();
        Arc::new(Self { file, region, is_punching: AtomicBool::new(false) })
    }

    /// Runs `meanwhile` while the memory becomes one hole, in which a worker sleeps by then. Returns whether that had ended before the
    /// hole was made.
    fn punch(&self, sleep: impl FnOnce(), meanwhile: impl FnOnce()) -> bool {
        (0..LEN / PAGE).for_each(|page| self.region.write(page * PAGE, 1u8).unwrap());
        self.is_punching.store(true, Ordering::SeqCst);
        sleep();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, flags, 0, LEN as u64).unwrap();
                self.is_punching.store(false, Ordering::SeqCst);
            });
            meanwhile();
            self.is_punching.load(Ordering::SeqCst)
        })
    }

    /// Touches page after page until the hole is made: in one of them, this sleeps.
    fn touch(&self) {
        for page in (0..LEN / PAGE).cycle() {
            if !self.is_punching.load(Ordering::SeqCst) {
                return;
            }
            self.region.write(page * PAGE, 2u8).unwrap();
        }
    }
}

/// A port whose every frame is written to such memory.
fn hostile(switch: &Switch, n: u8, memory: &Arc<Memory>) -> Plugged<()> {
    let memory = memory.clone();
    let egress: Box<dyn Egress> = Box::new(FakeEgress::new(move |_, _| {
        memory.touch();
        Ok(Outcome::Delivered)
    }));
    plug(&switch.datapath, n, Sender::new(), ((), egress))
}

/// Tries until `attempt` succeeds.
fn assert_once(what: &str, attempt: impl FnMut() -> bool) {
    assert!(std::iter::repeat_with(attempt).take(TRIES as usize).any(|done| done), "{what}");
}

#[test]
fn neighbours_of_a_port_that_makes_a_worker_sleep_go_on() {
    let cpu = ::cpus::bound().unwrap().iter().last().unwrap();
    let switch = Switch::with(&Config { cpus: vec![cpu], ..Config::default() });
    let first = switch.datapath.worker_threads();
    let memory = Memory::new();
    let sleeps = Arc::<Mutex<Vec<Sleep>>>::default();
    let seen = sleeps.clone();
    switch.datapath.on_sleep(Box::new(move |sleep| seen.lock().unwrap().push(sleep)));
    let bad = hostile(&switch, 0, &memory);
    let (peer, red, blue) =
        (plain(&switch.datapath, 1), plain(&switch.datapath, 2), plain(&switch.datapath, 3));
    refresh(&switch.datapath);
    let mut n = 0;
    assert_once("blue had its frames only when the hole was made", || {
        n += 1;
        memory.punch(
            || peer.sender.send(frame(bad.mac, peer.mac, 100, n)),
            || {
                // Until the worker is in its turn with it.
                wait_until("its turn", || peer.sender.turns() > 0);
                red.sender.send(frame(blue.mac, red.mac, 100, n));
                // Nobody waits for the queue in which the other thread sleeps, either.
                red.sender.send(frame(bad.mac, red.mac, 100, n));
                red.sender.send(frame(blue.mac, red.mac, 100, n));
                wait_until("blue's frames", || blue.egress.count() == 2 * n as usize);
            },
        )
    });
    let sleep = sleeps.lock().unwrap().iter().find(|sleep| sleep.is_replaced).cloned().unwrap();
    let name =
        |port: &Option<Arc<datapath::Port>>| port.as_ref().map(|port| port.name().to_owned());
    assert_eq!(name(&sleep.from).as_deref(), Some("port1"));
    assert_eq!(name(&sleep.to).as_deref(), Some("port0"));
    let next = switch.datapath.worker_threads();
    assert_ne!(first, next);
    assert_eq!(cpus_of(next[0]), CpuList::from_iter([cpu]), "it has the CPU of the first one");
    // The queue of the turn goes on with the new thread.
    for n in 0..100 {
        peer.sender.send(frame(blue.mac, peer.mac, 100, n));
    }
    wait_until("the peer's frames", || blue.egress.count() == 2 * n as usize + 100);
    wait_until("the peer's answers", || peer.sender.answers().len() == n as usize + 100);
}

/// A worker that is found asleep while the port leaves is found asleep in that port: whoever closes the port does not wait for the queue's lock.
#[test]
fn a_port_is_detached_while_a_worker_sleeps_in_its_memory() {
    assert_once("it was detached only when the hole was made, or before a worker slept", || {
        let switch = Switch::new(1);
        let memory = Memory::new();
        let (sender, sleeps) = std::sync::mpsc::channel();
        switch.datapath.on_sleep(Box::new(move |sleep| drop(sender.send(sleep))));
        let bad = hostile(&switch, 0, &memory);
        let peer = plain(&switch.datapath, 1);
        let in_time = memory.punch(
            || peer.sender.send(frame(bad.mac, peer.mac, 100, 0)),
            || {
                wait_until("its turn", || peer.sender.turns() > 0);
                switch.datapath.detach(bad.port.id());
                switch.datapath.detach(peer.port.id());
            },
        );
        let is_it = |port: &Arc<datapath::Port>| Arc::ptr_eq(port, &bad.port);
        in_time
            && sleeps.try_iter().any(|sleep| sleep.has_left && sleep.to.as_ref().is_some_and(is_it))
    });
}

#[test]
fn another_queue_takes_the_place_of_one_in_whose_turn_a_worker_sleeps() {
    let mut old_answers = 0;
    assert_once("the other queue's frames came only when the hole was made", || {
        let switch = Switch::new(1);
        let memory = Memory::new();
        let (sender, sleeps) = std::sync::mpsc::channel();
        switch.datapath.on_sleep(Box::new(move |sleep| drop(sender.send(sleep))));
        let bad = hostile(&switch, 0, &memory);
        let (wire, blue) = (plain(&switch.datapath, 1), plain(&switch.datapath, 2));
        let (other, ingress) = Sender::new();
        (0..10).for_each(|n| other.send(frame(blue.mac, wire.mac, 100, n)));
        let mut slept = false;
        let in_time = memory.punch(
            || wire.sender.send(frame(bad.mac, wire.mac, 100, 0)),
            || {
                let Ok(sleep) = sleeps.recv_timeout(LIMIT) else { return };
                slept = true;
                assert_eq!(sleep.queue, Some(0));
                let port = sleep.from.unwrap();
                switch.datapath.replace_sleeping_ingress(&port, 0, ingress, None);
                // It is not needed twice.
                switch.datapath.replace_sleeping_ingress(&port, 0, Sender::new().1, None);
                wait_until("its frames", || blue.egress.count() == 10);
            },
        );
        if !slept {
            return false;
        }
        // The thread that slept has ended with the queue that it had.
        wire.sender.send(frame(blue.mac, wire.mac, 100, 10));
        switch.datapath.synchronise(wire.port.id());
        other.send(frame(blue.mac, wire.mac, 100, 11));
        wait_until("the last frame", || blue.egress.count() == 11);
        old_answers += wire.sender.answers().len();
        in_time
    });
}

#[test]
fn frames_for_a_port_that_is_suspended_wait_for_its_next_queues() {
    const FRAMES: u32 = 20;
    let switch = Switch::new(1);
    let (red, blue) = (plain(&switch.datapath, 0), plain(&switch.datapath, 1));
    let send = |n| red.sender.send(frame(blue.mac, red.mac, 100, n));
    (0..FRAMES).for_each(send);
    wait_until("the first frames", || blue.egress.count() == FRAMES as usize);
    switch.datapath.suspend_port(&blue.port);
    (0..FRAMES).for_each(send);
    switch.datapath.synchronise(red.port.id());
    let (receiver, egress) = Receiver::new();
    let (sender, ingress) = Sender::new();
    assert!(!switch.datapath.resume_port(&blue.port, Vec::new(), None), "it has one queue");
    assert!(switch.datapath.resume_port(&blue.port, vec![Queue { ingress, egress }], None));
    sender.send(frame(red.mac, blue.mac, 100, 0));
    wait_until("those that waited", || receiver.count() == FRAMES as usize);
    wait_until("its own frame", || red.egress.count() == 1);
    assert_eq!(blue.egress.count(), FRAMES as usize);
    let outcomes = || red.sender.answers().into_iter().map(|(_, outcome)| outcome);
    wait_until("the answers", || outcomes().count() == 2 * FRAMES as usize);
    assert!(outcomes().all(|outcome| outcome == Outcome::Delivered));
    switch.datapath.suspend_port(&blue.port);
    switch.datapath.detach(blue.port.id());
    send(0);
    wait_until("the last answer", || outcomes().count() == 2 * FRAMES as usize + 1);
}

#[test]
fn what_a_sleeper_finds_broken_is_not_the_queue_in_its_place() {
    assert_once("nobody slept in time", || {
        let switch = Switch::new(1);
        let memory = Memory::new();
        let (sender, sleeps) = std::sync::mpsc::channel();
        switch.datapath.on_sleep(Box::new(move |sleep| drop(sender.send(sleep))));
        let touched = memory.clone();
        // Its memory is gone when it wakes up.
        let egress: Box<dyn Egress> = Box::new(FakeEgress::new(move |_, _| {
            touched.touch();
            Err(Broken::new("no memory"))
        }));
        let honest = plug(&switch.datapath, 0, Sender::new(), ((), egress));
        let (red, blue) = (plain(&switch.datapath, 1), plain(&switch.datapath, 2));
        let (receiver, egress) = Receiver::new();
        let ingress = Sender::new().1;
        let mut slept = false;
        let in_time = memory.punch(
            || red.sender.send(frame(honest.mac, red.mac, 100, 0)),
            || {
                slept = sleeps.recv_timeout(LIMIT).is_ok();
                if !slept {
                    return;
                }
                switch.datapath.suspend_port(&honest.port);
                let queues = vec![Queue { ingress, egress }];
                assert!(switch.datapath.resume_port(&honest.port, queues, None));
                blue.sender.send(frame(honest.mac, blue.mac, 100, 1));
                wait_until("blue's frame", || receiver.count() == 1);
            },
        );
        if !slept {
            return false;
        }
        wait_until("the end of its turn", || red.sender.answers().len() == 1);
        red.sender.send(frame(honest.mac, red.mac, 100, 2));
        wait_until("red's frame", || receiver.count() == 2);
        assert!(!honest.port.has_failed());
        in_time
    });
}
