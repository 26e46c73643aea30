//! What a port carried and what it dropped.

use std::sync::atomic::{AtomicU64, Ordering};

use frame::DropReason;

use crate::learning::{Learning, LearningCounters, LearningCounts};

const REASONS: usize = DropReason::ALL.len();

/// A port's counters, added to by workers once per batch and read at any time.
///
/// Ingress (from the port into the switch), egress (out of the port), drops and learning lie on separate cache lines:
/// different workers usually write them, or write them seldom.
#[derive(Default, Debug)]
pub struct PortCounters {
    ingress: Traffic,
    egress: Traffic,
    drops: Drops,
    learning: LearningCounters,
}

#[derive(Default, Debug)]
#[repr(align(64))]
struct Traffic {
    frames: AtomicU64,
    bytes: AtomicU64,
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
    /// Adds a batch that came in.
    pub fn add_ingress(&self, frames: u64, bytes: u64) {
        self.ingress.add(frames, bytes);
    }

    /// Adds a batch that went out.
    pub fn add_egress(&self, frames: u64, bytes: u64) {
        self.egress.add(frames, bytes);
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
        PortSnapshot {
            ingress_frames: self.ingress.frames.load(Ordering::Relaxed),
            ingress_bytes: self.ingress.bytes.load(Ordering::Relaxed),
            egress_frames: self.egress.frames.load(Ordering::Relaxed),
            egress_bytes: self.egress.bytes.load(Ordering::Relaxed),
            learning: self.learning.snapshot(),
            drops: std::array::from_fn(|i| self.drops.0[i].load(Ordering::Relaxed)),
        }
    }
}

impl Traffic {
    fn add(&self, frames: u64, bytes: u64) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
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
        let counters = PortCounters::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counters.add_ingress(32, 2048);
                        counters.add_egress(3, 180);
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
