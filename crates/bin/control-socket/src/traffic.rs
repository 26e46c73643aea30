//! What a port has carried and dropped, in numbers.

use std::ops::AddAssign;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Frames and bytes in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Traffic {
    /// Frames; a GSO frame counts once.
    pub frames: u64,
    /// Bytes, Ethernet headers included.
    pub bytes: u64,
}

/// Frames that the kernel dropped at a device, since the device was made: by the interface's statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceDrops {
    /// On their way to the daemon, mostly because it did not read them in time.
    pub ingress: u64,
    /// After the daemon had sent them.
    pub egress: u64,
}

/// Waits of workers for an egress queue that another one had locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LockWaits {
    /// How many there were.
    pub count: u64,
    /// Their time together.
    pub nanoseconds: u64,
}

impl LockWaits {
    pub(crate) fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What became of the source addresses of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Learning {
    /// Stations that moved to the port from another.
    pub moves: u64,
    /// Frames whose source address another port kept.
    pub refused_moves: u64,
    /// Frames whose source address was not learnt: the port has as many as it may, or the switch's table is full.
    pub refused_addresses: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.frames += other.frames;
        self.bytes += other.bytes;
    }
}

impl AddAssign for LockWaits {
    fn add_assign(&mut self, other: Self) {
        self.count += other.count;
        self.nanoseconds += other.nanoseconds;
    }
}

impl AddAssign for Learning {
    fn add_assign(&mut self, other: Self) {
        self.moves += other.moves;
        self.refused_moves += other.refused_moves;
        self.refused_addresses += other.refused_addresses;
    }
}
