//! The queues that a port's flows use: automatic receive steering, as VIRTIO 1.3 (5.1.6.5.6) asks of a device and Linux's tun does it.
//!
//! A guest with a queue for each CPU sends a flow's frames through the queue of the CPU on which the program runs that has the socket. What
//! comes back for this flow goes to the same queue.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use port::Frame;

/// Flows with the same entry share a queue.
const ENTRIES: usize = 1024;
const ENTRY_BITS: u32 = ENTRIES.ilog2();

/// How long an entry stays as it is. Where a flow changes its queue, its next frames can overtake those in the other one.
const HOLD_TIME: Duration = Duration::from_millis(100);

/// Bits of a queue's number plus one. Above them an entry has the time of its last change in milliseconds, modulo 2.3 hours; 0: no flow yet.
const QUEUE_BITS: u32 = 9;
const QUEUE: u32 = (1 << QUEUE_BITS) - 1;

/// Odd, and without a pattern: the fractional part of the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// The table. Only frames of its own port change it, so no guest can say where another one's frames go.
pub(crate) struct FlowQueues {
    /// Unknown to other hosts: they cannot choose flows that share an entry.
    seed: u64,
    entries: Box<[AtomicU32]>,
}

impl FlowQueues {
    pub(crate) fn new() -> Self {
        let entries = (0..ENTRIES).map(|_| AtomicU32::new(0)).collect();
        Self { seed: RandomState::new().hash_one(0), entries }
    }

    #[inline]
    fn entry(&self, frame: &Frame) -> Option<&AtomicU32> {
        let flow = (frame.flow_key()? ^ self.seed).wrapping_mul(MULTIPLIER);
        self.entries.get((flow >> (u64::BITS - ENTRY_BITS)) as usize)
    }

    /// The queue that the flow of a frame for the port uses, if it has sent anything.
    #[inline]
    pub(crate) fn queue_of(&self, frame: &Frame) -> Option<usize> {
        let entry = self.entry(frame)?.load(Ordering::Relaxed);
        (entry & QUEUE).checked_sub(1).map(|queue| queue as usize)
    }

    /// A frame has come from a queue of the port.
    #[inline]
    pub(crate) fn learn(&self, frame: &Frame, queue: usize, now: Duration) {
        let Some(entry) = self.entry(frame) else { return };
        let before = entry.load(Ordering::Relaxed);
        let queue = u32::try_from(queue).map_or(0, |queue| queue.saturating_add(1));
        if before & QUEUE != queue {
            change(entry, before, queue, now);
        }
    }
}

/// Has the flow of an entry use another queue, plus one, from now on.
#[cold]
fn change(entry: &AtomicU32, before: u32, queue: u32, now: Duration) {
    let since = time(now).wrapping_sub(before & !QUEUE);
    // A queue that was added has no egress side.
    if (1..=QUEUE).contains(&queue) && (before == 0 || since >= time(HOLD_TIME)) {
        entry.store(time(now) | queue, Ordering::Relaxed);
    }
}

/// A time as entries have it.
#[expect(clippy::cast_possible_truncation, reason = "it is kept modulo the bits above the queue")]
fn time(time: Duration) -> u32 {
    (time.as_millis() as u32) << QUEUE_BITS
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A datagram over IPv4 between two ports of 10.0.0.1 and 10.0.0.2; `back`: the other way.
    fn datagram(ports: [u16; 2], back: bool) -> Frame {
        let mut ends = [(1, ports[0]), (2, ports[1])];
        if back {
            ends.reverse();
        }
        let [(from, from_port), (to, to_port)] = ends;
        let mut bytes = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 8, 0];
        bytes.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, from, 10, 0, 0, to]);
        bytes.extend([from_port.to_be_bytes(), to_port.to_be_bytes(), [0, 8], [0; 2]].concat());
        let mut frame = Frame::empty();
        frame.set_header(&bytes).unwrap();
        frame
    }

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_flow_that_flips_its_queue_changes_it_ten_times_a_second() {
        let flows = FlowQueues::new();
        let (out, back) = (datagram([1000, 80], false), datagram([1000, 80], true));
        assert_eq!(flows.queue_of(&back), None);
        let mut changes = 0;
        for ms in 0..3000 {
            let before = flows.queue_of(&back);
            flows.learn(&out, (ms % 2) as usize, at(ms));
            changes += u32::from(flows.queue_of(&back) != before);
        }
        assert!((20..=30).contains(&changes), "{changes} in 3 s");
    }

    #[test]
    fn time_that_wraps_delays_a_change_and_frames_without_a_queue_change_nothing() {
        let flows = FlowQueues::new();
        let (out, back) = (datagram([1, 2], false), datagram([1, 2], true));
        let mut arp = Frame::empty();
        arp.set_header(&[[2; 12].as_slice(), &[8, 6], &[0; 28]].concat()).unwrap();
        flows.learn(&arp, 1, at(0));
        assert_eq!(flows.queue_of(&arp), None);
        for none in [usize::MAX, u32::MAX as usize, QUEUE as usize] {
            flows.learn(&out, none, at(0));
            assert_eq!(flows.queue_of(&back), None);
        }
        let last = QUEUE as usize - 1;
        flows.learn(&out, last, at((1 << (u32::BITS - QUEUE_BITS)) - 1));
        flows.learn(&out, 3, at(1 << (u32::BITS - QUEUE_BITS)));
        assert_eq!(flows.queue_of(&back), Some(last));
        flows.learn(&out, 3, at((1 << (u32::BITS - QUEUE_BITS)) + 99));
        assert_eq!(flows.queue_of(&back), Some(3));
    }

    proptest! {
        #[test]
        fn a_flow_comes_back_where_it_went_out(ports: [u16; 2], queue in 0usize..256) {
            let flows = FlowQueues::new();
            flows.learn(&datagram(ports, false), queue, at(0));
            prop_assert_eq!(flows.queue_of(&datagram(ports, true)), Some(queue));
        }
    }

    #[test]
    fn flows_seldom_share_an_entry() {
        let flows = FlowQueues::new();
        let pairs = (0..64).map(|n| datagram([40_000 + n, 443], false));
        let entries: std::collections::BTreeSet<_> =
            pairs.map(|frame| std::ptr::from_ref(flows.entry(&frame).unwrap()).addr()).collect();
        assert!(entries.len() > 48, "{} of 64", entries.len());
    }
}
