//! The caches, TLBs and policies that are modelled, processors whose sizes are known, and which of all these are counted for each function.

use serde::{Deserialize, Serialize};

/// The processor whose misses are counted function by function: one of all that are modelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The preset whose costs reports use by default.
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
    /// The policy whose TLB misses are counted function by function: the processor's own, or a what-if policy.
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

    /// Whether the L2 that is counted function by function is one of those in `missed`, one bit each.
    #[inline]
    #[must_use]
    pub fn counts_line(&self, missed: u8) -> bool {
        missed >> self.l2 & 1 != 0
    }

    /// Whether a line comes from memory if the caches in `missed` missed it, one bit each.
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

/// The number of layouts.
pub const LAYOUTS: usize = 32;

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// The sizes of the unified L2, in bytes.
pub const L2_BYTES: [usize; 7] =
    [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];
/// The number of L2 sizes.
pub const L2_SIZES: usize = L2_BYTES.len();

/// The sizes of a TLB for pages of 4 KiB, in entries. The TLB for large pages has half as many.
pub const TLB_ENTRIES: [u16; 7] = [16, 32, 64, 128, 256, 512, 1024];
/// The number of TLB sizes.
pub const TLB_SIZES: usize = TLB_ENTRIES.len();

named::named! {
    /// A processor: the sizes of its caches and TLBs, and the costs of its events.
    ///
    /// The costs are round numbers of the published order of magnitude. `pvscope calibrate` compares them with the host's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Preset {
        /// A server of 2007 at 3 GHz, with the sizes of Chadha et al.: 2 MiB of L2 before memory, 64 TLB entries before the page
        /// tables.
        #[serde(rename = "2007")]
        Of2007 => "2007",
        /// A present server at 3 to 4 GHz: 1 MiB of L2, a slice of 16 MiB of L3, 64 TLB entries and 1024 behind them.
        #[default]
        #[serde(rename = "server")]
        Server => "server",
    }
}

impl Preset {
    /// The preset of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }
}

named::named! {
    /// How a TLB treats global pages, address spaces and large pages.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[repr(u8)]
    pub enum Policy {
        /// As the processor does: a new CR3 removes everything but global pages and, with PCID, entries of other contexts.
        #[default]
        Real => "real",
        /// No page is global.
        NoGlobal => "no-global",
        /// Only the hypervisor's pages are global, regardless of their page tables (Chadha §4.2), and its context switch keeps
        /// them. An upper bound of what a global bit for the hypervisor saves: no context switch has to flush its pages.
        GlobalHypervisor => "global-hypervisor",
        /// Every entry has the tag of its page tables (ASID, VPID): neither a new CR3 nor the hypervisor's context switch removes
        /// anything. An upper bound of what tags save: there are more tags than page tables, and none is ever recycled early.
        Tagged => "tagged",
        /// As the processor does, with the kernel's linear map in pages of 2 MiB wherever nothing has broken a block up (Menon
        /// 2006 §5.4).
        Superpages => "superpages",
        /// As `Superpages`, with the pages that break blocks up kept together: the grouping allocator.
        GroupedSuperpages => "grouped-superpages",
        /// Kernels' pages are global like the hypervisor's, and everything is flushed when another domain runs (Menon 2006 §5.3.2);
        /// idling in between flushes nothing. An upper bound of what global pages save in guests: a domain keeps all of its
        /// kernel's pages until then, and never unmaps one.
        GuestGlobal => "guest-global",
        /// As `GuestGlobal`, with the large pages of `GroupedSuperpages`: the paper's SP-GP.
        GuestGlobalSuperpages => "guest-global-superpages",
    }
}

impl Policy {
    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Policy::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// The number of TLBs for one page size of one side: every size under every policy.
pub const TLBS: usize = TLB_SIZES * Policy::ALL.len();

/// A set of TLBs, one bit each. The bits of a policy are neighbours, the smallest TLB first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbSet(pub u64);

impl TlbSet {
    /// No TLB.
    pub const NONE: Self = Self(0);
    /// Every TLB.
    pub const ALL: Self = Self((1 << TLBS) - 1);

    /// All sizes under one policy.
    #[must_use]
    pub const fn of(policy: Policy) -> Self {
        Self(((1 << TLB_SIZES) - 1) << (policy as usize * TLB_SIZES))
    }

    /// One TLB; `size` is an index into [`TLB_ENTRIES`](crate::TLB_ENTRIES).
    #[must_use]
    pub const fn one(policy: Policy, size: usize) -> Self {
        Self(1 << (policy as usize * TLB_SIZES + size))
    }

    /// This set if `condition` holds, else none.
    #[inline]
    #[must_use]
    pub const fn only_if(self, condition: bool) -> Self {
        Self(self.0 & (condition as u64).wrapping_neg())
    }

    /// The TLBs of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The TLBs of this set that `other` does not have.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether both sets have a TLB in common.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The numbers of the TLBs, in ascending order.
    pub(crate) fn numbers(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            (left != 0).then(|| {
                let number = left.trailing_zeros() as usize;
                left &= left - 1;
                number
            })
        })
    }
}
