//! How many frames the batches of a port have, and how long they are in the daemon.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use switch::add_alone;

use crate::histogram::{Distribution, Histogram};
use crate::times::nanoseconds;

/// Frames of a batch: up to 1, 2, 4 ... [`WINDOW`](port::WINDOW), and never more.
type Sizes = Histogram<0, 8>;
/// Nanoseconds: up to 256 ns, 512 ns ... 537 ms, and more.
type Times = Histogram<8, 23>;

/// What one worker has counted of a port's batches.
#[derive(Debug, Default)]
pub(crate) struct Batches {
    taken: Sizes,
    delivered: Sizes,
    times: Times,
    /// Nanoseconds of the turns of its queues and tasks.
    turns: AtomicU64,
}

impl Batches {
    /// A batch of `frames` frames was taken from an ingress queue of the port.
    #[inline]
    pub(crate) fn taken(&self, frames: usize) {
        self.taken.add(frames as u64);
    }

    /// An egress queue of the port has accepted `frames` frames in one call.
    #[inline]
    pub(crate) fn delivered(&self, frames: u64) {
        self.delivered.add(frames);
    }

    /// A batch from the port was in the daemon for this time.
    #[inline]
    pub(crate) fn ended(&self, time: Duration) {
        self.times.add(nanoseconds(time));
    }

    /// A queue or a task of the port had a turn of this time.
    #[inline]
    pub(crate) fn turn(&self, time: Duration) {
        add_alone(&self.turns, nanoseconds(time));
    }
}

/// The batches of a port, of all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Frames of each batch that a worker took from one of its ingress queues in one turn.
    pub ingress_frames: Distribution,
    /// Frames of each batch that one of its egress queues accepted in one call.
    pub egress_frames: Distribution,
    /// Nanoseconds for which each batch from the port was in the daemon: from the beginning of the turn in which a worker took
    /// it until the end of that in which its last frame was delivered or dropped. Waiting for room in another port and for a
    /// device counts.
    pub nanoseconds: Distribution,
    /// Nanoseconds for which workers have served the port's queues and tasks, without polls that found nothing.
    pub worker_nanoseconds: u64,
}

impl BatchCounts {
    pub(crate) fn of(workers: &[Batches]) -> Self {
        let mut counts = Self::default();
        for Batches { taken, delivered, times, turns } in workers {
            taken.add_to(&mut counts.ingress_frames);
            delivered.add_to(&mut counts.egress_frames);
            times.add_to(&mut counts.nanoseconds);
            counts.worker_nanoseconds += turns.load(Ordering::Relaxed);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use port::WINDOW;

    use super::*;

    #[test]
    fn the_largest_batch_and_each_time_have_a_bucket() {
        let batches = Batches::default();
        batches.taken(WINDOW);
        for time in [0, 256, 257, 1_000_000, 1_500_000_000, u64::MAX] {
            batches.ended(Duration::from_nanos(time));
        }
        let counts = BatchCounts::of(&[batches]);
        let bounds: Vec<_> = counts.nanoseconds.buckets.iter().map(|(bound, _)| *bound).collect();
        assert_eq!((bounds[0], bounds[21], bounds[22]), (256, 536_870_912, u64::MAX));
        let filled = counts.nanoseconds.buckets.iter().filter(|(_, count)| *count > 0);
        let filled: Vec<_> = filled.copied().collect();
        assert_eq!(filled, [(256, 2), (512, 1), (1 << 20, 1), (u64::MAX, 2)]);
        assert_eq!(counts.ingress_frames.sum, 64);
        assert_eq!(counts.ingress_frames.buckets[6..], [(64, 1), (u64::MAX, 0)]);
    }
}
