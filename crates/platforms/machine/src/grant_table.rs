//! Xen's v1 grant table, as it lies in a domain's memory.

use hypervisor::{DomId, PAGE_SIZE};

/// Bytes of a v1 grant entry: `{flags: u16, domid: u16, frame: u32}`.
pub(crate) const GRANT_ENTRY_LEN: usize = 8;
/// Grant entries in a page.
pub(crate) const GRANTS_PER_PAGE: usize = PAGE_SIZE / GRANT_ENTRY_LEN;
/// The first references are reserved (console, xenstore), as on Xen.
pub(crate) const GRANTS_RESERVED: u32 = 8;

/// Bits of a grant entry's `flags` (`public/grant_table.h`).
pub(crate) mod gtf {
    pub(crate) const PERMIT_ACCESS: u16 = 1;
    pub(crate) const ACCEPT_TRANSFER: u16 = 2;
    pub(crate) const TYPE_MASK: u16 = 3;
    pub(crate) const READONLY: u16 = 1 << 2;
    pub(crate) const READING: u16 = 1 << 3;
    pub(crate) const WRITING: u16 = 1 << 4;
    /// With `ACCEPT_TRANSFER`: the hypervisor has begun; the guest must not change the entry.
    pub(crate) const TRANSFER_COMMITTED: u16 = 1 << 2;
    /// With `ACCEPT_TRANSFER`: `frame` is the number of the page that came.
    pub(crate) const TRANSFER_COMPLETED: u16 = 1 << 3;
}

/// What a caller wants to do with a granted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
}

/// A private copy of a v1 grant entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantEntry {
    flags: u16,
    domid: u16,
    pub(crate) frame: u32,
}

impl From<u64> for GrantEntry {
    #[inline]
    fn from(word: u64) -> Self {
        let [f0, f1, d0, d1, p0, p1, p2, p3] = word.to_ne_bytes();
        Self {
            flags: u16::from_ne_bytes([f0, f1]),
            domid: u16::from_ne_bytes([d0, d1]),
            frame: u32::from_ne_bytes([p0, p1, p2, p3]),
        }
    }
}

impl GrantEntry {
    /// Whether the entry lets `caller` have this access.
    #[inline]
    pub(crate) fn permits(self, caller: DomId, access: Access) -> bool {
        self.flags & gtf::TYPE_MASK == gtf::PERMIT_ACCESS
            && self.domid == caller.0
            && (access == Access::Read || self.flags & gtf::READONLY == 0)
    }
}
