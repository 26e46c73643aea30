//! The driver of bursts and the device: the production code of both ends.

use std::collections::VecDeque;

use loom::sync::atomic::Ordering;
use virtqueue::Layout;
use virtqueue::burst::{Buffers, BurstDriver};

use crate::ends::{self, Case, Step, check, contents, len, written};
use crate::memory::{AT, BUFFERS, Memory, SIZE, STRIDE};

/// The driver's end, and what it knows of the buffers.
struct Driver {
    ring: BurstDriver<Memory>,
    memory: Memory,
    /// Those that the device has, in the order in which they were offered: where they begin.
    out: VecDeque<usize>,
    taken: u16,
    case: Case,
}

impl Driver {
    /// Where the device returns two buffers at once, one is taken, and the driver arms while it knows of the other.
    fn most(&self) -> usize {
        if self.case.needs > 1 { 1 } else { SIZE.into() }
    }

    /// Takes the next buffer that has come back.
    fn take_one(&mut self) -> Option<u16> {
        let returned = self.ring.take().unwrap()?;
        let n = self.taken;
        assert_eq!(self.out.pop_front(), Some(returned.offset), "a buffer was lost or doubled");
        if self.case.are_writable {
            assert_eq!(returned.written, written(n), "a length was seen too early");
            let found = self.memory.load(returned.offset, 8, Ordering::Relaxed);
            assert_eq!(found, contents(n), "a buffer was seen too early");
        }
        self.taken += 1;
        Some(returned.id)
    }
}

impl ends::Driver for Driver {
    fn new(memory: Memory, case: Case) -> Self {
        let Case { layout, are_writable, is_in_order, .. } = case;
        let buffers =
            Buffers { offset: BUFFERS, address: BUFFERS as u64, stride: STRIDE, are_writable };
        let ring = BurstDriver::over(memory.clone(), AT, SIZE, layout, buffers);
        let ring = ring.in_order(is_in_order);
        Self { ring, memory, out: VecDeque::new(), taken: 0, case }
    }

    fn offered(&self) -> u16 {
        self.taken + self.ring.outstanding()
    }

    fn taken(&self) -> u16 {
        self.taken
    }

    /// Publishes all for which there is room at once.
    fn offer(&mut self, end: u16) -> bool {
        while self.can_offer(end) {
            let (n, at) = (self.offered(), self.ring.buffer(0));
            if !self.case.are_writable {
                self.memory.store(at, 8, contents(n), Ordering::Relaxed);
            }
            self.ring.push(len(n));
            self.out.push_back(at);
        }
        self.memory.has_barrier.set(self.case.has(Step::DriverPublishBarrier));
        self.ring.publish()
    }

    /// Buffers are put back in another order than that in which they came, so places of the ring change hands.
    fn take(&mut self) {
        let most = self.most();
        let ids: Vec<u16> = std::iter::from_fn(|| self.take_one()).take(most).collect();
        ids.into_iter().rev().for_each(|id| self.ring.put_back(id));
    }

    fn arm(&mut self) -> bool {
        self.memory.has_barrier.set(self.case.has(Step::DriverArmBarrier));
        self.ring.arm()
    }

    fn disarm(&mut self) {
        self.ring.disarm();
    }
}

/// The device fills buffers.
fn fills(layout: Layout) -> Case {
    Case { takes_singles: true, ..Case::plain(layout, false) }
}

/// The device reads buffers.
fn reads(layout: Layout) -> Case {
    Case { are_writable: false, ..Case::plain(layout, false) }
}

/// It reads two at once and returns both together; of a packed ring, with one used descriptor.
fn reads_in_pairs(layout: Layout) -> Case {
    Case { are_writable: false, is_in_order: true, ..Case::in_pairs(layout, false) }
}

#[test]
fn a_device_fills_buffers_of_a_split_ring() {
    check::<Driver>(fills(Layout::Split));
}

#[test]
fn a_device_fills_buffers_of_a_packed_ring() {
    check::<Driver>(fills(Layout::Packed));
}

#[test]
fn a_device_reads_buffers_of_a_split_ring() {
    check::<Driver>(reads(Layout::Split));
}

#[test]
fn a_device_reads_buffers_of_a_packed_ring() {
    check::<Driver>(reads(Layout::Packed));
}

#[test]
fn a_device_returns_buffers_of_a_split_ring_in_pairs() {
    check::<Driver>(reads_in_pairs(Layout::Split));
}

#[test]
fn a_device_returns_buffers_of_a_packed_ring_in_pairs() {
    check::<Driver>(reads_in_pairs(Layout::Packed));
}

#[test]
fn each_barrier_and_each_final_check_is_needed() {
    for layout in [Layout::Split, Layout::Packed] {
        ends::check_that_each_step_is_needed::<Driver>(fills(layout));
    }
}
