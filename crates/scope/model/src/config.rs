//! What is modelled.

use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::tlb::Mask;

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// The sizes of the unified L2, in bytes.
pub const L2_BYTES: [usize; 7] =
    [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];
/// How many there are.
pub const L2_SIZES: usize = L2_BYTES.len();

/// The sizes of a TLB for pages of 4 KiB, in entries. That for large pages has half as many.
pub const TLB_ENTRIES: [u16; 7] = [16, 32, 64, 128, 256, 512, 1024];
/// How many there are.
pub const TLB_SIZES: usize = TLB_ENTRIES.len();

/// The processor that counts are attributed for, function by function: one of all that are modelled.
/// By default Chadha's: 32 KiB of L1 each, 2 MiB of L2, 64 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Bytes of L1I and of L1D.
    pub l1_bytes: usize,
    /// Which of [`L2_BYTES`].
    pub l2: usize,
    /// Which of [`TLB_ENTRIES`].
    pub tlb: usize,
    /// Only that L2, those TLBs and the processor's own policy: faster.
    pub single: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { l1_bytes: 32 << 10, l2: 3, tlb: 2, single: false }
    }
}

impl Config {
    /// The TLB whose misses are counted for each place in the code.
    #[must_use]
    pub fn counted(&self) -> Mask {
        Mask::one(Policy::Real, self.tlb)
    }

    /// Of L2s that missed, whether the one is among them that is counted for each place.
    #[inline]
    #[must_use]
    pub fn counts_line(&self, missed: u8) -> bool {
        missed >> self.l2 & 1 != 0
    }
}
