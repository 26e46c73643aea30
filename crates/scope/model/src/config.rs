//! Which caches and TLBs are modelled, and which of them are counted for each function.

use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::tlb_set::TlbSet;

/// The processor whose misses are counted function by function: one of all that are modelled.
/// The default is that of Chadha et al.: 32 KiB for each L1, 2 MiB of L2, 64 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Bytes of L1I and of L1D.
    pub l1_bytes: usize,
    /// An index into [`L2_BYTES`](crate::L2_BYTES).
    pub l2: usize,
    /// An index into [`TLB_ENTRIES`](crate::TLB_ENTRIES).
    pub tlb: usize,
    /// Only this L2, these TLBs and the processor's own policy are modelled, which is faster.
    pub single: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { l1_bytes: 32 << 10, l2: 3, tlb: 2, single: false }
    }
}

impl Config {
    /// The TLB whose misses are counted function by function.
    #[must_use]
    pub fn counted(&self) -> TlbSet {
        TlbSet::one(Policy::Real, self.tlb)
    }

    /// Whether the L2 that is counted function by function is among those that missed, one bit each.
    #[inline]
    #[must_use]
    pub fn counts_line(&self, missed: u8) -> bool {
        missed >> self.l2 & 1 != 0
    }
}
