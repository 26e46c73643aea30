//! Packed rings, with event indices and without, and a driver by the letter of VIRTIO 1.2 §2.8.

use loom::sync::atomic::{Ordering, fence};
use virtqueue::Layout;

use crate::ends::{self, Case, Step, check, contents, len, written};
use crate::memory::{DEVICE, DRIVER, Memory, SIZE, buffer};

/// A packed ring's flags of a descriptor, in the upper 16 bits of its second word.
const WRITE: u64 = 1 << (48 + 1);
const AVAILABLE: u64 = 1 << (48 + 7);
const USED: u64 = 1 << (48 + 15);

/// `RING_EVENT_FLAGS_*`, in the upper 16 bits of an event suppression.
const ENABLE: u32 = 0;
const DISABLE: u32 = 1 << 16;
const AT_INDEX: u32 = 2 << 16;

/// The place of chain number `n`, which is one descriptor, as an event suppression has it.
fn bits(n: u16) -> u16 {
    (n % SIZE) | if is_even_lap(n) { 1 << 15 } else { 0 }
}

fn is_even_lap(n: u16) -> bool {
    (n / SIZE).is_multiple_of(2)
}

/// Where the descriptor of chain number `n` lies.
fn descriptor(n: u16) -> usize {
    16 * usize::from(n % SIZE)
}

/// The driver's end.
struct Driver {
    memory: Memory,
    offered: u16,
    taken: u16,
    /// What its event suppression says.
    event: u32,
    case: Case,
}

impl Driver {
    /// What the device wrote to the next chain's place, if it has used it.
    fn used(&self) -> Option<u64> {
        let tail = self.memory.load(descriptor(self.taken) + 8, 8, Ordering::Acquire);
        let used = if is_even_lap(self.taken) { AVAILABLE | USED } else { 0 };
        (self.taken < self.offered && tail & (AVAILABLE | USED) == used).then_some(tail)
    }

    fn set_event(&mut self, event: u32) {
        self.event = event;
        self.memory.store(DRIVER, 4, event.into(), Ordering::Release);
    }
}

impl ends::Driver for Driver {
    fn new(memory: Memory, case: Case) -> Self {
        let mut driver = Self { memory, offered: 0, taken: 0, event: 0, case };
        driver.disarm();
        driver
    }

    fn offered(&self) -> u16 {
        self.offered
    }

    fn taken(&self) -> u16 {
        self.taken
    }

    /// Makes the next chain available.
    fn offer(&mut self, _: u16) -> bool {
        let n = self.offered;
        self.offered += 1;
        if !self.case.are_writable {
            self.memory.store(buffer(n), 8, contents(n), Ordering::Relaxed);
        }
        self.memory.store(descriptor(n), 8, buffer(n) as u64, Ordering::Relaxed);
        let write = if self.case.are_writable { WRITE } else { 0 };
        let lap = if is_even_lap(n) { AVAILABLE } else { USED };
        let tail = u64::from(len(n)) | u64::from(n % SIZE) << 32 | write | lap;
        self.memory.store(descriptor(n) + 8, 8, tail, Ordering::Release);
        if self.case.has(Step::DriverPublishBarrier) {
            fence(Ordering::SeqCst);
        }
        let event = u32::try_from(self.memory.load(DEVICE, 4, Ordering::Relaxed)).unwrap();
        match event & 3 << 16 {
            ENABLE => true,
            AT_INDEX => event & 0xffff == u32::from(bits(n)),
            _ => false,
        }
    }

    fn take(&mut self) {
        while let Some(tail) = self.used() {
            let [a, b, c, d, id @ .., _, _] = tail.to_le_bytes();
            let (bytes, id) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes(id));
            if self.case.is_in_order {
                // It stands for all up to this one.
                while self.taken % SIZE != id {
                    self.taken += 1;
                }
            } else {
                assert_eq!(id, self.taken % SIZE, "a chain was lost or doubled");
                assert_eq!(bytes, written(self.taken), "a chain was seen too early");
                let found = self.memory.load(buffer(self.taken), 8, Ordering::Relaxed);
                assert_eq!(found, contents(self.taken), "a buffer was seen too early");
            }
            self.taken += 1;
            assert!(self.taken <= self.offered, "a chain came back that was not offered");
        }
    }

    fn arm(&mut self) -> bool {
        if self.case.event_idx {
            let at = if self.case.wants_last { self.offered - 1 } else { self.taken };
            // Linux's driver writes the two halves one after the other.
            self.set_event(self.event & 0xffff_0000 | u32::from(bits(at)));
            self.set_event(AT_INDEX | u32::from(bits(at)));
        } else {
            self.set_event(ENABLE);
        }
        if self.case.has(Step::DriverArmBarrier) {
            fence(Ordering::SeqCst);
        }
        self.used().is_some()
    }

    fn disarm(&mut self) {
        self.set_event(self.event & 0xffff | DISABLE);
    }
}

fn plain(event_idx: bool) -> Case {
    Case::plain(Layout::Packed, event_idx)
}

fn in_pairs(event_idx: bool) -> Case {
    Case::in_pairs(Layout::Packed, event_idx)
}

#[test]
fn with_event_indices_no_notification_is_lost() {
    check::<Driver>(plain(true));
}

#[test]
fn without_event_indices_no_notification_is_lost() {
    check::<Driver>(plain(false));
}

#[test]
fn a_device_that_put_chains_back_hears_of_more() {
    check::<Driver>(in_pairs(true));
}

#[test]
fn without_event_indices_a_device_that_put_chains_back_hears_of_more() {
    check::<Driver>(in_pairs(false));
}

#[test]
fn a_driver_hears_of_a_used_descriptor_that_stands_for_two() {
    let in_order = Case { is_in_order: true, are_writable: false, ..in_pairs(true) };
    check::<Driver>(Case { takes_singles: true, ..in_order });
}

#[test]
fn a_driver_that_waits_for_the_last_hears_of_it() {
    check::<Driver>(Case { wants_last: true, ..plain(true) });
}

#[test]
fn each_barrier_and_each_final_check_is_needed() {
    for event_idx in [true, false] {
        ends::check_that_each_step_is_needed::<Driver>(plain(event_idx));
    }
}
