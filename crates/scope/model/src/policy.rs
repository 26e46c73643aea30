//! How TLBs are kept: as the processor does, and what if it did otherwise.

use serde::{Deserialize, Serialize};

/// A way to keep a TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Policy {
    /// As the processor does: a new CR3 takes all out but global pages (and, with PCID, but what is
    /// other contexts').
    Real,
    /// No page is global.
    NoGlobal,
    /// The hypervisor's pages are global, whatever their page tables say (Chadha §4.2).
    GlobalHypervisor,
    /// Every entry has the tag of its address space (ASID, VPID): a new CR3 takes nothing out.
    Tagged,
    /// As the processor, but the kernel's linear map is mapped by 2 MiB wherever nothing has
    /// broken a block up (Menon 2006 §5.4).
    Superpages,
    /// The same, and what breaks blocks up is kept in blocks of its own: the grouping allocator.
    GroupedSuperpages,
}

/// All of them, in the order of their numbers.
pub const POLICIES: [Policy; 6] = [
    Policy::Real,
    Policy::NoGlobal,
    Policy::GlobalHypervisor,
    Policy::Tagged,
    Policy::Superpages,
    Policy::GroupedSuperpages,
];

impl Policy {
    /// Its name in results.
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
