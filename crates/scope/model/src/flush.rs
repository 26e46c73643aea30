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
