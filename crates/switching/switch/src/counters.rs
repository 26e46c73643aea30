//! What a port carried and what it dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use frame::DropReason;

use crate::learning::{Learning, LearningCounters, LearningCounts};

const REASONS: usize = DropReason::ALL.len();

/// A port's counters, added to by workers once per batch and read at any time.
///
/// Frames are counted by each worker for itself, in a cache line that no other one writes, and without a locked instruction: that
/// would wait until the stores to the guest before it are done. Drops and learning are rare, and counted by all workers together.
#[derive(Debug)]
pub struct PortCounters {
    traffic: Box<[Traffic]>,
    drops: Drops,
    learning: LearningCounters,
}

/// What one worker has carried: into the switch, and out of it.
#[derive(Default, Debug)]
#[repr(align(64))]
struct Traffic {
    ingress: [AtomicU64; 2],
    egress: [AtomicU64; 2],
}

#[derive(Default, Debug)]
#[repr(align(64))]
struct Drops([AtomicU64; REASONS]);

/// A port's counters at one moment. Each is exact; together they may be apart by the batches in flight.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct PortSnapshot {
    /// Frames from the port into the switch.
    pub ingress_frames: u64,
    /// Their bytes, Ethernet header included.
    pub ingress_bytes: u64,
    /// Frames from the switch out of the port.
    pub egress_frames: u64,
    /// Their bytes, Ethernet header included.
    pub egress_bytes: u64,
    /// What became of the source addresses of its frames. Moves are those to this port.
    pub learning: LearningCounts,
    /// Dropped frames per reason, in the order of [`DropReason::ALL`].
    drops: [u64; REASONS],
}

impl PortCounters {
    /// Counters for `workers` workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        let traffic = (0..workers).map(|_| Traffic::default()).collect();
        Self { traffic, drops: Drops::default(), learning: LearningCounters::default() }
    }

    /// Adds a batch that came in. No other thread may count as this `worker` meanwhile: frames could be missing from the sum.
    #[inline]
    pub fn add_ingress(&self, worker: usize, frames: u64, bytes: u64) {
        self.add(worker, |traffic| &traffic.ingress, [frames, bytes]);
    }

    /// The same of one that went out.
    #[inline]
    pub fn add_egress(&self, worker: usize, frames: u64, bytes: u64) {
        self.add(worker, |traffic| &traffic.egress, [frames, bytes]);
    }

    #[inline]
    fn add(&self, worker: usize, of: fn(&Traffic) -> &[AtomicU64; 2], more: [u64; 2]) {
        debug_assert!(worker < self.traffic.len(), "no worker has this number");
        if let Some(traffic) = self.traffic.get(worker) {
            of(traffic).iter().zip(more).for_each(|(counter, more)| add_alone(counter, more));
        }
    }

    /// Adds a batch's frames dropped for one reason.
    pub fn add_drops(&self, reason: DropReason, frames: u64) {
        self.drops.0[reason as usize].fetch_add(frames, Ordering::Relaxed);
    }

    /// Adds what became of a frame's source address.
    #[inline]
    pub fn add_learning(&self, learning: Learning) {
        self.learning.add(learning);
    }

    /// The counters now.
    pub fn snapshot(&self) -> PortSnapshot {
        let sum = |of: fn(&Traffic) -> &AtomicU64| {
            self.traffic.iter().map(|worker| of(worker).load(Ordering::Relaxed)).sum()
        };
        PortSnapshot {
            ingress_frames: sum(|worker| &worker.ingress[0]),
            ingress_bytes: sum(|worker| &worker.ingress[1]),
            egress_frames: sum(|worker| &worker.egress[0]),
            egress_bytes: sum(|worker| &worker.egress[1]),
            learning: self.learning.snapshot(),
            drops: std::array::from_fn(|i| self.drops.0[i].load(Ordering::Relaxed)),
        }
    }
}

/// An addition by the only writer, without a locked instruction.
#[inline]
pub fn add_alone(cell: &AtomicU64, more: u64) {
    cell.store(cell.load(Ordering::Relaxed).wrapping_add(more), Ordering::Relaxed);
}

impl PortSnapshot {
    /// Frames dropped for one reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Frames dropped for any reason.
    pub fn dropped_total(&self) -> u64 {
        self.drops.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_is_in_discriminant_order_with_distinct_names() {
        for (index, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, index);
            let same_name = DropReason::ALL.iter().filter(|r| r.name() == reason.name());
            assert_eq!(same_name.count(), 1);
        }
    }

    #[test]
    fn batches_from_many_threads_add_up() {
        let counters = &PortCounters::new(4);
        std::thread::scope(|scope| {
            for worker in 0..4 {
                scope.spawn(move || {
                    for _ in 0..1000 {
                        counters.add_ingress(worker, 32, 2048);
                        counters.add_egress(worker, 3, 180);
                        counters.add_drops(DropReason::NoRoom, 2);
                        counters.add_drops(DropReason::PortGone, 1);
                        counters.add_learning(Learning::Added);
                        counters.add_learning(Learning::RefusedMove);
                    }
                });
            }
        });
        let seen = counters.snapshot();
        assert_eq!((seen.ingress_frames, seen.ingress_bytes), (128_000, 8_192_000));
        assert_eq!((seen.egress_frames, seen.egress_bytes), (12_000, 720_000));
        assert_eq!(seen.dropped(DropReason::NoRoom), 8000);
        assert_eq!(seen.dropped(DropReason::Malformed), 0);
        assert_eq!(seen.dropped_total(), 12_000);
        assert_eq!(seen.learning, LearningCounts { refused_moves: 4000, ..Default::default() });
    }
}
