//! Addresses whose pages can be replaced one at a time.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::{PageSize, Region};

const PAGE: usize = PageSize::Small.bytes();

/// A range of this process's addresses, from a multiple of 2 MiB on: a mapping of a file, or
/// reserved without memory. Each 4 KiB page of it can be replaced by another page and restored
/// later.
///
/// A replaced page splits the mapping: no large page can map the 2 MiB around it any more, not even
/// after the page is restored. That takes another [`Region::populate_huge`].
pub struct Space {
    addresses: Arc<Region>,
    /// The file behind the addresses; none if they are only reserved.
    memory: Option<Memory>,
    /// A bit for each page that is replaced.
    replaced: Box<[AtomicU64]>,
}

/// The part of a file that a space maps.
struct Memory {
    fd: OwnedFd,
    offset: u64,
    size: PageSize,
}

impl Space {
    /// Reserves `len` bytes of addresses. They cannot be touched before a page is put there.
    pub fn reserve(len: usize) -> io::Result<Self> {
        Ok(Self::over(Region::reserve_aligned(len)?, None))
    }

    /// Maps `len` bytes of `fd` from `offset`, as [`Region::map_aligned`] does. `size` is the page
    /// size to ask for when a page is restored.
    pub fn map(fd: OwnedFd, offset: u64, len: usize, size: PageSize) -> io::Result<Self> {
        let region = Region::map_aligned(&fd, offset, len)?;
        Ok(Self::over(region, Some(Memory { fd, offset, size })))
    }

    fn over(addresses: Region, memory: Option<Memory>) -> Self {
        let words = addresses.len().div_ceil(PAGE).div_ceil(64);
        let replaced = (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { addresses: Arc::new(addresses), memory, replaced }
    }

    /// All of the memory, as one region; none if the addresses are only reserved.
    #[must_use]
    pub fn memory(&self) -> Option<&Arc<Region>> {
        self.memory.is_some().then_some(&self.addresses)
    }

    /// Replaces page `page` of this range by the page of `fd` at `offset` (bytes). Refuses a page
    /// outside the range and one that is replaced already; then nothing changes.
    pub fn replace(
        self: &Arc<Self>,
        page: usize,
        fd: impl AsFd,
        offset: u64,
    ) -> io::Result<Replaced> {
        let start = page.checked_mul(PAGE).ok_or(io::ErrorKind::InvalidInput)?;
        let region = self.addresses.slice(start..start.saturating_add(PAGE))?;
        if self.mark(page) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (read_write, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the slice was checked to lie inside the addresses, which are this space's own
        // until it is dropped; they stay mapped, readable and writable at every moment that a
        // region of them can be used. A system that refuses leaves the page as it was.
        let mapped = unsafe {
            let at = region.address(0, PAGE)?.cast();
            rustix::mm::mmap(at, PAGE, read_write, flags | MapFlags::FIXED, fd, offset)
        };
        match mapped {
            Ok(_) => Ok(Replaced { region, space: self.clone(), page }),
            Err(error) => {
                self.clear(page);
                Err(error.into())
            }
        }
    }

    fn bit(&self, page: usize) -> (&AtomicU64, u64) {
        (&self.replaced[page / 64], 1 << (page % 64))
    }

    /// Marks a page as replaced; returns whether it was already.
    fn mark(&self, page: usize) -> bool {
        let (word, bit) = self.bit(page);
        word.fetch_or(bit, Ordering::AcqRel) & bit != 0
    }

    fn clear(&self, page: usize) {
        let (word, bit) = self.bit(page);
        word.fetch_and(!bit, Ordering::AcqRel);
    }

    fn restore(&self, region: &Region, page: usize) -> io::Result<()> {
        let Ok(at) = region.address(0, PAGE) else { return Ok(()) };
        let at = at.cast();
        let Some(Memory { fd, offset, size }) = &self.memory else {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
            // SAFETY: the page is this space's own, and its region is being dropped: nothing can
            // reach these addresses any more.
            unsafe { rustix::mm::mmap_anonymous(at, PAGE, ProtFlags::empty(), flags)? };
            return Ok(());
        };
        let offset = offset + (page * PAGE) as u64;
        let (read_write, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: the page is this space's own and stays mapped, readable and writable.
        unsafe { rustix::mm::mmap(at, PAGE, read_write, flags | MapFlags::FIXED, fd, offset)? };
        if *size == PageSize::Huge {
            // As the pages around it, or the kernel would keep the mapping split.
            // SAFETY: the page is mapped and ours; the advice changes no byte.
            // A kernel without large pages refuses it, and has nothing to split.
            let _ = unsafe { rustix::mm::madvise(at, PAGE, Advice::LinuxHugepage) };
        }
        Ok(())
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("addresses", &self.addresses).finish()
    }
}

/// A page in the place of another. Dropping it restores the other.
#[derive(Debug)]
pub struct Replaced {
    region: Region,
    space: Arc<Space>,
    page: usize,
}

impl Deref for Replaced {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl Drop for Replaced {
    fn drop(&mut self) {
        // If the system refuses (too many mappings), the page stays. Then its place stays marked
        // and is not used again.
        if self.space.restore(&self.region, self.page).is_ok() {
            self.space.clear(self.page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create_memfd;

    fn numbered(pages: u8) -> OwnedFd {
        let fd = create_memfd("test", pages.into(), PageSize::Small).unwrap();
        let whole = Region::map(&fd, 0, usize::from(pages) * PAGE).unwrap();
        (0..pages).for_each(|n| whole.write(usize::from(n) * PAGE, n).unwrap());
        fd
    }

    #[test]
    fn a_page_is_replaced_and_comes_back() {
        let fd = numbered(4);
        let own = fd.try_clone().unwrap();
        let space = Arc::new(Space::map(own, 0, 3 * PAGE, PageSize::Small).unwrap());
        let memory = space.memory().unwrap().clone();
        let seen = || [0, 1, 2].map(|page| memory.read::<u8>(page * PAGE).unwrap());
        let page = space.replace(1, &fd, 3 * PAGE as u64).unwrap();
        assert_eq!((seen(), page.read(0)), ([0, 3, 2], Ok(3u8)));
        page.write(0, 9u8).unwrap();
        assert_eq!(seen(), [0, 9, 2]);
        drop(page);
        assert_eq!(seen(), [0, 1, 2]);
    }

    #[test]
    fn a_place_takes_one_page_and_lies_inside() {
        let fd = numbered(2);
        let space = Arc::new(Space::reserve(2 * PAGE).unwrap());
        assert!(space.memory().is_none(), "nothing to reach before a page is there");
        let page = space.replace(1, &fd, 0).unwrap();
        let again = space.replace(1, &fd, 0).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        for outside in [2, 3, usize::MAX / PAGE, usize::MAX] {
            assert!(space.replace(outside, &fd, 0).is_err(), "{outside}");
        }
        assert!(space.replace(0, &fd, 1).is_err(), "half a page");
        drop(page);
        assert_eq!(space.replace(1, &fd, PAGE as u64).unwrap().read(0), Ok(1u8));
    }

    #[test]
    fn a_page_outlives_its_space() {
        let fd = numbered(1);
        let space = Arc::new(Space::reserve(PAGE).unwrap());
        let page = space.replace(0, &fd, 0).unwrap();
        drop((space, fd));
        page.write(8, 5u8).unwrap();
        assert_eq!(page.read(8), Ok(5u8));
    }
}
