//! How much was merged.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what was merged for one port. All its queues share it.
#[derive(Debug, Default)]
pub struct Counters {
    frames: AtomicU64,
    segments: AtomicU64,
}

/// What was merged and delivered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Merged frames.
    pub frames: u64,
    /// The segments that they were made of.
    pub segments: u64,
}

impl Counters {
    pub(crate) fn add(&self, Counts { frames, segments }: Counts) {
        if frames > 0 {
            self.frames.fetch_add(frames, Ordering::Relaxed);
            self.segments.fetch_add(segments, Ordering::Relaxed);
        }
    }

    /// What was counted until now.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            frames: self.frames.load(Ordering::Relaxed),
            segments: self.segments.load(Ordering::Relaxed),
        }
    }
}
