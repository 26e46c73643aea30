//! When a worker polls a port, and for how long.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use datapath::{MemorySleep, PortMemory};
use port::{
    Armed, Body, Broken, Budget, Doorbell, Event, Ingress, IngressWrapper, Outcomes, Received,
    Window,
};
use port_testing::Sender;
use shm::Region;

use crate::common::{frame, wait_until};
use crate::receiver::Receiver;
use crate::{Switch, plain, plug, plug_with};

/// An ingress side that has frames later, and says when.
struct Later {
    inner: Box<dyn Ingress>,
    /// How long after it is armed.
    delay: Arc<Mutex<Option<Duration>>>,
    /// How it says so.
    says: fn(Instant) -> Armed,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    /// When it was to be asked again.
    until: Vec<Instant>,
    /// When it was asked.
    asked: Vec<Instant>,
    /// Only its event wakes it.
    asleep: bool,
}

impl IngressWrapper for Later {
    port::wraps!(inner: Ingress);

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        let mut log = self.log.lock().unwrap();
        log.asked.push(Instant::now());
        log.asleep = false;
        drop(log);
        self.inner.receive(budget, received)
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        let mut log = self.log.lock().unwrap();
        let delay = self.delay.lock().unwrap().take();
        log.asleep = delay.is_none();
        let Some(delay) = delay else { return Ok(Armed::Asleep) };
        let due = Instant::now() + delay;
        log.until.push(due);
        Ok((self.says)(due))
    }
}

#[test]
fn until_an_instant_and_no_earlier_unless_its_event_comes() {
    waits_and_is_asked_again(Armed::Until, Duration::from_millis(200), PortMemory::default());
}

/// Longer than whoever rings a worker polls on after it has last seen it busy.
#[test]
fn past_an_instant_for_which_no_timer_is_set() {
    waits_and_is_asked_again(Armed::AsleepPast, Duration::from_millis(600), PortMemory::default());
}

/// The thread that rings does not watch the worker.
#[test]
fn past_an_instant_where_no_memory_lets_a_worker_sleep() {
    let memory = PortMemory { sleep: MemorySleep::Never, ..PortMemory::default() };
    waits_and_is_asked_again(Armed::AsleepPast, Duration::from_millis(600), memory);
}

fn waits_and_is_asked_again(says: fn(Instant) -> Armed, length: Duration, memory: PortMemory) {
    let switch = Switch::new(1);
    let delay = Arc::new(Mutex::new(None));
    let log = Arc::new(Mutex::new(Log::default()));
    let (sender, inner) = Sender::new();
    let later = Later { inner, delay: delay.clone(), says, log: log.clone() };
    let plug = |n, ingress| plug_with(&switch.datapath, n, memory, ingress, Receiver::new());
    let a = plug(0, (sender, Box::new(later)));
    // Another port keeps the worker busy meanwhile, which changes nothing.
    let b = plug(1, Sender::new());
    let arm = |length| {
        wait_until("the port's sleep", || log.lock().unwrap().asleep);
        *delay.lock().unwrap() = Some(length);
        a.sender.doorbell().ring();
        wait_until("the port's arming", || delay.lock().unwrap().is_none());
        *log.lock().unwrap().until.last().unwrap()
    };
    let asked_since = |instant: Instant| {
        let log = log.lock().unwrap();
        log.asked.iter().copied().filter(|asked| *asked > instant).collect::<Vec<_>>()
    };
    let mut lates = Vec::new();
    let in_time = |late: &Duration| *late < Duration::from_millis(50);
    for busy in [false, true, false, false, false] {
        if !busy && lates.iter().any(in_time) {
            continue;
        }
        let due = arm(length);
        let armed = due - length;
        while Instant::now() < due {
            if busy {
                b.sender.send(frame(a.mac, b.mac, 60, 0));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        wait_until("the poll when it is due", || !asked_since(armed).is_empty());
        let late = asked_since(armed)[0].checked_duration_since(due);
        let late = late.expect("not before it is due");
        assert!(late < 25 * length, "{late:?} late");
        if !busy {
            lates.push(late);
        }
        // Then it is asleep.
        wait_until("the port's sleep", || log.lock().unwrap().asleep);
        let polls = asked_since(armed).len();
        std::thread::sleep(length);
        assert_eq!(asked_since(armed).len(), polls);
    }
    // Once at least no other program came between.
    assert!(lates.iter().any(in_time), "{lates:?}");
    let length = Duration::from_secs(60);
    let due = arm(length);
    a.sender.send(frame(b.mac, a.mac, 60, 1));
    wait_until("a frame before that", || a.sender.answers().len() == 1);
    assert!(Instant::now() + length / 2 < due);
}

/// An ingress side that never has a frame, only malformed packets.
struct Malformed {
    window: Window,
    doorbell: Arc<Doorbell>,
    no_body: Arc<[Region]>,
    count: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Ingress for Malformed {
    fn event(&self) -> Arc<dyn Event> {
        self.doorbell.clone()
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        assert_eq!(*budget, Budget::TURN);
        while !budget.is_spent() && !self.stop.load(Ordering::Relaxed) {
            budget.charge(1, 0);
            received.malformed += 1;
            self.count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.no_body));
    }

    fn finish(&mut self, _: &Outcomes) {}

    fn arm(&mut self) -> Result<Armed, Broken> {
        Ok(Armed::Asleep)
    }
}

#[test]
fn a_port_with_nothing_but_malformed_packets_leaves_others_their_turn() {
    const FRAMES: u32 = 200;
    let switch = Switch::new(1);
    let (count, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let ingress = Box::new(Malformed {
        window: Window::new(),
        doorbell: Arc::new(Doorbell::new().unwrap()),
        no_body: Arc::new([]),
        count: count.clone(),
        stop: stop.clone(),
    });
    let bad = plug(&switch.datapath, 0, (Sender::new().0, ingress), Receiver::new());
    let (a, b) = (plain(&switch.datapath, 1), plain(&switch.datapath, 2));
    wait_until("malformed packets", || count.load(Ordering::Relaxed) > 10_000);
    let before = count.load(Ordering::Relaxed);
    // One by one: each waits for its worker's poll for events.
    for n in 0..FRAMES {
        a.sender.send(frame(b.mac, a.mac, 1000, n));
        while b.egress.count() <= n as usize {
            std::thread::yield_now();
        }
    }
    assert!(count.load(Ordering::Relaxed) > before, "both had turns");
    stop.store(true, Ordering::Relaxed);
    let dropped = || bad.port.counters().snapshot().dropped(port::DropReason::Malformed);
    wait_until("the count", || dropped() == count.load(Ordering::Relaxed));
    assert_eq!(bad.port.counters().snapshot().ingress_frames, 0);
}
