//! `/dev/xen/gntdev` (`xen/gntdev.h`).

use std::ffi::c_void;
use std::marker::PhantomData;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use hypervisor::grant::{CopyStatus, Dest, Source};
use hypervisor::{GrantRef, PAGE_SIZE};
use rustix::io::{Errno, Result};
use rustix::ioctl::Opcode;

use shm::Region;

use super::{call, number};
use crate::peer::Peer;
use crate::shared_pages::KnownGrants;

/// Most pages of one mapping: a page for each slot of a ring.
pub(crate) const PAGES_MAX: usize = 256;

/// The structure's size with one reference, which is what its ioctl's number carries.
const MAP_GRANT_REF: Opcode = number(b'G', 0, 24);
const UNMAP_GRANT_REF: Opcode = number(b'G', 1, size_of::<UnmapGrantRef>());
const SET_UNMAP_NOTIFY: Opcode = number(b'G', 7, size_of::<UnmapNotify>());
const GRANT_COPY: Opcode = number(b'G', 8, size_of::<Copy>());

const UNMAP_NOTIFY_SEND_EVENT: u32 = 2;
/// Flags and answers of `GNTTABOP_copy` (`xen/interface/grant_table.h`).
const GNTCOPY_SOURCE_GREF: u16 = 1;
const GNTCOPY_DEST_GREF: u16 = 2;
const GNTST_OKAY: i16 = 0;

/// `struct ioctl_gntdev_grant_ref`
#[repr(C)]
#[derive(Clone, Copy)]
struct GrantOf {
    domid: u32,
    gref: u32,
}

/// `struct ioctl_gntdev_map_grant_ref`, with room for [`PAGES_MAX`] references.
#[repr(C)]
struct MapGrantRef {
    count: u32,
    pad: u32,
    index: u64,
    refs: [GrantOf; PAGES_MAX],
}

/// `struct ioctl_gntdev_unmap_grant_ref`
#[repr(C)]
struct UnmapGrantRef {
    index: u64,
    count: u32,
    pad: u32,
}

/// `struct ioctl_gntdev_unmap_notify`
#[repr(C)]
struct UnmapNotify {
    index: u64,
    action: u32,
    event_channel_port: u32,
}

/// One side of a copy, a union of an address and `struct { u32 gref; u16 offset; u16 domid; }`. As one word it stays in a register.
#[repr(transparent)]
#[derive(Clone, Copy)]
struct Side(u64);

impl Side {
    #[inline(always)]
    fn local(address: *mut u8) -> Self {
        Self(address.expose_provenance() as u64)
    }

    #[inline(always)]
    fn foreign(peer: Peer, gref: GrantRef, offset: u16) -> Self {
        const { assert!(cfg!(target_endian = "little")) };
        let (offset, domid) = (u64::from(offset), u64::from(peer.domain().0));
        Self(u64::from(gref.0) | offset << 32 | domid << 48)
    }
}

/// `struct gntdev_grant_copy_segment`: one copy with a granted side. The memory of the other is
/// borrowed as long as the segment lives.
#[repr(C)]
pub(crate) struct Segment<'a> {
    source: Side,
    dest: Side,
    len: u16,
    flags: u16,
    status: i16,
    local: PhantomData<&'a mut [u8]>,
}

/// `struct ioctl_gntdev_grant_copy`
#[repr(C)]
struct Copy {
    count: u32,
    segments: *mut c_void,
}

const _: () = {
    assert!(size_of::<GrantOf>() == 8);
    assert!(offset_of!(MapGrantRef, index) == 8);
    assert!(offset_of!(MapGrantRef, refs) == 16);
    assert!(size_of::<UnmapGrantRef>() == 16);
    assert!(size_of::<UnmapNotify>() == 16);
    assert!(size_of::<Side>() == 8);
    assert!(offset_of!(Segment<'_>, dest) == 8);
    assert!(offset_of!(Segment<'_>, len) == 16);
    assert!(offset_of!(Segment<'_>, flags) == 18);
    assert!(offset_of!(Segment<'_>, status) == 20);
    assert!(size_of::<Segment<'_>>() == 24);
    assert!(offset_of!(Copy, segments) == 8);
    assert!(MAP_GRANT_REF == 0x0018_4700);
    assert!(UNMAP_GRANT_REF == 0x0010_4701);
    assert!(SET_UNMAP_NOTIFY == 0x0010_4707);
    assert!(GRANT_COPY == 0x0010_4708);
};

/// Adds grants of one domain to the device's table. Mapping the device from the answered offset
/// maps them.
pub(crate) fn map_grant_refs(fd: BorrowedFd<'_>, peer: Peer, grefs: &[GrantRef]) -> Result<u64> {
    let domid = peer.domain().0.into();
    let mut refs = [GrantOf { domid, gref: 0 }; PAGES_MAX];
    if grefs.len() > refs.len() {
        return Err(Errno::NOMEM);
    }
    for (place, gref) in refs.iter_mut().zip(grefs) {
        place.gref = gref.0;
    }
    // At most PAGES_MAX.
    let count = u32::try_from(grefs.len()).unwrap_or(0);
    let mut map = MapGrantRef { count, pad: 0, index: 0, refs };
    // SAFETY: the device reads the structure's head and `count` references, and writes the head.
    unsafe { call::<MAP_GRANT_REF, _>(fd, &mut map)? };
    Ok(map.index)
}

/// Removes grants from the device's table.
pub(crate) fn unmap_grant_refs(fd: BorrowedFd<'_>, index: u64, count: u32) -> Result<()> {
    let mut unmap = UnmapGrantRef { index, count, pad: 0 };
    // SAFETY: the device reads one `struct ioctl_gntdev_unmap_grant_ref`.
    unsafe { call::<UNMAP_GRANT_REF, _>(fd, &mut unmap).map(drop) }
}

/// Makes the kernel send an event on this domain's `port` when the page at `index` is unmapped.
pub(crate) fn notify_on_unmap(fd: BorrowedFd<'_>, index: u64, port: u32) -> Result<()> {
    let action = UNMAP_NOTIFY_SEND_EVENT;
    let mut notify = UnmapNotify { index, action, event_channel_port: port };
    // SAFETY: the device reads one `struct ioctl_gntdev_unmap_notify`.
    unsafe { call::<SET_UNMAP_NOTIFY, _>(fd, &mut notify).map(drop) }
}

/// Performs copies. Each segment gets its own status; on an error none does.
pub(crate) fn grant_copy(fd: BorrowedFd<'_>, segments: &mut [Segment<'_>]) -> Result<()> {
    let count = u32::try_from(segments.len()).map_err(|_| Errno::INVAL)?;
    let mut copy = Copy { count, segments: segments.as_mut_ptr().cast() };
    // SAFETY: the device reads and writes `count` segments, which are borrowed mutably for the call.
    // What it reads and writes of ours besides is where their local sides point: `len` bytes each
    // that `End` found to be there, and that the segments borrow.
    unsafe { call::<GRANT_COPY, _>(fd, &mut copy).map(drop) }
}

/// One end of a copy. It lies in one page if it is named by a grant, and in memory that is borrowed otherwise: the kernel would silently
/// write past the end of a slice.
pub(crate) struct End<'a> {
    side: Side,
    len: u16,
    is_granted: bool,
    local: PhantomData<&'a mut [u8]>,
}

impl<'a> End<'a> {
    /// A page that is granted and mapped is named by its grant, because Xen accepts addresses only of this
    /// domain's own memory.
    #[inline(always)]
    pub(crate) fn source(
        source: Source<'a, Peer>,
        len: u16,
        known: &mut KnownGrants<'a>,
    ) -> Option<Self> {
        match source {
            Source::Grant { peer, gref, offset } => Self::granted((peer, gref, offset), len),
            Source::MappedGrant { .. } => Self::granted(source.granted()?, len),
            Source::Mapped { region, offset } => Self::mapped(region, offset, len, known),
            Source::Private(source) => {
                let bytes = source.get(..len.into())?;
                Some(Self::local(bytes.as_ptr().cast_mut(), len))
            }
        }
    }

    #[inline(always)]
    pub(crate) fn dest(
        dest: Dest<'a, Peer>,
        len: u16,
        known: &mut KnownGrants<'a>,
    ) -> Option<Self> {
        match dest {
            Dest::Grant { peer, gref, offset } => Self::granted((peer, gref, offset), len),
            Dest::MappedGrant { .. } => Self::granted(dest.granted()?, len),
            Dest::Mapped { region, offset } => Self::mapped(region, offset, len, known),
            Dest::Private(dest) => {
                let bytes = dest.get_mut(..len.into())?;
                Some(Self::local(bytes.as_mut_ptr(), len))
            }
        }
    }

    /// Bytes of mapped memory. A page that this domain grants to itself is named by that grant, so that the kernel need not pin it.
    #[inline(always)]
    pub(crate) fn mapped(
        region: &'a Region,
        offset: usize,
        len: u16,
        known: &mut KnownGrants<'a>,
    ) -> Option<Self> {
        let address = region.address(offset, len.into()).ok()?;
        match known.of(region, offset, len) {
            Some(grant) => Self::granted(grant, len),
            None => Some(Self::local(address, len)),
        }
    }

    #[inline(always)]
    pub(crate) fn granted((peer, gref, offset): (&Peer, GrantRef, u16), len: u16) -> Option<Self> {
        if usize::from(offset) + usize::from(len) > PAGE_SIZE {
            return None;
        }
        let side = Side::foreign(*peer, gref, offset);
        Some(Self { side, len, is_granted: true, local: PhantomData })
    }

    /// No memory, until it is replaced: a copy fails that names it.
    #[inline(always)]
    pub(crate) fn nowhere(len: u16) -> Self {
        Self::local(std::ptr::null_mut(), len)
    }

    /// The caller has found `len` bytes there, which are borrowed; or none are there.
    #[inline]
    fn local(address: *mut u8, len: u16) -> Self {
        let side = Side::local(address);
        Self { side, len, is_granted: false, local: PhantomData }
    }
}

/// A flag of a copy, if this end is named by a grant.
fn flag(end: &End<'_>, flag: u16) -> u16 {
    if end.is_granted { flag } else { 0 }
}

impl<'a> Segment<'a> {
    /// A copy not yet performed, of ends of the same length.
    #[inline(always)]
    #[expect(clippy::needless_pass_by_value, reason = "an end belongs to one copy")]
    pub(crate) fn between(source: End<'a>, dest: End<'a>) -> Option<Self> {
        let flags = flag(&source, GNTCOPY_SOURCE_GREF) | flag(&dest, GNTCOPY_DEST_GREF);
        let (len, status, local) = (source.len, GNTST_OKAY, PhantomData);
        let segment = Self { source: source.side, dest: dest.side, len, flags, status, local };
        (source.len == dest.len).then_some(segment)
    }

    /// A copy not yet performed.
    #[inline(always)]
    pub(crate) fn new(
        source: Source<'a, Peer>,
        dest: Dest<'a, Peer>,
        len: u16,
        known: &mut KnownGrants<'a>,
    ) -> std::result::Result<Self, CopyStatus> {
        let source = End::source(source, len, known).ok_or(CopyStatus::BadSource)?;
        let dest = End::dest(dest, len, known).ok_or(CopyStatus::BadDest)?;
        Self::between(source, dest).ok_or(CopyStatus::BadDest)
    }

    /// How many bytes.
    pub(crate) fn len(&self) -> u16 {
        self.len
    }

    /// Replaces its source by one of the same length.
    #[inline]
    pub(crate) fn set_source(&mut self, end: &End<'a>) {
        if end.len == self.len {
            self.source = end.side;
            self.flags = flag(end, GNTCOPY_SOURCE_GREF) | self.flags & !GNTCOPY_SOURCE_GREF;
        }
    }

    /// Replaces its destination by one of the same length.
    #[inline]
    pub(crate) fn set_dest(&mut self, end: &End<'a>) {
        if end.len == self.len {
            self.dest = end.side;
            self.flags = flag(end, GNTCOPY_DEST_GREF) | self.flags & !GNTCOPY_DEST_GREF;
        }
    }

    /// A copy of this source's first byte into a byte of this process.
    pub(crate) fn probe<'b>(&'b self, byte: &'b mut u8) -> Segment<'b> {
        let dest = Side::local(std::ptr::from_mut(byte));
        let flags = self.flags & !GNTCOPY_DEST_GREF;
        let (source, local) = (self.source, PhantomData);
        Segment { source, dest, len: 1, flags, status: GNTST_OKAY, local }
    }

    /// Whether source and destination are granted; one of them is.
    #[inline]
    pub(crate) fn granted(&self) -> (bool, bool) {
        (self.flags & GNTCOPY_SOURCE_GREF != 0, self.flags & GNTCOPY_DEST_GREF != 0)
    }

    /// Whether it was done.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.status == GNTST_OKAY
    }
}

#[cfg(test)]
mod tests {
    use hypervisor::DomId;

    use super::*;

    #[test]
    fn a_granted_side_is_what_the_device_reads() {
        let side = Side::foreign(Peer::new(DomId(0x0102)).unwrap(), GrantRef(0x0304_0506), 0x0708);
        assert_eq!(side.0.to_ne_bytes(), [0x06, 0x05, 0x04, 0x03, 0x08, 0x07, 0x02, 0x01]);
    }
}
