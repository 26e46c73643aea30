//! How TLBs treat global pages, address spaces and large pages: as the processor does, and alternatives.

use serde::{Deserialize, Serialize};

/// How a TLB treats global pages, address spaces and large pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Policy {
    /// As the processor does: a new CR3 removes everything but global pages and, with PCID, entries of other contexts.
    Real,
    /// No page is global.
    NoGlobal,
    /// The hypervisor's pages are global regardless of their page tables (Chadha §4.2).
    GlobalHypervisor,
    /// Every entry has the tag of its address space (ASID, VPID): a new CR3 removes nothing.
    Tagged,
    /// As the processor does, with the kernel's linear map in pages of 2 MiB wherever nothing has broken a block up (Menon
    /// 2006 §5.4).
    Superpages,
    /// As `Superpages`, with the pages that break blocks up kept together: the grouping allocator.
    GroupedSuperpages,
}

/// All policies, in the order of their numbers.
pub const POLICIES: [Policy; 6] = [
    Policy::Real,
    Policy::NoGlobal,
    Policy::GlobalHypervisor,
    Policy::Tagged,
    Policy::Superpages,
    Policy::GroupedSuperpages,
];

impl Policy {
    /// The policy's name in results.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Real => "real",
            Self::NoGlobal => "no-global",
            Self::GlobalHypervisor => "global-hypervisor",
            Self::Tagged => "tagged",
            Self::Superpages => "superpages",
            Self::GroupedSuperpages => "grouped-superpages",
        }
    }
}
