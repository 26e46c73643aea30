//! `/dev/xen/gntalloc` (`xen/gntalloc.h`).

use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use rustix::io::{Errno, Result};
use rustix::ioctl::Opcode;

use super::{call, number};

/// Most pages of one allocation: all that the device gives by default.
pub(crate) const PAGES_MAX: usize = 1024;

/// The numbers carry the structures' sizes, that of `AllocGref` with one reference.
const ALLOC_GREF: Opcode = number(b'G', 5, 24);
const DEALLOC_GREF: Opcode = number(b'G', 6, size_of::<DeallocGref>());

/// What the other domain may do with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Access {
    ReadOnly = 0,
    /// `GNTALLOC_FLAG_WRITABLE`
    Writable = 1,
}

/// `struct ioctl_gntalloc_alloc_gref`, with room for [`PAGES_MAX`] references.
#[repr(C)]
struct AllocGref {
    domid: u16,
    flags: u16,
    count: u32,
    index: u64,
    gref_ids: [u32; PAGES_MAX],
}

/// `struct ioctl_gntalloc_dealloc_gref`
#[repr(C)]
struct DeallocGref {
    index: u64,
    count: u32,
    pad: u32,
}

const _: () = {
    assert!(offset_of!(AllocGref, count) == 4);
    assert!(offset_of!(AllocGref, index) == 8);
    assert!(offset_of!(AllocGref, gref_ids) == 16);
    assert!(size_of::<DeallocGref>() == 16);
    assert!(ALLOC_GREF == 0x0018_4705);
    assert!(DEALLOC_GREF == 0x0010_4706);
};

/// Allocates `count` zeroed pages and grants each to `domid`. They are contiguous from the returned
/// offset in the device. Passes their references to `put` in order.
pub(crate) fn alloc_grefs(
    fd: BorrowedFd<'_>,
    domid: u16,
    count: usize,
    access: Access,
    put: impl FnMut(u32),
) -> Result<u64> {
    if count > PAGES_MAX {
        return Err(Errno::NOSPC);
    }
    let mut alloc = AllocGref {
        domid,
        flags: access as u16,
        // At most PAGES_MAX.
        count: u32::try_from(count).unwrap_or(0),
        index: 0,
        gref_ids: [0; PAGES_MAX],
    };
    // SAFETY: the device reads the structure's head and writes it and `count` references, for which
    // there is room.
    unsafe { call::<ALLOC_GREF, _>(fd, &mut alloc)? };
    alloc.gref_ids[..count].iter().copied().for_each(put);
    Ok(alloc.index)
}

/// Frees pages, which ends their grants. Pages in use are freed when the use ends.
pub(crate) fn dealloc_grefs(fd: BorrowedFd<'_>, index: u64, count: u32) -> Result<()> {
    let mut dealloc = DeallocGref { index, count, pad: 0 };
    // SAFETY: the device reads one `struct ioctl_gntalloc_dealloc_gref`.
    unsafe { call::<DEALLOC_GREF, _>(fd, &mut dealloc).map(drop) }
}
