//! What the processor does that empties TLBs.

/// An instruction that empties TLBs, entirely or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// A write of CR3: its new value.
    Cr3(u64),
    /// A write of CR4: its new value.
    Cr4(u64),
    /// INVLPG: the address.
    Page(u64),
    /// INVPCID: its type, the PCID, the address.
    Pcid(u64, u16, u64),
}

/// Where such an instruction is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushSite {
    /// In the hypervisor's function that changes the address space for another process or domain: Xen's `switch_cr3_cr4`.
    NewSpace,
    /// Anywhere else: a change between the page tables of one process, or an explicit flush.
    Elsewhere,
}
