//! Which caches and TLBs are modelled, and which of them are counted for each function.

use serde::{Deserialize, Serialize};

use crate::geometry::{L2_BYTES, TLB_ENTRIES};
use crate::policy::Policy;
use crate::preset::Preset;
use crate::tlb_set::TlbSet;

/// The processor whose misses are counted function by function: one of all that are modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Whose costs reports use, unless they are told otherwise.
    pub preset: Preset,
    /// Bytes of L1I and of L1D.
    pub l1_bytes: usize,
    /// An index into [`L2_BYTES`].
    pub l2: usize,
    /// An index into [`L2_BYTES`] above that of L2: a unified cache that sees what the L1s miss. None without an L3.
    pub l3: Option<usize>,
    /// An index into [`TLB_ENTRIES`].
    pub tlb: usize,
    /// An index into [`TLB_ENTRIES`] above that of the first level, for code and for data each. None without a second level.
    pub tlb2: Option<usize>,
    /// Whether superpages under what-if policies cover a kernel's whole range of addresses, else its linear map only.
    pub kernel_superpages: bool,
    /// Whose TLB misses are counted function by function: the processor's own policy, or a what-if policy.
    pub policy: Policy,
    /// Only these caches and TLBs and the processor's own policy are modelled, which is faster.
    pub single: bool,
}

impl Config {
    /// The TLB whose misses are counted function by function.
    #[must_use]
    pub fn counted(&self) -> TlbSet {
        TlbSet::one(self.policy, self.tlb)
    }

    /// The TLB whose misses walk the page tables.
    #[must_use]
    pub fn walking(&self) -> TlbSet {
        TlbSet::one(self.policy, self.tlb2.unwrap_or(self.tlb))
    }

    /// The TLBs that are modelled.
    #[must_use]
    pub fn modelled(&self) -> TlbSet {
        if self.single { self.counted().union(self.walking()) } else { TlbSet::ALL }
    }

    /// Whether the L2 that is counted function by function is among those that missed, one bit each.
    #[inline]
    #[must_use]
    pub fn counts_line(&self, missed: u8) -> bool {
        missed >> self.l2 & 1 != 0
    }

    /// Whether a line that those of `missed` missed comes from memory.
    #[inline]
    #[must_use]
    pub fn is_from_memory(&self, missed: u8) -> bool {
        missed >> self.l3.unwrap_or(self.l2) & 1 != 0
    }

    /// Checks that each second level is larger than the first, and that the policy is modelled.
    ///
    /// # Errors
    /// In words.
    pub fn check(&self) -> Result<(), String> {
        if self.l3.is_some_and(|l3| l3 <= self.l2) {
            return Err("the L3 is no larger than the L2".to_owned());
        }
        if self.tlb2.is_some_and(|tlb2| tlb2 <= self.tlb) {
            return Err("the second level of TLBs is no larger than the first".to_owned());
        }
        if self.single && self.policy != Policy::Real {
            return Err("a single configuration has the processor's own policy only".to_owned());
        }
        Ok(())
    }
}

impl std::fmt::Display for Config {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kib = |index: usize| L2_BYTES[index] >> 10;
        write!(f, "L1 {} KiB, L2 {} KiB, ", self.l1_bytes >> 10, kib(self.l2))?;
        match self.l3 {
            Some(l3) => write!(f, "L3 {} KiB, ", kib(l3))?,
            None => f.write_str("no L3, ")?,
        }
        write!(f, "TLBs of {}", TLB_ENTRIES[self.tlb])?;
        match self.tlb2 {
            Some(tlb2) => write!(f, " and {} entries", TLB_ENTRIES[tlb2])?,
            None => f.write_str(" entries")?,
        }
        if self.kernel_superpages {
            f.write_str(", superpages for kernels")?;
        }
        match self.policy {
            Policy::Real => Ok(()),
            policy => write!(f, ", TLB misses of functions under {}", policy.name()),
        }
    }
}
