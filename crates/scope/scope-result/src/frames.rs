//! Frames that cross the interfaces of the machine's kernels.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The frames of an interface in one direction, counted where its driver gets or gives them.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct InterfaceFrames {
    /// The domain: an index into [`Recording::domains`](crate::Recording::domains).
    pub domain: u8,
    /// The interface's name in its domain.
    pub interface: String,
    /// Whether the kernel sends them, else it receives.
    pub sent: bool,
    /// The counts.
    pub counts: FrameCounts,
}

/// Counts of frames. A frame is what the driver handles as one, of up to 64 KiB with offloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct FrameCounts {
    /// Frames with a payload.
    pub data: u64,
    /// Segments of TCP without a payload.
    pub acks: u64,
    /// All other frames.
    pub others: u64,
    /// Bytes of all of them, from the Ethernet header on.
    pub bytes: u64,
    /// Bytes of payload above TCP or UDP.
    pub payload: u64,
}

impl FrameCounts {
    /// All frames.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.data + self.acks + self.others
    }
}

impl std::ops::AddAssign for FrameCounts {
    fn add_assign(&mut self, other: Self) {
        self.data += other.data;
        self.acks += other.acks;
        self.others += other.others;
        self.bytes += other.bytes;
        self.payload += other.payload;
    }
}
