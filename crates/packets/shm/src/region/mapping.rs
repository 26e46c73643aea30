//! How regions are mapped, and how the pages in them are replaced.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use super::Region;
use super::guarded::Guard;
use crate::pages::PageSize;

/// How often the kernel is asked for a large page when it says that another time would do.
const COLLAPSE_TRIES: u32 = 8;

/// `MADV_COLLAPSE` (Linux 6.1), which libc does not know with musl.
const MADV_COLLAPSE: libc::c_int = 25;

impl Region {
    /// Private zeroed memory of `len` bytes: a buffer that only this process sees.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
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

    /// As [`anonymous`](Self::anonymous), aligned to 2 MiB and rounded up to whole 2 MiB pages, so
    /// that [`populate_huge`](Self::populate_huge) can use them.
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
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
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

    /// Private zeroed memory of `len` bytes, as [`anonymous`](Self::anonymous), whose first `mapped` bytes are those of `fd` from `offset`.
    pub fn map_first(fd: impl AsFd, offset: u64, mapped: usize, len: usize) -> io::Result<Self> {
        let mut region = Self::anonymous(len)?;
        if let Err(error) = region.fill(0, mapped, ProtFlags::READ | ProtFlags::WRITE, fd, offset) {
            if !region.reserve_again(0, mapped) {
                // Another mapping may be there, which must not be unmapped.
                std::mem::forget(region);
            }
            return Err(error);
        }
        Ok(region)
    }

    /// As [`map`](Self::map), for a file whose length another process can change. Where the kernel cannot provide a
    /// page, the region becomes zeroed private memory (or only that page, if there is not as much of it), and [`is_lost`](Self::is_lost) says so; without this,
    /// SIGBUS would end the process.
    ///
    /// # Errors
    /// The kernel's, or too many guarded regions.
    pub fn map_guarded(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        let mut region = Self::map(fd, offset, len)?;
        region.guard = Some(Guard::new(region.base.as_ptr() as usize, len)?);
        Ok(region)
    }

    /// As [`map`](Self::map), readable only: a file that is sealed against
    /// [future writes](crate::seal_future_writes) can still be mapped so. A write to the region ends the
    /// process, so only readers may have it.
    pub fn map_read_only(fd: impl AsFd, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
        let base = unsafe {
            let (any, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
            rustix::mm::mmap(any, len, ProtFlags::READ, flags, fd, offset)?
        };
        Self::adopt(base, len)
    }

    /// Maps scattered pages of `source` contiguously: page `i` of the region is the page of `source`
    /// at `offsets[i]` (bytes). All pages have `page_size` bytes. Unlike a mapping of the file, this is
    /// possible after [`seal_future_writes`](crate::seal_future_writes).
    pub fn alias_scattered(source: &Self, offsets: &[usize], page_size: usize) -> io::Result<Self> {
        let mut region = Self::reserve(offsets.len() * page_size)?;
        for (index, from) in offsets.iter().enumerate() {
            let at = index * page_size;
            if let Err(error) = region.alias(at, page_size, source, *from) {
                if !region.reserve_again(at, page_size) {
                    // Another mapping may be there, which must not be unmapped.
                    std::mem::forget(region);
                }
                return Err(error);
            }
        }
        Ok(region)
    }

    /// Maps `len` bytes of `source` from byte `from` on once more, at `offset`, replacing the mapping
    /// there. An error can leave a gap; see [`reserve_again`](Self::reserve_again).
    pub(crate) fn alias(
        &mut self,
        offset: usize,
        len: usize,
        source: &Self,
        from: usize,
    ) -> io::Result<()> {
        let place = self.at(offset, len)?.cast();
        let original = source.at(from, len)?.cast();
        // SAFETY: an old size of 0 leaves the original as it is and maps its shared pages once more.
        // The target lies wholly inside this region's own range, which is borrowed for this call
        // alone: its bytes are not read, written or lent meanwhile.
        unsafe { rustix::mm::mremap_fixed(original, 0, len, MremapFlags::MAYMOVE, place)? };
        // Populated now, because a fault at the first touch costs more. Older kernels refuse it.
        // SAFETY: the range was mapped a moment ago; the advice changes no byte.
        let _ = unsafe { rustix::mm::madvise(place, len, Advice::LinuxPopulateWrite) };
        Ok(())
    }

    /// Reserves addresses without memory.
    pub(crate) fn reserve(len: usize) -> io::Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
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

    /// Maps `len` bytes of `fd` from byte `from` at `offset`, replacing the mapping there. The
    /// borrow is exclusive, so that no system call uses these bytes meanwhile.
    #[expect(
        clippy::too_many_arguments,
        reason = "as a `Range` the place costs nine instructions per page"
    )]
    pub(crate) fn fill(
        &mut self,
        offset: usize,
        len: usize,
        access: ProtFlags,
        fd: impl AsFd,
        from: u64,
    ) -> io::Result<()> {
        let place = self.at(offset, len)?;
        // SAFETY: the target lies wholly inside this region's own range, which is borrowed for this
        // call alone: its bytes are not read, written or lent meanwhile.
        unsafe {
            rustix::mm::mmap(
                place.cast(),
                len,
                access,
                // Populated now, because a fault at the first touch costs more.
                MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE,
                fd,
                from,
            )?
        };
        Ok(())
    }

    /// Reserves addresses again after a failed [`fill`](Self::fill), which leaves them unmapped.
    /// Returns false if another mapping has, or may have, taken them.
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
                // Linux before 4.17 treats the address as a hint. SAFETY: mapped a moment ago, and
                // nothing else uses it.
                let _ = unsafe { rustix::mm::munmap(elsewhere, len) };
                false
            }
            Err(_) => false,
        }
    }

    /// Unmaps `len` bytes at `offset`; the addresses stay reserved.
    pub(crate) fn empty(&mut self, offset: usize, len: usize) -> io::Result<()> {
        let place = self.at(offset, len)?;
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

    /// As [`map`](Self::map), at an address that is a multiple of 2 MiB. Large pages need this, and
    /// an `offset` that is a multiple as well.
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

    /// Reserves addresses from a multiple of 2 MiB on. They have no memory: the caller must map
    /// some before others can touch the region.
    pub(crate) fn reserve_aligned(len: usize) -> io::Result<Self> {
        let align = PageSize::Huge.bytes();
        let size = len.next_multiple_of(PageSize::Small.bytes());
        let room = size.checked_add(align).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing.
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
                // not be unmapped, only addresses are leaked.
                let _ = unsafe { rustix::mm::munmap(start.byte_add(offset), len) };
            }
        }
        // SAFETY: `before` is less than `align`, by which the room is larger than `len`.
        Self::adopt(unsafe { start.byte_add(before) }, len)
    }

    fn adopt(base: *mut core::ffi::c_void, len: usize) -> io::Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, whole: None, guard: None, kept: None })
    }

    /// Populates `range` with 2 MiB pages where whole ones fit. An error means that the kernel has
    /// none; the range is still usable, in pages of 4 KiB.
    ///
    /// All pages are populated here, because the first touch decides a page's size, and other
    /// mappings of a file may not ask for large pages. `MADV_COLLAPSE` follows, because it alone
    /// reports success. It also works where `/sys/kernel/mm/transparent_hugepage/shmem_enabled` is
    /// `never`, which only concerns the first touch, but not with `deny`.
    pub fn populate_huge(&self, range: Range<usize>) -> io::Result<()> {
        let len = range.end.saturating_sub(range.start);
        let address = self.at(range.start, len)?.cast();
        for advice in [Advice::LinuxHugepage, Advice::LinuxPopulateWrite] {
            // SAFETY: the range is mapped, writable and ours; neither advice changes a byte.
            unsafe { rustix::mm::madvise(address, len, advice)? };
        }
        // A page that another processor still holds for a moment, as on its list of new pages, is `EAGAIN`.
        let mut tries = 0;
        loop {
            // SAFETY: as above; pages are copied into larger ones, their contents stay.
            if unsafe { libc::madvise(address.cast(), len, MADV_COLLAPSE) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            tries += 1;
            if error.kind() != io::ErrorKind::WouldBlock || tries == COLLAPSE_TRIES {
                return Err(error);
            }
        }
    }

    /// Returns whole pages of [private memory](Self::anonymous) to the system. The next touch finds
    /// zeroed pages. Pages of a file would only be mapped again, with their contents.
    pub fn renew(&self, offset: usize, len: usize) -> io::Result<()> {
        let address = self.at(offset, len)?;
        // SAFETY: the range is mapped and stays so. Its bytes change, as those of a region may at
        // any moment: no reference covers them.
        unsafe { rustix::mm::madvise(address.cast(), len, Advice::LinuxDontNeed)? };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

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
    fn the_first_pages_are_those_of_a_file() {
        let fd = create_memfd("test", 2, PageSize::Small).unwrap();
        let file = Region::map(&fd, 0, 8192).unwrap();
        let region = Region::map_first(&fd, 4096, 4096, 8192).unwrap().keeping("kept");
        region.copy_in(4092, b"headbody").unwrap();
        let mut seen = [0; 4];
        file.copy_out(8188, &mut seen).unwrap();
        assert_eq!(&seen, b"head");
        region.copy_out(4096, &mut seen).unwrap();
        assert_eq!(&seen, b"body");
        // What is kept is found from slices of slices.
        let slice = Arc::new(Arc::new(region).slice(4096..8192).unwrap()).slice(8..16).unwrap();
        assert_eq!(slice.kept::<&str>(), Some((&"kept", 4104)));
        assert_eq!(slice.kept::<u8>(), None);
        assert_eq!(file.kept::<&str>(), None);
        // A file that cannot be mapped leaves nothing.
        let pipe = rustix::pipe::pipe().unwrap().0;
        assert!(Region::map_first(&pipe, 0, 4096, 8192).is_err());
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
}
