//! How much was merged.

use std::sync::atomic::{AtomicU64, Ordering};

use port::{Metric, whole};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// GroStatus what was merged for one port. All its queues share it.
#[derive(Debug, Default)]
pub struct Counters {
    frames: AtomicU64,
    segments: AtomicU64,
}

/// TCP segments that were merged on their way out of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GroStatus {
    /// Segments that were merged.
    pub segments: u64,
    /// The frames that they became.
    pub frames: u64,
}

impl GroStatus {
    /// Whether nothing was.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

impl Counters {
    pub(crate) fn add(&self, GroStatus { frames, segments }: GroStatus) {
        if frames > 0 {
            self.frames.fetch_add(frames, Ordering::Relaxed);
            self.segments.fetch_add(segments, Ordering::Relaxed);
        }
    }

    /// What was counted until now.
    #[must_use]
    pub fn counts(&self) -> GroStatus {
        GroStatus {
            frames: self.frames.load(Ordering::Relaxed),
            segments: self.segments.load(Ordering::Relaxed),
        }
    }
}

/// What is counted of it.
pub const METRICS: &[Metric<GroStatus>] = &[
    Metric::counter(
        "pvnet_port_gro_segments",
        "TCP segments for the port that were merged",
        |gro| whole(gro.segments),
    ),
    Metric::counter(
        "pvnet_port_gro_frames",
        "Frames for the port that were merged from segments",
        |gro| whole(gro.frames),
    ),
];
