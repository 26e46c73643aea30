//! The two ends of a ring, side by side: the production code of the device, and a driver.

use std::sync::Arc;

use loom::sync::atomic::Ordering;
use loom::sync::mpsc::{Receiver, Sender, channel};
use loom::thread;
use shm::Region;
use virtqueue::{Buffer, Chain, GuestMemory, Layout, Options, Queue, Range, RingSetup, Single};

use crate::memory::{AT, Memory, SIZE};

/// A part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    DevicePublishBarrier,
    DeviceArmBarrier,
    DeviceFinalCheck,
    DriverPublishBarrier,
    DriverArmBarrier,
    DriverFinalCheck,
}

const STEPS: [Step; 6] = [
    Step::DevicePublishBarrier,
    Step::DeviceArmBarrier,
    Step::DeviceFinalCheck,
    Step::DriverPublishBarrier,
    Step::DriverArmBarrier,
    Step::DriverFinalCheck,
];

/// What is checked.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub layout: Layout,
    pub event_idx: bool,
    /// Chains that the driver offers while the device runs.
    pub chains: u16,
    /// Chains that the device needs at once: it puts back fewer, and waits for more.
    pub needs: u16,
    /// The device writes into the buffers. Otherwise it reads them.
    pub are_writable: bool,
    /// One used descriptor of a packed ring may stand for several.
    pub is_in_order: bool,
    /// The driver wants a notification when the last chain has come back that the device has, not at the next one.
    pub wants_last: bool,
    /// The device takes chains by `pop_singles`, not by `pop`.
    pub takes_singles: bool,
    pub leaves_out: Option<Step>,
}

impl Case {
    /// Both ends take chains as they come, and the device writes into them.
    pub fn plain(layout: Layout, event_idx: bool) -> Self {
        Self {
            layout,
            event_idx,
            chains: 3,
            needs: 1,
            are_writable: true,
            is_in_order: false,
            wants_last: false,
            takes_singles: event_idx,
            leaves_out: None,
        }
    }

    /// The device needs two chains at once.
    pub fn in_pairs(layout: Layout, event_idx: bool) -> Self {
        let plain = Self::plain(layout, event_idx);
        Self { chains: 4, needs: 2, takes_singles: !event_idx, ..plain }
    }

    pub fn has(&self, step: Step) -> bool {
        self.leaves_out != Some(step)
    }
}

/// Bytes of the buffer of chain number `n`. No two have the same, so an old descriptor is none of a later chain.
pub fn len(n: u16) -> u32 {
    64 - u32::from(n)
}

/// How many bytes the device says that it wrote to it.
pub fn written(n: u16) -> u32 {
    u32::from(n) + 1
}

/// What the side that fills it writes to its first word.
pub fn contents(n: u16) -> u64 {
    u64::from(n) + 100
}

/// One end's notifications. They are messages: loom's `Notify` also wakes without one, which finds no lost notification and doubles the
/// executions for each end.
struct Bells {
    own: Receiver<()>,
    other: Sender<()>,
}

impl Bells {
    fn notify(&self) {
        self.other.send(()).unwrap();
    }

    fn wait(&self) {
        self.own.recv().unwrap();
    }
}

/// A driver's end. Chains are numbered in the order in which they are offered, and come back in that order.
pub trait Driver {
    /// What `Case` describes, with a ring that is zero, and no notifications wanted.
    fn new(memory: Memory, case: Case) -> Self;
    fn offered(&self) -> u16;
    fn taken(&self) -> u16;
    /// Offers chains for which there is room, at least one, and at most up to number `end`. Returns whether the device must be
    /// notified.
    fn offer(&mut self, end: u16) -> bool;
    /// Takes all chains that have come back.
    fn take(&mut self);
    /// Asks for a notification, and checks again. Returns whether there is a chain.
    fn arm(&mut self) -> bool;
    fn disarm(&mut self);

    fn can_offer(&self, end: u16) -> bool {
        self.offered() < end && self.offered() - self.taken() < SIZE
    }
}

/// Offers chains up to number `end` as there is room, until all are back.
fn run_driver(mut driver: impl Driver, end: u16, case: Case, bells: &Bells) {
    while driver.taken() < end {
        while driver.can_offer(end) {
            if driver.offer(end) {
                bells.notify();
            }
        }
        driver.take();
        if driver.taken() < end && !driver.can_offer(end) {
            if !(driver.arm() && case.has(Step::DriverFinalCheck)) {
                bells.wait();
            }
            driver.disarm();
        }
    }
}

/// The device's end, and what it knows of the chains.
struct Device {
    queue: Queue<Memory>,
    memory: Memory,
    returned: u16,
    case: Case,
}

impl Device {
    fn new(memory: Memory, guest: &Arc<GuestMemory>, case: Case) -> Self {
        let Case { layout, event_idx, is_in_order, .. } = case;
        let options = Options { layout, event_idx, indirect: false };
        // The first descriptor of an even lap, twice. A split ring knows its position.
        let position = 0x8000_8000;
        let setup = RingSetup { at: AT, size: SIZE.into(), position, options };
        let queue = Queue::over(&memory, guest.clone(), setup).unwrap();
        Self { queue: queue.in_order(is_in_order), memory, returned: 0, case }
    }

    /// Takes all that are available, and completes them if they are enough.
    fn poll(&mut self, needs: u16) {
        let mark = self.queue.mark();
        let taken = if self.case.takes_singles { self.pop_singles() } else { self.pop() };
        for (n, single) in (self.returned..).zip(&taken) {
            self.serve(n, single.buffer);
        }
        let count = u16::try_from(taken.len()).unwrap();
        if count >= needs {
            self.complete(&taken);
        } else if self.case.takes_singles {
            self.queue.put_back_singles(count);
        } else {
            self.queue.put_back(mark);
        }
    }

    fn pop_singles(&mut self) -> Vec<Single> {
        let mut singles = [Single::default(); SIZE as usize];
        let count = self.queue.pop_singles(self.case.are_writable, &mut singles).unwrap();
        singles[..count].to_vec()
    }

    fn pop(&mut self) -> Vec<Single> {
        let mut taken = Vec::new();
        let mut chain = Chain::new();
        while self.queue.pop(&mut chain).unwrap() {
            let buffer = chain.readable.first().or(chain.writable.first());
            taken.push(Single { index: chain.index, buffer: *buffer.expect("a buffer") });
        }
        taken
    }

    /// Checks the buffer of chain number `n`, and reads or writes what it holds.
    fn serve(&self, n: u16, buffer: Buffer) {
        assert_eq!(buffer.len, len(n), "a chain was lost, doubled or seen too early");
        let at = usize::try_from(buffer.offset).unwrap();
        if self.case.are_writable {
            self.memory.store(at, 8, contents(n), Ordering::Relaxed);
        } else {
            let found = self.memory.load(at, 8, Ordering::Relaxed);
            assert_eq!(found, contents(n), "a buffer was seen too early");
        }
    }

    fn complete(&mut self, taken: &[Single]) {
        for single in taken {
            let written = if self.case.are_writable { written(self.returned) } else { 0 };
            self.queue.complete(single.index, written);
            self.returned += 1;
        }
    }

    fn publish(&mut self) -> bool {
        self.memory.has_barrier.set(self.case.has(Step::DevicePublishBarrier));
        self.queue.publish()
    }

    /// Asks for a notification, and returns whether it may not sleep.
    fn arm(&mut self) -> bool {
        self.memory.has_barrier.set(self.case.has(Step::DeviceArmBarrier));
        self.queue.arm().unwrap() && self.case.has(Step::DeviceFinalCheck)
    }

    /// Returns all chains up to number `end`.
    fn run(mut self, end: u16, bells: &Bells) {
        while self.returned < end {
            self.poll(self.case.needs);
            if self.publish() {
                bells.notify();
            }
            if self.returned < end {
                if !self.arm() {
                    bells.wait();
                }
                self.queue.disarm();
            }
        }
    }
}

/// One chain goes both ways before the two ends run side by side, so that they pass the ring's end. The first notification,
/// which a device sends in any case, is that chain's.
fn start<D: Driver>(guest: &Arc<GuestMemory>, case: Case) -> (Device, D) {
    let memory = Memory::new(case.layout);
    let mut driver = D::new(memory.other_end(), case);
    let mut device = Device::new(memory, guest, case);
    let _ = driver.offer(1);
    device.poll(1);
    assert!(device.publish());
    driver.take();
    assert_eq!((device.returned, driver.taken()), (1, 1));
    (device, driver)
}

pub fn check<D: Driver>(case: Case) {
    let region = Arc::new(Region::anonymous(4096).unwrap()).slice(0..4096).unwrap();
    let range = Range { guest: 0, user: 1 << 40, len: 4096 };
    let guest = Arc::new(GuestMemory::new(vec![(range, region)]).unwrap());
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (device, driver) = start::<D>(&guest, case);
        let [(to_device, of_device), (to_driver, of_driver)] = [channel(), channel()];
        let [bells, theirs] = [(of_driver, to_device), (of_device, to_driver)]
            .map(|(own, other)| Bells { own, other });
        let end = 1 + case.chains;
        let other = thread::spawn(move || {
            device.run(end, &theirs);
            // A late notification needs its receiver.
            theirs
        });
        run_driver(driver, end, case, &bells);
        drop(other.join().unwrap());
    });
}

/// Checks that loom finds a side that sleeps for ever if any part of the protocol is missing.
pub fn check_that_each_step_is_needed<D: Driver>(case: Case) {
    for step in STEPS {
        let case = Case { leaves_out: Some(step), ..case };
        let outcome = std::thread::spawn(move || check::<D>(case)).join();
        let why = outcome.expect_err(&format!("nothing was lost: {case:?}"));
        let why = why.downcast_ref::<String>().expect("a message");
        assert!(why.contains("deadlock"), "{case:?}: {why}");
    }
}
