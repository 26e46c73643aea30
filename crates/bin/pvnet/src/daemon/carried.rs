//! What a port has carried and dropped, in all its sessions: its counters never fall.

use control_socket::{
    BatchStatus, Counts, Drops, Histogram, Learning, LockWaits, PortStatus, Traffic,
};
use datapath::Port;

use crate::daemon::status::nanoseconds;

/// Counters of a port.
#[derive(Clone, Default)]
pub(super) struct Carried {
    ingress: Traffic,
    egress: Traffic,
    gso_checksum_fixups: u64,
    lock_waits: LockWaits,
    learning: Learning,
    drops: Drops,
    batches: BatchStatus,
}

impl Carried {
    /// What a port of the datapath has carried: in one session of a port whose other side comes and goes.
    pub(super) fn of(port: &Port) -> Self {
        let counts = port.counters().snapshot();
        let datapath::LockWaits { count, time } = port.lock_waits();
        Self {
            ingress: Traffic { frames: counts.ingress_frames, bytes: counts.ingress_bytes },
            egress: Traffic { frames: counts.egress_frames, bytes: counts.egress_bytes },
            gso_checksum_fixups: port.gso_checksum_fixups(),
            lock_waits: LockWaits { count, nanoseconds: nanoseconds(time) },
            learning: learning(counts.learning),
            drops: Counts::new(|reason| counts.dropped(reason)),
            batches: batches(&port.batches()),
        }
    }

    /// Adds what was carried in a session that has ended: `port` is detached.
    pub(super) fn end(&mut self, port: &Port) {
        let Self { ingress, egress, gso_checksum_fixups, lock_waits, learning, drops, batches } =
            Self::of(port);
        self.ingress += ingress;
        self.egress += egress;
        self.gso_checksum_fixups += gso_checksum_fixups;
        self.lock_waits += lock_waits;
        self.learning += learning;
        self.drops += drops;
        self.batches += &batches;
    }

    /// Whether no frame was carried.
    pub(super) fn is_nothing(&self) -> bool {
        self.ingress.frames + self.egress.frames == 0
    }

    /// The status with these counters and those of the present session.
    pub(super) fn describe(&self, status: PortStatus, port: Option<&Port>) -> PortStatus {
        let mut all = self.clone();
        if let Some(port) = port {
            all.end(port);
        }
        let Self { ingress, egress, gso_checksum_fixups, lock_waits, learning, drops, batches } =
            all;
        PortStatus {
            queues: port.map_or(0, Port::queues),
            guest_hash: port.is_some_and(Port::is_steered_by_guest),
            ingress,
            egress,
            gso_checksum_fixups,
            lock_waits,
            learning,
            drops,
            batches,
            ..status
        }
    }
}

/// What became of the source addresses of frames.
pub(super) fn learning(counts: switch::LearningCounts) -> Learning {
    let switch::LearningCounts { moves, refused_moves, refused_addresses } = counts;
    Learning { moves, refused_moves, refused_addresses }
}

fn batches(counts: &datapath::BatchCounts) -> BatchStatus {
    BatchStatus {
        ingress_frames: histogram(&counts.ingress_frames),
        egress_frames: histogram(&counts.egress_frames),
        nanoseconds: histogram(&counts.nanoseconds),
        worker_nanoseconds: counts.worker_nanoseconds,
    }
}

fn histogram(distribution: &datapath::Distribution) -> Histogram {
    let buckets = distribution.buckets.iter().copied().filter(|(bound, _)| *bound < u64::MAX);
    Histogram { count: distribution.count(), sum: distribution.sum, buckets: buckets.collect() }
}
