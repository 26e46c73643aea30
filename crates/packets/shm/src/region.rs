//! A mapped range of shared memory.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

use rustix::mm::{Advice, MapFlags, ProtFlags};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::PageSize;

/// The bytes asked for do not lie in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset} lie outside a shared region of {size}")]
pub struct OutOfBounds {
    /// First byte asked for.
    pub offset: usize,
    /// How many bytes.
    pub len: usize,
    /// The region's size.
    pub size: usize,
}

/// A range of memory shared with another domain. Dropping it unmaps it, unless it is a
/// [slice](Region::slice) of a region that is still in use.
#[derive(Debug)]
pub struct Region {
    base: NonNull<u8>,
    len: usize,
    /// The region whose mapping this is a part of; without one the mapping is its own.
    whole: Option<Arc<Region>>,
}

// SAFETY: a region is an address range that stays mapped until it is dropped; every access to
// its bytes goes through raw pointers or atomics, so threads may share it as domains do.
unsafe impl Send for Region {}
// SAFETY: as above; no method hands out a reference to non-atomic bytes.
unsafe impl Sync for Region {}

impl Region {
    /// Private zeroed memory of `len` bytes: a buffer that only this process sees.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )?
        };
        Self::adopt(base, len)
    }

    /// As [`anonymous`](Self::anonymous), where 2 MiB pages can lie: aligned to them and rounded up
    /// to whole ones. [`populate_huge`](Self::populate_huge) asks for them.
    pub fn anonymous_huge(len: usize) -> io::Result<Self> {
        let region = Self::reserve_aligned(len.next_multiple_of(PageSize::Huge.bytes()))?;
        // SAFETY: the target is the whole of a range that was reserved for this region.
        unsafe {
            rustix::mm::mmap_anonymous(
                region.base.as_ptr().cast(),
                region.len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::FIXED,
            )?;
        }
        Ok(region)
    }

    /// Maps `len` bytes of `fd` from `offset`, shared, readable and writable.
    pub fn map(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                offset,
            )?
        };
        Self::adopt(base, len)
    }

    /// Maps scattered pages of `fd` side by side: page `i` of the region is the file's page at
    /// `offsets[i]` (bytes). All pages have `page_size` bytes.
    pub fn map_scattered(fd: impl AsFd, offsets: &[u64], page_size: usize) -> io::Result<Self> {
        let mut region = Self::reserve(offsets.len() * page_size)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        for (index, offset) in offsets.iter().enumerate() {
            region.fill(index * page_size, page_size, access, &fd, *offset)?;
        }
        Ok(region)
    }

    /// Addresses with nothing behind them.
    pub(crate) fn reserve(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choosing overlaps nothing.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        Self::adopt(base, len)
    }

    /// Puts `len` bytes of `fd` from byte `from` in the place of those at `offset`: what was
    /// there is gone. Exclusively, so that no system call can be at work on them.
    pub(crate) fn fill(
        &mut self,
        offset: usize,
        len: usize,
        access: ProtFlags,
        fd: impl AsFd,
        from: u64,
    ) -> io::Result<()> {
        let place = self.at(offset, len).map_err(outside)?;
        // SAFETY: the target lies wholly inside this region's own range, which is borrowed for this
        // call alone: nobody reads, writes or hands out its bytes meanwhile.
        unsafe {
            rustix::mm::mmap(
                place.cast(),
                len,
                access,
                // At once, not at the first touch, which would cost a fault as well.
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE,
                fd,
                from,
            )?
        };
        Ok(())
    }

    /// Reserves addresses anew that a [`fill`](Self::fill) has lost: one that a driver refuses
    /// leaves nothing at all there. Answers false if they are, or may be, somebody else's by now.
    pub(crate) fn reserve_again(&mut self, offset: usize, len: usize) -> bool {
        let Ok(place) = self.at(offset, len) else { return false };
        // SAFETY: a new mapping, which replaces none.
        let mapped = unsafe {
            rustix::mm::mmap_anonymous(
                place.cast(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
            )
        };
        match mapped {
            Ok(at) if at == place.cast() => true,
            Ok(elsewhere) => {
                // Linux before 4.17 takes the address for a wish.
                // SAFETY: mapped a moment ago, and nobody else knows of it.
                let _ = unsafe { rustix::mm::munmap(elsewhere, len) };
                false
            }
            Err(_) => false,
        }
    }

    /// Takes away what is behind `len` bytes at `offset`; the addresses stay reserved.
    pub(crate) fn empty(&mut self, offset: usize, len: usize) -> io::Result<()> {
        let place = self.at(offset, len).map_err(outside)?;
        // SAFETY: as in `fill`.
        unsafe {
            rustix::mm::mmap_anonymous(
                place.cast(),
                len,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )?
        };
        Ok(())
    }

    /// As [`map`](Self::map), at an address that is a multiple of 2 MiB: what large pages need,
    /// beside an `offset` that is one too.
    pub fn map_aligned(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let region = Self::reserve_aligned(len)?;
        // SAFETY: the target is the whole of a range that was reserved for this region.
        unsafe {
            rustix::mm::mmap(
                region.base.as_ptr().cast(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::FIXED,
                fd,
                offset,
            )?;
        }
        Ok(region)
    }

    /// Addresses that nothing else will be mapped at, from a multiple of 2 MiB on. There is no
    /// memory behind them: whoever makes a region of them for others maps some there first.
    pub(crate) fn reserve_aligned(len: usize) -> io::Result<Self> {
        let align = PageSize::Huge.bytes();
        let size = len.next_multiple_of(PageSize::Small.bytes());
        let room = size.checked_add(align).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address of the kernel's choosing overlaps nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                room,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )?
        };
        let before = (start as usize).next_multiple_of(align) - start as usize;
        for (offset, len) in [(0, before), (before + size, align - before)] {
            if len > 0 {
                // SAFETY: both ends of the room made above, which nothing uses yet. If one can
                // not be unmapped, addresses are lost and nothing else.
                let _ = unsafe { rustix::mm::munmap(start.byte_add(offset), len) };
            }
        }
        // SAFETY: `before` is less than `align`, by which the room is larger than `len`.
        Self::adopt(unsafe { start.byte_add(before) }, len)
    }

    fn adopt(base: *mut core::ffi::c_void, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, whole: None })
    }

    /// A part of this region as a region of its own. It keeps the mapping alive; dropping it
    /// unmaps nothing while anybody else uses the mapping.
    pub fn slice(self: &Arc<Self>, range: Range<usize>) -> Result<Self, OutOfBounds> {
        let len = range.end.saturating_sub(range.start);
        let base = NonNull::new(self.at(range.start, len)?);
        let outside = OutOfBounds { offset: range.start, len, size: self.len };
        Ok(Self { base: base.ok_or(outside)?, len, whole: Some(self.clone()) })
    }

    /// Takes all of `range` at once, in 2 MiB pages where whole ones fit. The error says that
    /// the kernel has none to give; the range is good all the same, in pages of 4 KiB.
    ///
    /// All at once, because whoever touches a page first decides its size, and other mappings
    /// of a file may not ask. Collapsed as well, because only that says whether it came true, and
    /// gets them where `/sys/kernel/mm/transparent_hugepage/shmem_enabled` says `never` too, since
    /// that is about touching only; `deny` is about all.
    pub fn populate_huge(&self, range: Range<usize>) -> io::Result<()> {
        let len = range.end.saturating_sub(range.start);
        let outside = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let address = self.at(range.start, len).map_err(outside)?.cast();
        for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateWrite] {
            // SAFETY: the range is mapped, writable and ours; neither advice changes a byte.
            unsafe { rustix::mm::madvise(address, len, advice)? };
        }
        // SAFETY: as above; pages are copied into larger ones, their contents stay.
        match unsafe { libc::madvise(address.cast(), len, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Size in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        if offset.checked_add(len).is_some_and(|end| end <= self.len) {
            // SAFETY: offset ≤ offset + len ≤ self.len, all inside one mapping.
            Ok(unsafe { self.base.as_ptr().add(offset) })
        } else {
            Err(OutOfBounds { offset, len, size: self.len })
        }
    }

    /// The address of `len` bytes at `offset`, for system calls that take one. It is good for as
    /// long as the region is.
    #[inline]
    pub fn address(&self, offset: usize, len: usize) -> Result<*mut u8, OutOfBounds> {
        self.at(offset, len)
    }

    /// A private copy of the value at `offset`. The value is read once.
    #[inline]
    pub fn read<T: FromBytes>(&self, offset: usize) -> Result<T, OutOfBounds> {
        let source = self.at(offset, size_of::<T>())?;
        // SAFETY: the bytes are mapped; FromBytes makes every pattern a valid T; the copy is
        // made through a raw pointer to memory that no reference covers.
        Ok(unsafe { source.cast::<T>().read_unaligned() })
    }

    /// Writes a value at `offset`.
    #[inline]
    pub fn write<T: IntoBytes + Immutable>(
        &self,
        offset: usize,
        value: T,
    ) -> Result<(), OutOfBounds> {
        let dest = self.at(offset, size_of::<T>())?;
        // SAFETY: the bytes are mapped and writable; IntoBytes means that no padding leaks.
        unsafe { dest.cast::<T>().write_unaligned(value) };
        Ok(())
    }

    /// Copies bytes out into private memory.
    #[inline]
    pub fn copy_out(&self, offset: usize, dest: &mut [u8]) -> Result<(), OutOfBounds> {
        let source = self.at(offset, dest.len())?;
        // SAFETY: the source is mapped; `dest` is private, so the two can not overlap.
        unsafe { copy_short(source, dest.as_mut_ptr(), dest.len()) };
        Ok(())
    }

    /// Copies private bytes in.
    #[inline]
    pub fn copy_in(&self, offset: usize, source: &[u8]) -> Result<(), OutOfBounds> {
        let dest = self.at(offset, source.len())?;
        // SAFETY: the destination is mapped and writable; `source` is private.
        unsafe { copy_short(source.as_ptr(), dest, source.len()) };
        Ok(())
    }

    /// Copies bytes between regions. They may be the same region, and may overlap.
    #[inline]
    pub fn copy_between(
        source: &Region,
        source_offset: usize,
        dest: &Region,
        dest_offset: usize,
        len: usize,
    ) -> Result<(), OutOfBounds> {
        let from = source.at(source_offset, len)?;
        let to = dest.at(dest_offset, len)?;
        // SAFETY: both ranges are mapped; `copy` allows overlap, which a guest that sends to
        // itself or two mappings of one page can bring about.
        unsafe { std::ptr::copy(from, to, len) };
        Ok(())
    }

    /// Fills bytes with zero, so that a page handed on carries nothing of its past (XSA-403).
    pub fn zero(&self, offset: usize, len: usize) -> Result<(), OutOfBounds> {
        let dest = self.at(offset, len)?;
        // SAFETY: the range is mapped and writable.
        unsafe { std::ptr::write_bytes(dest, 0, len) };
        Ok(())
    }

    /// Gives whole pages of [private memory](Self::anonymous) back to the system, which puts zeroed
    /// ones in their place at the next touch. Pages of a file would only be mapped anew.
    pub fn renew(&self, offset: usize, len: usize) -> io::Result<()> {
        let address = self.at(offset, len).map_err(outside)?;
        // SAFETY: the range is mapped and stays so. Its bytes change, as those of a region may at
        // any moment: no reference covers them.
        unsafe { rustix::mm::madvise(address.cast(), len, Advice::LinuxDontNeed)? };
        Ok(())
    }

    /// Starts fetching the cache line at `offset`; nothing happens outside the region.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            // SAFETY: a prefetch has no effect on memory; the address is mapped.
            unsafe {
                use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(self.base.as_ptr().add(offset).cast());
            }
        }
    }

    /// As [`prefetch`](Self::prefetch), for a line that is about to be written.
    #[inline]
    pub fn prefetch_for_write(&self, offset: usize) {
        #[cfg(target_arch = "x86_64")]
        if offset < self.len {
            // SAFETY: a prefetch has no effect on memory; the address is mapped.
            unsafe {
                use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_ET0>(self.base.as_ptr().add(offset).cast());
            }
        }
    }

    /// The 16-bit word at `offset`, which must be aligned.
    #[inline]
    pub fn atomic_u16(&self, offset: usize) -> Result<&AtomicU16, OutOfBounds> {
        let word = self.aligned::<AtomicU16>(offset)?;
        // SAFETY: mapped, aligned, and atomics may be shared with whoever else writes them.
        Ok(unsafe { AtomicU16::from_ptr(word.cast()) })
    }

    /// The 32-bit word at `offset`, which must be aligned.
    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> Result<&AtomicU32, OutOfBounds> {
        let word = self.aligned::<AtomicU32>(offset)?;
        // SAFETY: mapped, aligned, and atomics may be shared with whoever else writes them.
        Ok(unsafe { AtomicU32::from_ptr(word.cast()) })
    }

    /// The 64-bit word at `offset`, which must be aligned.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Result<&AtomicU64, OutOfBounds> {
        let word = self.aligned::<AtomicU64>(offset)?;
        // SAFETY: mapped, aligned, and atomics may be shared with whoever else writes them.
        Ok(unsafe { AtomicU64::from_ptr(word.cast()) })
    }

    #[inline]
    fn aligned<T>(&self, offset: usize) -> Result<*mut u8, OutOfBounds> {
        let address = self.at(offset, size_of::<T>())?;
        if (address as usize).is_multiple_of(align_of::<T>()) {
            Ok(address)
        } else {
            Err(OutOfBounds { offset, len: size_of::<T>(), size: self.len })
        }
    }
}

/// Copies, without a call for the lengths of headers and small frames: two moves that may
/// overlap do for any length between one and two of them.
///
/// # Safety
/// As [`std::ptr::copy_nonoverlapping`] of `len` bytes.
#[inline]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    /// Both ends of a range of `size_of::<T>()` to twice as many bytes.
    #[inline]
    unsafe fn ends<T>(from: *const u8, to: *mut u8, len: usize) {
        let last = len - size_of::<T>();
        // SAFETY: both moves lie within `len` bytes; both reads come before both writes.
        unsafe {
            let head = from.cast::<T>().read_unaligned();
            let tail = from.add(last).cast::<T>().read_unaligned();
            to.cast::<T>().write_unaligned(head);
            to.add(last).cast::<T>().write_unaligned(tail);
        }
    }
    // SAFETY: each arm is taken for lengths from one to two of its moves.
    unsafe {
        match len {
            64..=128 => ends::<[u64; 8]>(from, to, len),
            32..64 => ends::<[u64; 4]>(from, to, len),
            _ => std::ptr::copy_nonoverlapping(from, to, len),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.whole.is_some() {
            return;
        }
        // SAFETY: the range was mapped for this region alone and no borrow of it is left.
        // A failure could only mean that the range is not mapped, and leaves nothing to do.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn outside(error: OutOfBounds) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use proptest::prelude::*;

    use super::*;
    use crate::create_memfd;

    #[test]
    fn two_mappings_see_the_same_bytes() {
        let fd = create_memfd("test", 2, PageSize::Small).unwrap();
        let one = Region::map(&fd, 0, 8192).unwrap();
        let other = Region::map(&fd, 0, 8192).unwrap();
        one.copy_in(4090, b"across the pages").unwrap();
        let mut seen = [0; 16];
        other.copy_out(4090, &mut seen).unwrap();
        assert_eq!(&seen, b"across the pages");
        one.atomic_u32(64).unwrap().store(7, Ordering::Relaxed);
        assert_eq!(other.read::<u32>(64), Ok(7));
    }

    #[test]
    fn scattered_pages_lie_side_by_side() {
        let fd = create_memfd("test", 4, PageSize::Small).unwrap();
        let whole = Region::map(&fd, 0, 4 * 4096).unwrap();
        for page in 0..4u8 {
            whole.write(usize::from(page) * 4096, page + 1).unwrap();
        }
        let picked = Region::map_scattered(&fd, &[3 * 4096, 4096], 4096).unwrap();
        assert_eq!(picked.read::<u8>(0), Ok(4));
        assert_eq!(picked.read::<u8>(4096), Ok(2));
        assert_eq!(picked.len(), 8192);
    }

    #[test]
    fn an_aligned_mapping_leaves_nothing_beside_it() {
        let fd = create_memfd("pvnet-aligned", 3, PageSize::Small).unwrap();
        let region = Region::map_aligned(&fd, 0, 3 * 4096).unwrap();
        let base = region.base.as_ptr() as usize;
        assert_eq!(base % PageSize::Huge.bytes(), 0);
        region.write(3 * 4096 - 1, 7u8).unwrap();
        assert_eq!(Region::map(&fd, 0, 3 * 4096).unwrap().read(3 * 4096 - 1), Ok(7u8));
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let whole = format!("{base:x}-{:x} ", base + 3 * 4096);
        assert!(maps.lines().any(|line| line.starts_with(&whole)), "{whole}: {maps}");
    }

    #[test]
    fn a_slice_keeps_the_mapping_and_its_own_bounds() {
        let whole = Arc::new(Region::anonymous(4 * 4096).unwrap());
        let slice = whole.slice(4096..3 * 4096).unwrap();
        let part = Arc::new(slice).slice(4096..8192).unwrap();
        whole.write(2 * 4096, 5u8).unwrap();
        drop(whole);
        assert_eq!(part.read(0), Ok(5u8));
        assert!(part.read::<u8>(4096).is_err());
        let whole = Arc::new(part);
        assert!(whole.slice(1..4097).is_err());
        assert!(whole.slice(usize::MAX..usize::MAX).is_err());
    }

    #[test]
    fn room_for_huge_pages_is_aligned_whole_and_given_back() {
        let huge = PageSize::Huge.bytes();
        let region = Region::anonymous_huge(huge + 1).unwrap();
        assert_eq!(region.len(), 2 * huge);
        assert!((region.base.as_ptr() as usize).is_multiple_of(huge));
        match region.populate_huge(0..2 * huge) {
            Ok(()) => {}
            Err(error) => eprintln!("no 2 MiB pages here, 4 KiB do as well: {error}"),
        }
        for end in [0, 2 * huge - 1] {
            assert_eq!(region.read::<u8>(end), Ok(0));
            region.write(end, 7u8).unwrap();
            assert_eq!(region.read::<u8>(end), Ok(7));
        }
    }

    #[test]
    fn a_misaligned_word_is_refused() {
        let region = Region::anonymous(4096).unwrap();
        assert!(region.atomic_u32(2).is_err());
        assert!(region.atomic_u16(2).is_ok());
    }

    proptest! {
        #[test]
        fn no_access_reaches_outside(offset in any::<usize>(), len in 0usize..10_000) {
            let region = Region::anonymous(4096).unwrap();
            let inside = offset.checked_add(len).is_some_and(|end| end <= 4096);
            let mut buffer = vec![0; len];
            prop_assert_eq!(region.copy_out(offset, &mut buffer).is_ok(), inside);
            prop_assert_eq!(region.copy_in(offset, &buffer).is_ok(), inside);
            prop_assert_eq!(region.zero(offset, len).is_ok(), inside);
            let copied = Region::copy_between(&region, offset, &region, 0, len);
            prop_assert_eq!(copied.is_ok(), inside && len <= 4096);
            prop_assert_eq!(
                region.read::<u64>(offset).is_ok(),
                offset.checked_add(8).is_some_and(|end| end <= 4096)
            );
            region.prefetch(offset);
        }
    }
}
