//! How TLBs treat global pages, address spaces and large pages: as the processor does, and alternatives.

use serde::{Deserialize, Serialize};

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
