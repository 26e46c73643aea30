//! Packed rings, with event indices and without: the whole device's end, over loom's atomics, with a driver by the letter
//! of VIRTIO 1.2 §2.8. The ring has two descriptors, and each run goes past its end.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use loom::sync::Notify;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::thread;
use shm::Region;
use virtqueue::{Chain, GuestMemory, Layout, Options, PackedWords, Queue, Range, Single};

/// Descriptors of the ring.
const SIZE: u16 = 2;

/// A packed ring's flags of a descriptor, in the upper 16 bits of its second word.
const WRITE: u64 = 1 << (48 + 1);
const AVAILABLE: u64 = 1 << (48 + 7);
const USED: u64 = 1 << (48 + 15);

/// `RING_EVENT_FLAGS_*`, in the upper 16 bits of an event suppression.
const ENABLE: u32 = 0;
const DISABLE: u32 = 1 << 16;
const AT: u32 = 2 << 16;

/// A part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    DevicePublishBarrier,
    DeviceArmBarrier,
    DeviceSecondLook,
    DriverPublishBarrier,
    DriverArmBarrier,
    DriverSecondLook,
}

/// What is checked.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Chains that the driver offers, one at a time, while the device runs.
    chains: u16,
    /// Chains that the device needs at once: it puts back fewer, and waits for more.
    needs: u16,
    event_idx: bool,
    /// One used descriptor may stand for several.
    is_in_order: bool,
    /// The driver wants a notification when the last chain has come back that the device has, not at the next one.
    wants_last: bool,
    /// The device takes chains by `pop_singles`, not by `pop`.
    takes_singles: bool,
    leaves_out: Option<Step>,
}

impl Case {
    fn has(&self, step: Step) -> bool {
        self.leaves_out != Some(step)
    }
}

/// The words that both ends share. Addresses are relaxed: only a descriptor's second word may order them.
#[derive(Debug)]
struct Words {
    addresses: [AtomicU64; SIZE as usize],
    tails: [AtomicU64; SIZE as usize],
    driver_event: AtomicU32,
    device_event: AtomicU32,
}

impl Words {
    fn new() -> Arc<Self> {
        let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
        let event = || AtomicU32::new(0);
        let (driver_event, device_event) = (event(), event());
        Arc::new(Self { addresses: zeros(), tails: zeros(), driver_event, device_event })
    }

    fn address(&self, index: u16) -> &AtomicU64 {
        &self.addresses[usize::from(index)]
    }

    fn tail(&self, index: u16) -> &AtomicU64 {
        &self.tails[usize::from(index)]
    }
}

/// The device's access to them.
#[derive(Debug)]
struct DeviceWords {
    words: Arc<Words>,
    has_barrier: Rc<Cell<bool>>,
}

impl PackedWords for DeviceWords {
    fn flags(&self, index: u16) -> u16 {
        let [.., low, high] = self.words.tail(index).load(Ordering::Acquire).to_le_bytes();
        u16::from_le_bytes([low, high])
    }
    fn descriptor(&self, index: u16) -> Option<[u64; 2]> {
        let words = [self.words.address(index), self.words.tail(index)];
        Some(words.map(|word| word.load(Ordering::Relaxed)))
    }
    fn address(&self, index: u16) -> Option<u64> {
        Some(self.words.address(index).load(Ordering::Relaxed))
    }
    fn tail(&self, index: u16) -> Option<u64> {
        Some(self.words.tail(index).load(Ordering::Acquire))
    }
    fn set_tail(&self, index: u16, tail: u64) {
        self.words.tail(index).store(tail, Ordering::Release);
    }
    fn driver_event(&self) -> u32 {
        self.words.driver_event.load(Ordering::Relaxed)
    }
    fn set_device_event(&self, event: u32) {
        self.words.device_event.store(event, Ordering::Release);
    }
    fn full_barrier(&self) {
        if self.has_barrier.get() {
            fence(Ordering::SeqCst);
        }
    }
    fn prefetch(&self, _: u16) {}
    fn mark_descriptor(&self, _: &GuestMemory, _: u16) {}
    fn mark_device_event(&self, _: &GuestMemory) {}
}

#[derive(Clone)]
struct Bells {
    device: Arc<Notify>,
    driver: Arc<Notify>,
}

/// The device's end, and what it knows of the chains: they come in order, at addresses that tell them apart.
struct Device {
    queue: Queue<DeviceWords>,
    has_barrier: Rc<Cell<bool>>,
    returned: u16,
    case: Case,
}

impl Device {
    fn new(words: &Arc<Words>, memory: &Arc<GuestMemory>, case: Case) -> Self {
        let has_barrier = Rc::new(Cell::new(true));
        let words = DeviceWords { words: words.clone(), has_barrier: has_barrier.clone() };
        let event_idx = case.event_idx;
        let options = Options { layout: Layout::Packed, event_idx, indirect: false };
        let start = u32::from(bits(0));
        let queue = Queue::over(words, memory.clone(), SIZE, start | start << 16, options).unwrap();
        let queue = queue.in_order(case.is_in_order);
        Self { queue, has_barrier, returned: 0, case }
    }

    /// Takes all that are available, and completes them if they are enough.
    fn poll(&mut self, needs: u16) {
        let mark = self.queue.mark();
        let taken = if self.case.takes_singles { self.pop_singles() } else { self.pop() };
        for (n, single) in (self.returned..).zip(&taken) {
            let offset = single.buffer.offset;
            assert_eq!(offset, address(n), "a chain was lost, doubled or seen too early");
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
        let count = self.queue.pop_singles(!self.case.is_in_order, &mut singles).unwrap();
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

    fn complete(&mut self, taken: &[Single]) {
        for single in taken {
            let written = if self.case.is_in_order { 0 } else { written(self.returned) };
            self.queue.complete(single.index, written);
            self.returned += 1;
        }
    }

    fn publish(&mut self) -> bool {
        self.has_barrier.set(self.case.has(Step::DevicePublishBarrier));
        self.queue.publish()
    }

    /// Asks for a notification, and returns whether it may not sleep.
    fn arm(&mut self) -> bool {
        self.has_barrier.set(self.case.has(Step::DeviceArmBarrier));
        self.queue.arm().unwrap() && self.case.has(Step::DeviceSecondLook)
    }

    /// Returns all chains up to number `end`.
    fn run(mut self, end: u16, bells: &Bells) {
        while self.returned < end {
            self.poll(self.case.needs);
            if self.publish() {
                bells.driver.notify();
            }
            if self.returned < end {
                if !self.arm() {
                    bells.device.wait();
                }
                self.queue.disarm();
            }
        }
    }
}

/// The place of chain number `n`, which is one descriptor, as an event suppression has it.
fn bits(n: u16) -> u16 {
    (n % SIZE) | if is_even_lap(n) { 1 << 15 } else { 0 }
}

fn is_even_lap(n: u16) -> bool {
    (n / SIZE).is_multiple_of(2)
}

/// Where the buffer of chain number `n` lies.
fn address(n: u16) -> u64 {
    u64::from(n) * 64
}

/// How many bytes of it the device writes.
fn written(n: u16) -> u32 {
    u32::from(n) + 1
}

/// The driver's end.
struct Driver {
    words: Arc<Words>,
    offered: u16,
    taken: u16,
    /// What its event suppression says.
    event: u32,
    case: Case,
}

impl Driver {
    /// Starts on a ring that is zero.
    fn new(words: &Arc<Words>, case: Case) -> Self {
        Self { words: words.clone(), offered: 0, taken: 0, event: 0, case }
    }

    fn has_room(&self) -> bool {
        self.offered - self.taken < SIZE
    }

    /// Makes the next chain available. Returns whether the device must be notified.
    fn offer(&mut self) -> bool {
        let n = self.offered;
        self.offered += 1;
        let index = n % SIZE;
        self.words.address(index).store(address(n), Ordering::Relaxed);
        let write = if self.case.is_in_order { 0 } else { WRITE };
        let lap = if is_even_lap(n) { AVAILABLE } else { USED };
        let tail = 64 | u64::from(index) << 32 | write | lap;
        self.words.tail(index).store(tail, Ordering::Release);
        if self.case.has(Step::DriverPublishBarrier) {
            fence(Ordering::SeqCst);
        }
        let event = self.words.device_event.load(Ordering::Relaxed);
        match event & 3 << 16 {
            ENABLE => true,
            AT => event & 0xffff == u32::from(bits(n)),
            _ => false,
        }
    }

    /// What the device wrote to the next chain's place, if it has used it.
    fn used(&self) -> Option<u64> {
        let tail = self.words.tail(self.taken % SIZE).load(Ordering::Acquire);
        let used = if is_even_lap(self.taken) { AVAILABLE | USED } else { 0 };
        (self.taken < self.offered && tail & (AVAILABLE | USED) == used).then_some(tail)
    }

    /// Takes all chains that have come back.
    fn take(&mut self) {
        while let Some(tail) = self.used() {
            let [a, b, c, d, id @ .., _, _] = tail.to_le_bytes();
            let (len, id) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes(id));
            if self.case.is_in_order {
                // It stands for all up to this one.
                while self.taken % SIZE != id {
                    self.taken += 1;
                }
            } else {
                assert_eq!(id, self.taken % SIZE, "a chain was lost or doubled");
                assert_eq!(len, written(self.taken), "a chain was seen too early");
            }
            self.taken += 1;
            assert!(self.taken <= self.offered, "a chain came back that was not offered");
        }
    }

    fn set_event(&mut self, event: u32) {
        self.event = event;
        self.words.driver_event.store(event, Ordering::Release);
    }

    /// Asks for a notification, and looks again. Returns whether it may not sleep.
    fn arm(&mut self) -> bool {
        if self.case.event_idx {
            let at = if self.case.wants_last { self.offered - 1 } else { self.taken };
            // Linux's driver writes the two halves one after the other.
            self.set_event(self.event & 0xffff_0000 | u32::from(bits(at)));
            self.set_event(AT | u32::from(bits(at)));
        } else {
            self.set_event(ENABLE);
        }
        if self.case.has(Step::DriverArmBarrier) {
            fence(Ordering::SeqCst);
        }
        self.used().is_some() && self.case.has(Step::DriverSecondLook)
    }

    fn disarm(&mut self) {
        self.set_event(self.event & 0xffff | DISABLE);
    }

    /// Offers chains up to number `end` as there is room, one at a time, until all are back.
    fn run(mut self, end: u16, bells: &Bells) {
        while self.taken < end {
            while self.offered < end && self.has_room() {
                if self.offer() {
                    bells.device.notify();
                }
            }
            self.take();
            if self.taken < end && !(self.offered < end && self.has_room()) {
                if !self.arm() {
                    bells.driver.wait();
                }
                self.disarm();
            }
        }
    }
}

/// One chain goes both ways before the two ends run side by side, so that they pass the ring's end. The first notification,
/// which a device sends in any case, is that chain's.
fn start(memory: &Arc<GuestMemory>, case: Case) -> (Device, Driver) {
    let words = Words::new();
    let mut driver = Driver::new(&words, case);
    let mut device = Device::new(&words, memory, case);
    driver.disarm();
    assert!(!driver.offer());
    device.poll(1);
    assert!(device.publish());
    driver.take();
    assert_eq!((device.returned, driver.taken), (1, 1));
    (device, driver)
}

fn check(case: Case) {
    let region = Arc::new(Region::anonymous(4096).unwrap()).slice(0..4096).unwrap();
    let range = Range { guest: 0, user: 1 << 40, len: 4096 };
    let memory = Arc::new(GuestMemory::new(vec![(range, region)]).unwrap());
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (device, driver) = start(&memory, case);
        let bells = Bells { device: Arc::new(Notify::new()), driver: Arc::new(Notify::new()) };
        let theirs = bells.clone();
        let end = 1 + case.chains;
        let other = thread::spawn(move || device.run(end, &theirs));
        driver.run(end, &bells);
        other.join().unwrap();
    });
}

/// Both ends take chains as they come.
fn plain(event_idx: bool) -> Case {
    Case {
        chains: 3,
        needs: 1,
        event_idx,
        is_in_order: false,
        wants_last: false,
        takes_singles: event_idx,
        leaves_out: None,
    }
}

/// The device needs two chains at once.
fn in_pairs(event_idx: bool) -> Case {
    Case { chains: 4, needs: 2, takes_singles: !event_idx, ..plain(event_idx) }
}

#[test]
fn with_event_indices_no_notification_is_lost() {
    check(plain(true));
}

#[test]
fn without_event_indices_no_notification_is_lost() {
    check(plain(false));
}

#[test]
fn a_device_that_put_chains_back_hears_of_more() {
    check(in_pairs(true));
}

#[test]
fn without_event_indices_a_device_that_put_chains_back_hears_of_more() {
    check(in_pairs(false));
}

#[test]
fn a_driver_hears_of_a_used_descriptor_that_stands_for_two() {
    check(Case { is_in_order: true, takes_singles: true, ..in_pairs(true) });
}

#[test]
fn a_driver_that_waits_for_the_last_hears_of_it() {
    check(Case { wants_last: true, ..plain(true) });
}

/// Checks that loom finds a side that sleeps for ever.
fn check_that_it_is_lost(case: Case) {
    let outcome = std::thread::spawn(move || check(case)).join();
    let why = outcome.expect_err(&format!("nothing was lost: {case:?}"));
    let why = why.downcast_ref::<String>().expect("a message");
    assert!(why.contains("deadlock"), "{case:?}: {why}");
}

#[test]
fn each_barrier_and_each_second_look_is_needed() {
    for step in [
        Step::DevicePublishBarrier,
        Step::DeviceArmBarrier,
        Step::DeviceSecondLook,
        Step::DriverPublishBarrier,
        Step::DriverArmBarrier,
        Step::DriverSecondLook,
    ] {
        for event_idx in [true, false] {
            check_that_it_is_lost(Case { leaves_out: Some(step), ..plain(event_idx) });
        }
    }
}
