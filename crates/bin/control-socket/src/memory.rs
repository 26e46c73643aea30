//! A guest's memory, and what of it is mapped.

use std::ops::{Add, Sub};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A guest's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryStatus {
    /// Bytes of ordinary memory: what the guest started with, less what its balloon holds.
    pub reservation: u64,
    /// Whether the configuration asks for pages of 2 MiB.
    pub huge_pages: bool,
    /// How the daemon has it mapped; absent if unknown.
    pub daemon: Option<View>,
    /// How the guest's process has it mapped; absent if unknown, as it is to a daemon in its sandbox.
    pub guest: Option<View>,
}

/// The memory of a virtual machine that its front-end has mapped in the daemon, with its logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MappedMemory {
    /// Bytes that are mapped. Page tables for them, once they are touched, are 1/512 of it.
    pub bytes: u64,
    /// Bytes that may be mapped.
    pub limit: u64,
}

/// How much of a guest's memory large pages map in one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct View {
    /// Bytes mapped by pages of 2 MiB.
    pub large: u64,
    /// Bytes of memory.
    pub total: u64,
}

/// Pages of all queues of a guest that stay mapped: persistent grants and grant caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PersistentStatus {
    /// Most pages that can be mapped.
    pub bound: usize,
    /// Bytes of the pages that are mapped.
    #[serde(default)]
    pub bytes: u64,
    /// The pages of packets from the guest.
    #[serde(default)]
    pub tx: KeptPages,
    /// The buffers for packets to the guest.
    #[serde(default)]
    pub rx: KeptPages,
}

/// Pages of one direction that stay mapped, and how they are used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct KeptPages {
    /// Pages that are mapped: the active set.
    pub mapped: usize,
    /// Lookups of a page that found it mapped.
    pub hits: u64,
    /// Lookups of a page that was not mapped.
    pub misses: u64,
    /// Pages that lost their place to others, because as many as may be were mapped.
    pub evictions: u64,
}

impl KeptPages {
    /// The part of lookups that found their page mapped, 0 to 1; none without a lookup.
    #[must_use]
    pub fn hit_rate(&self) -> Option<f64> {
        let all = self.hits + self.misses;
        (all > 0).then(|| self.hits as f64 / all as f64)
    }
}

impl Add for KeptPages {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            mapped: self.mapped + other.mapped,
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            evictions: self.evictions + other.evictions,
        }
    }
}

impl Sub for KeptPages {
    type Output = Self;

    /// What was counted since an earlier reading. The active set is the later one.
    fn sub(self, earlier: Self) -> Self {
        Self {
            mapped: self.mapped,
            hits: self.hits.saturating_sub(earlier.hits),
            misses: self.misses.saturating_sub(earlier.misses),
            evictions: self.evictions.saturating_sub(earlier.evictions),
        }
    }
}
