//! A port whose memory makes a worker sleep: a page fault in a hole waits until all of the hole is made, here in a gigabyte.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::cpus::CpuList;
use datapath::{Cause, Config, Datapath, MemorySleep, PortMemory, Sleep, Workers};
use hypervisor::Hypervisor;
use port::{Broken, Egress, Outcome, Queue};
use port_testing::{FakeEgress, Sender, Sent};
use rustix::fs::{FallocateFlags, fallocate};
use shm::{PageSize, Region, create_memfd};
use switch::MacAddr;

use crate::common::{Guest, Host, frame, receive, send, wait_until};
use crate::memory::Lends;
use crate::placement::cpus_of;
use crate::receiver::Receiver;
use crate::{Plugged, Switch, plain, plug, plug_with, refresh};

const PAGE: usize = 4096;
const LEN: usize = 1 << 30;
/// How often a test tries: a hole may be ready before a busy machine has run the others.
const TRIES: u32 = 8;
/// How long a try waits to hear that a worker sleeps: none may have been found before the hole was made.
const LIMIT: Duration = Duration::from_secs(5);

/// Memory in which holes are made.
struct Memory {
    file: std::os::fd::OwnedFd,
    region: Arc<Region>,
    is_punching: AtomicBool,
}

impl Memory {
    fn new() -> Arc<Self> {
        Self::of(LEN)
    }

    fn of(len: usize) -> Arc<Self> {
        let file = create_memfd("hole", len / PAGE, PageSize::Small).unwrap();
        let region = Arc::new(Region::map(&file, 0, len).unwrap());
        Arc::new(Self { file, region, is_punching: AtomicBool::new(false) })
    }

    /// Runs `meanwhile` while the memory becomes one hole, in which a worker sleeps by then. Returns whether that had ended before the
    /// hole was made.
    fn punch(&self, sleep: impl FnOnce(), meanwhile: impl FnOnce()) -> bool {
        // The file gets its pages by one call: a fault for each would take longer than all else.
        fallocate(&self.file, FallocateFlags::empty(), 0, self.region.len() as u64).unwrap();
        self.is_punching.store(true, Ordering::SeqCst);
        sleep();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, flags, 0, self.region.len() as u64).unwrap();
                self.is_punching.store(false, Ordering::SeqCst);
            });
            meanwhile();
            self.is_punching.load(Ordering::SeqCst)
        })
    }

    /// Touches page after page until the hole is made: in one of them, this sleeps.
    fn touch(&self) {
        for page in (0..self.region.len() / PAGE).cycle() {
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

/// Memory in which a thread can sleep, of a port whose queues are replaced then.
const CAN_SLEEP: PortMemory =
    PortMemory { sleep: MemorySleep::AtWill, is_replaceable: true, borrows: false };
/// An uplink with queues for single guests.
const BORROWS: PortMemory =
    PortMemory { sleep: MemorySleep::Swapped, is_replaceable: true, borrows: true };
/// The addresses of the guests.
const GUESTS: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 0xa], [2, 0, 0, 0, 0, 0xb]];

/// A port whose every frame is read from such memory, and written to it.
fn hostile_guest(
    datapath: &Datapath,
    n: u8,
    port_memory: PortMemory,
    memory: &Arc<Memory>,
) -> Plugged<()> {
    let (sender, inner) = Sender::new();
    let regions = [memory.region.slice(0..memory.region.len()).unwrap()].into();
    let touched = memory.clone();
    let egress: Box<dyn Egress> = Box::new(FakeEgress::new(move |_, _| {
        touched.touch();
        Ok(Outcome::Delivered)
    }));
    let ingress = Box::new(Lends { inner, regions });
    plug_with(datapath, n, port_memory, (sender, ingress), ((), egress))
}

/// Ports whose queues nobody can replace: the interface of a domain, that of a process guest, and one of neither.
struct Neighbours {
    vif: Guest,
    process: Guest<machine::Machine>,
    other: Plugged<Receiver>,
}

impl Neighbours {
    fn new(host: &Host) -> Self {
        let config = netfront::Config::default();
        let vif = host.guest("02:00:00:00:00:0a", config);
        let process = host.guest_on(&host.machine, "02:00:00:00:00:0b", config);
        for (port, mac) in [&vif.port, &process.port].into_iter().zip(GUESTS) {
            host.datapath.teach(port.id(), MacAddr(mac)).unwrap();
        }
        Self { vif, process, other: plain(&host.datapath, 2) }
    }

    fn macs(&self) -> [[u8; 6]; 3] {
        [GUESTS[0], GUESTS[1], self.other.mac]
    }

    /// Each sends a frame there.
    fn send(&mut self, to: [u8; 6], n: u32) {
        let [vif, process, other] = self.macs().map(|mac| frame(to, mac, 1000, n));
        wait_until("room", || send(&mut self.vif.queues[0], &vif));
        wait_until("room", || send(&mut self.process.queues[0], &process));
        self.other.sender.send(other);
    }

    /// Waits until each has this frame, among others.
    fn wait_for(&mut self, from: [u8; 6], n: u32) {
        fn has<H: Hypervisor>(guest: &mut Guest<H>, sought: &[u8]) -> bool {
            std::iter::from_fn(|| receive(&mut guest.queues[0])).any(|got| got == sought)
        }
        let [vif, process, other] = self.macs().map(|mac| frame(mac, from, 1000, n));
        wait_until("the domain's frame", || has(&mut self.vif, &vif));
        wait_until("the process guest's frame", || has(&mut self.process, &process));
        wait_until("the other's frame", || self.other.egress.take().contains(&other));
    }
}

/// Waits until a worker sleeps; `attempt` is called until then. Returns whether one did while the hole was made.
fn sleeps(memory: &Memory, heard: &std::sync::mpsc::Receiver<Sleep>, attempt: impl Fn()) -> bool {
    while memory.is_punching.load(Ordering::SeqCst) {
        attempt();
        if heard.recv_timeout(Duration::from_millis(1)).is_ok_and(|sleep| sleep.is_replaced) {
            return true;
        }
    }
    false
}

/// A host of one worker with such a guest on it, and who hears of sleeps.
fn beside_hostile_guest(
    workers: usize,
    port_memory: PortMemory,
) -> (Host, Neighbours, Plugged<()>, Arc<Memory>, std::sync::mpsc::Receiver<Sleep>) {
    let host = Host::new(workers, 1);
    let (sender, heard) = std::sync::mpsc::channel();
    host.datapath.on_sleep(Box::new(move |sleep| drop(sender.send(sleep))));
    let (memory, neighbours) = (Memory::new(), Neighbours::new(&host));
    let bad = hostile_guest(&host.datapath, 0, port_memory, &memory);
    refresh(&host.datapath);
    (host, neighbours, bad, memory, heard)
}

/// The worker holds nothing of a frame's receiver while it reads the frame.
#[test]
fn receivers_of_a_port_whose_memory_sleeps_get_the_frames_of_others() {
    receivers_get_the_frames_of_others(CAN_SLEEP, Sent::from);
}

/// An uplink's queue for one guest reads into this guest's buffers, and the switch may send such a frame to somebody else.
#[test]
fn so_do_receivers_of_frames_in_buffers_that_another_port_lent() {
    receivers_get_the_frames_of_others(BORROWS, |bytes| {
        let mut sent = Sent::from(bytes);
        sent.frame.lent.lender = u64::MAX;
        sent.frame.lent.tokens.push(0);
        sent
    });
}

fn receivers_get_the_frames_of_others(port_memory: PortMemory, sent: fn(Vec<u8>) -> Sent) {
    assert_once("they had them only when the hole was made", || {
        let (host, mut neighbours, bad, memory, heard) = beside_hostile_guest(1, port_memory);
        let blue = plain(&host.datapath, 1);
        refresh(&host.datapath);
        let macs = neighbours.macs();
        let mut slept = false;
        let in_time = memory.punch(
            || {},
            || {
                let send = |mac: &_| bad.sender.send(sent(frame(*mac, bad.mac, 1000, 0)));
                let all = || macs.iter().for_each(send);
                slept = sleeps(&memory, &heard, all);
                for n in (1..4).filter(|_| slept) {
                    macs.iter().for_each(|mac| blue.sender.send(frame(*mac, blue.mac, 1000, n)));
                    neighbours.wait_for(blue.mac, n);
                    neighbours.send(blue.mac, n);
                    wait_until("their own frames", || blue.egress.count() == 3 * n as usize);
                }
            },
        );
        slept && in_time
    });
}

/// The worker holds nothing of a frame's sender while it writes the frame.
#[test]
fn senders_to_a_port_whose_memory_sleeps_are_carried_on() {
    assert_once("their frames went only when the hole was made", || {
        let (host, neighbours, bad, memory, heard) = beside_hostile_guest(1, CAN_SLEEP);
        let neighbours = RefCell::new(neighbours);
        let blue = plain(&host.datapath, 1);
        refresh(&host.datapath);
        let mut slept = false;
        let in_time = memory.punch(
            || neighbours.borrow_mut().send(bad.mac, 0),
            || {
                slept = sleeps(&memory, &heard, || {});
                for n in (1..4).filter(|_| slept) {
                    neighbours.borrow_mut().send(bad.mac, n);
                    neighbours.borrow_mut().send(blue.mac, n);
                    wait_until("their frames", || blue.egress.count() == 3 * n as usize);
                }
            },
        );
        slept && in_time
    });
}

/// Such frames are carried by the port's worker only: with one of its own, no other worker ever sleeps.
#[test]
fn a_port_with_a_worker_of_its_own_makes_no_other_one_sleep() {
    assert_once("nobody slept while the hole was made", || {
        let (host, mut neighbours, bad, memory, heard) = beside_hostile_guest(2, CAN_SLEEP);
        let macs = neighbours.macs();
        host.datapath.place(&bad.port, Workers::Own).unwrap();
        let own = host.datapath.loads().iter().position(|worker| {
            worker.queues.iter().any(|queue| Arc::ptr_eq(&queue.port, &bad.port))
        });
        let before = host.datapath.worker_threads();
        let mut slept = false;
        memory.punch(
            || neighbours.send(bad.mac, 0),
            || {
                slept = sleeps(&memory, &heard, || {
                    macs.iter().for_each(|mac| {
                        bad.sender.send(frame(*mac, bad.mac, 1000, 0));
                    });
                });
            },
        );
        let after = host.datapath.worker_threads();
        for (number, (before, after)) in before.iter().zip(&after).enumerate() {
            assert!(Some(number) == own || before == after, "worker {number} slept");
        }
        slept
    });
}

/// Of two ports whose frames a thread has in hand, nobody knows who made it sleep, unless one of them is suspect.
#[test]
fn a_sleep_beside_a_suspect_says_whose_memory_it_is() {
    /// Who is suspect, what sends, and what is said.
    struct Case {
        suspect: Option<&'static str>,
        from: &'static str,
        said: (&'static str, Option<&'static str>, bool),
    }
    let case = |suspect, from, said| Case { suspect, from, said };
    let cases = [
        case(None, "bad", ("bad", Some("good"), false)),
        case(Some("bad"), "bad", ("bad", None, false)),
        case(Some("good"), "bad", ("bad", None, false)),
        case(None, "good", ("good", Some("bad"), false)),
        case(Some("bad"), "good", ("bad", Some("bad"), false)),
        case(Some("good"), "good", ("good", Some("bad"), true)),
    ];
    for Case { suspect, from, said } in cases {
        assert_once("nobody slept in a hole", || {
            let switch = Switch::new(1);
            let (sender, heard) = std::sync::mpsc::channel();
            switch.datapath.on_sleep(Box::new(move |sleep| drop(sender.send(sleep))));
            let memory = Memory::of(LEN / 4);
            let bad = hostile_guest(&switch.datapath, 0, CAN_SLEEP, &memory);
            let good = plug_with(&switch.datapath, 1, CAN_SLEEP, Sender::new(), Receiver::new());
            refresh(&switch.datapath);
            bad.port.suspect(suspect == Some("bad"));
            good.port.suspect(suspect == Some("good"));
            let name = |port: &Arc<datapath::Port>| match Arc::ptr_eq(port, &bad.port) {
                true => "bad",
                false => "good",
            };
            let mut sleep = None;
            let send = || match from {
                "bad" => bad.sender.send(frame(good.mac, bad.mac, 1000, 0)),
                _ => good.sender.send(frame(bad.mac, good.mac, 1000, 0)),
            };
            memory.punch(
                || {},
                || {
                    while memory.is_punching.load(Ordering::SeqCst) && sleep.is_none() {
                        send();
                        let next = heard.recv_timeout(Duration::from_millis(1)).ok();
                        sleep = next.filter(|sleep| sleep.is_replaced);
                    }
                },
            );
            let Some(Sleep { from: Some(port), to, are_copies, cause, time, .. }) = sleep else {
                return false;
            };
            let found = (name(&port), to.as_ref().map(name), are_copies);
            assert_eq!(found, said, "{suspect:?} is suspect, {from} sends");
            assert!(time > Duration::ZERO);
            // Other tests of this process may have had the lock of its address space. A kernel without the names of its functions says nothing.
            let names = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
            cause == Cause::Hole || !names.contains(" shmem_fault\n")
        });
    }
}

/// The kernel computes for as long as a guest likes, too: it clears a page of a gigabyte, or wakes all who wait for an eventfd.
#[test]
fn neighbours_of_a_port_that_makes_a_worker_compute_go_on() {
    let switch = Switch::new(1);
    let (sender, heard) = std::sync::mpsc::channel();
    switch.datapath.on_sleep(Box::new(move |sleep| drop(sender.send(sleep))));
    let end = std::time::Instant::now() + LIMIT;
    let is_over = Arc::<AtomicBool>::default();
    let is_known = is_over.clone();
    let egress: Box<dyn Egress> = Box::new(FakeEgress::new(move |_, _| {
        while !is_known.load(Ordering::SeqCst) && std::time::Instant::now() < end {
            std::hint::spin_loop();
        }
        Ok(Outcome::Delivered)
    }));
    let bad = plug(&switch.datapath, 0, Sender::new(), ((), egress));
    let [red, blue] = [1, 2].map(|n| plain(&switch.datapath, n));
    refresh(&switch.datapath);
    let peer = plain(&switch.datapath, 3);
    peer.sender.send(frame(bad.mac, peer.mac, 100, 0));
    wait_until("its turn", || peer.sender.turns() > 0);
    red.sender.send(frame(blue.mac, red.mac, 100, 0));
    wait_until("blue's frame", || blue.egress.count() == 1);
    assert!(std::time::Instant::now() < end, "blue had it only when the turn was over");
    let sleep = heard.recv_timeout(LIMIT).unwrap();
    is_over.store(true, Ordering::SeqCst);
    assert!(sleep.is_replaced && sleep.cause == Cause::Unknown);
    assert!(sleep.to.is_some_and(|to| Arc::ptr_eq(&to, &bad.port)));
}

/// It computes without end, and in nobody's turn.
#[test]
fn a_worker_that_polls_without_work_is_not_replaced() {
    let switch = Switch::with(&Config { always_poll: true, ..Config::default() });
    let (sender, heard) = std::sync::mpsc::channel();
    switch.datapath.on_sleep(Box::new(move |sleep| drop(sender.send(sleep))));
    let red = plain(&switch.datapath, 1);
    let full = plug(&switch.datapath, 2, Sender::new(), Receiver::with_room(0));
    refresh(&switch.datapath);
    let first = switch.datapath.worker_threads();
    red.sender.send(frame(full.mac, red.mac, 100, 0));
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(switch.datapath.worker_threads(), first);
    assert!(heard.try_recv().is_err());
}

/// What a suspect's turns still have to deliver is not overtaken.
#[test]
fn frames_stay_in_order_when_a_port_is_no_suspect_any_more() {
    let switch = Switch::new(1);
    let red = plug_with(&switch.datapath, 0, CAN_SLEEP, Sender::new(), Receiver::new());
    let blue = plug_with(&switch.datapath, 1, CAN_SLEEP, Sender::new(), Receiver::with_room(0));
    refresh(&switch.datapath);
    let send = |numbers: std::ops::Range<u32>| {
        numbers.for_each(|n| red.sender.send(frame(blue.mac, red.mac, 100, n)));
    };
    blue.port.suspect(true);
    send(0..20);
    wait_until("they are on their way", || red.sender.answers().len() == 20);
    blue.port.suspect(false);
    blue.egress.make_room(usize::MAX);
    send(20..200);
    wait_until("all", || blue.egress.count() == 200);
    let expected: Vec<_> = (0..200).map(|n| frame(blue.mac, red.mac, 100, n)).collect();
    assert!(blue.egress.take() == expected);
}
