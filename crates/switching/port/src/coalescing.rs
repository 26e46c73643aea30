//! One wake-up for several frames.

use std::time::Duration;

/// When somebody who sleeps is woken up for frames: after so many, or so long after the last one, whichever comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// Frames of one wake-up, at least one. With one, each wakes.
    pub frames: u32,
    /// How long after the last frame.
    pub after: Duration,
}

impl Coalescing {
    /// The most frames of one wake-up.
    pub const FRAMES_MAX: u32 = 64;
    /// Each frame wakes.
    pub const OFF: Self = Self { frames: 1, after: Duration::ZERO };
}
