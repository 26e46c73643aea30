//! Split rings, with event indices and without, and a driver by the letter of VIRTIO 1.2 §2.7.

use loom::sync::atomic::{Ordering, fence};
use virtqueue::{Layout, must_notify};

use crate::ends::{self, Case, Step, check, contents, len, written};
use crate::memory::{DEVICE, DRIVER, Memory, SIZE, buffer};

/// `VIRTQ_DESC_F_WRITE` in a descriptor's second word.
const WRITE: u64 = 1 << (32 + 1);
/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY`.
const NO_EVENT: u16 = 1;

/// Where a side's part has its flags, its index and its entries.
const FLAGS: usize = 0;
const INDEX: usize = 2;
const ENTRIES: usize = 4;

/// The driver's end. Chain number `n` is descriptor `n`, modulo the ring's size.
struct Driver {
    memory: Memory,
    offered: u16,
    taken: u16,
    case: Case,
}

impl Driver {
    fn load(&self, at: usize) -> u16 {
        self.memory.load(at, 2, Ordering::Acquire).try_into().unwrap()
    }

    fn store(&self, at: usize, value: u16) {
        self.memory.store(at, 2, value.into(), Ordering::Release);
    }

    fn has_used(&self) -> bool {
        self.load(DEVICE + INDEX) != self.taken
    }
}

impl ends::Driver for Driver {
    fn new(memory: Memory, case: Case) -> Self {
        let mut driver = Self { memory, offered: 0, taken: 0, case };
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
        let slot = n % SIZE;
        if !self.case.are_writable {
            self.memory.store(buffer(n), 8, contents(n), Ordering::Relaxed);
        }
        let descriptor = 16 * usize::from(slot);
        let write = if self.case.are_writable { WRITE } else { 0 };
        self.memory.store(descriptor, 8, buffer(n) as u64, Ordering::Relaxed);
        self.memory.store(descriptor + 8, 8, u64::from(len(n)) | write, Ordering::Relaxed);
        let entry = DRIVER + ENTRIES + 2 * usize::from(slot);
        self.memory.store(entry, 2, slot.into(), Ordering::Relaxed);
        self.store(DRIVER + INDEX, self.offered);
        if self.case.has(Step::DriverPublishBarrier) {
            fence(Ordering::SeqCst);
        }
        match self.case.event_idx {
            true => must_notify(n, n + 1, self.load(DEVICE + ENTRIES + 8 * usize::from(SIZE))),
            false => self.load(DEVICE + FLAGS) & NO_EVENT == 0,
        }
    }

    fn take(&mut self) {
        while self.has_used() {
            let slot = self.taken % SIZE;
            let entry = DEVICE + ENTRIES + 8 * usize::from(slot);
            let [id, bytes] =
                [entry, entry + 4].map(|at| self.memory.load(at, 4, Ordering::Relaxed));
            assert_eq!(id, u64::from(slot), "a chain was lost or doubled");
            if self.case.are_writable {
                assert_eq!(bytes, u64::from(written(self.taken)), "a chain was seen too early");
                let found = self.memory.load(buffer(self.taken), 8, Ordering::Relaxed);
                assert_eq!(found, contents(self.taken), "a buffer was seen too early");
            }
            self.taken += 1;
            assert!(self.taken <= self.offered, "a chain came back that was not offered");
        }
    }

    fn arm(&mut self) -> bool {
        match self.case.event_idx {
            true => self.store(DRIVER + ENTRIES + 2 * usize::from(SIZE), self.taken),
            false => self.store(DRIVER + FLAGS, 0),
        }
        if self.case.has(Step::DriverArmBarrier) {
            fence(Ordering::SeqCst);
        }
        self.has_used()
    }

    /// With event indices there is nothing to do.
    fn disarm(&mut self) {
        if !self.case.event_idx {
            self.store(DRIVER + FLAGS, NO_EVENT);
        }
    }
}

/// Fewer chains than elsewhere, because each takes more steps.
fn plain(event_idx: bool) -> Case {
    Case { chains: 2, ..Case::plain(Layout::Split, event_idx) }
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
    check::<Driver>(Case { needs: 2, ..plain(true) });
}

#[test]
fn each_barrier_and_each_final_check_is_needed() {
    for event_idx in [true, false] {
        ends::check_that_each_step_is_needed::<Driver>(plain(event_idx));
    }
}
