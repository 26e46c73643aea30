//! Reserved address space in which single pages are mapped and unmapped.

use std::collections::BTreeSet;
use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, Range};
use std::os::fd::AsFd;

use rustix::mm::ProtFlags;

use crate::Region;

/// A reserved range of addresses. Each page of it is either empty or a page of a file.
///
/// It derefs to a [`Region`] over the whole range. Touching an empty place, or writing to a
/// read-only one, ends the process by a signal: the caller must keep to the places it has filled.
#[derive(Debug)]
pub struct Reserved {
    region: ManuallyDrop<Region>,
    page_size: usize,
    /// Places that another mapping may have taken. They are never used again.
    lost: BTreeSet<usize>,
}

impl Reserved {
    /// Reserves `places` pages of `page_size` bytes, all empty.
    pub fn new(places: usize, page_size: usize) -> io::Result<Self> {
        let region = ManuallyDrop::new(Region::reserve(places * page_size)?);
        Ok(Self { region, page_size, lost: BTreeSet::new() })
    }

    /// Fills a place with the page at byte `offset` of `fd`, readable.
    ///
    /// A driver may refuse after Linux has unmapped the old page (gntdev does so for a page that is
    /// not granted). Another thread may then map something in the gap, which must not be replaced.
    /// So the place is reserved again if it is free, and otherwise never used again.
    pub fn map(&mut self, place: usize, fd: impl AsFd, offset: u64) -> io::Result<()> {
        self.fill(place, fd, offset, ProtFlags::READ)
    }

    /// As [`map`](Self::map), readable and writable.
    pub fn map_writable(&mut self, place: usize, fd: impl AsFd, offset: u64) -> io::Result<()> {
        self.fill(place, fd, offset, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Fills a place with the page of `source` at byte `from`, readable and writable. See
    /// [`Region::alias_scattered`].
    pub fn alias(&mut self, place: usize, source: &Region, from: usize) -> io::Result<()> {
        let start = self.start(place)?;
        source.address(from, self.page_size)?;
        let filled = self.region.alias(start, self.page_size, source, from);
        self.keep(place, start, filled)
    }

    /// The first byte of a place that can be filled.
    fn start(&self, place: usize) -> io::Result<usize> {
        if self.lost.contains(&place) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let start = place.checked_mul(self.page_size).ok_or(io::ErrorKind::InvalidInput)?;
        self.region.address(start, self.page_size)?;
        Ok(start)
    }

    /// Reserves a place again that could not be filled.
    fn keep(&mut self, place: usize, start: usize, filled: io::Result<()>) -> io::Result<()> {
        if filled.is_err() && !self.region.reserve_again(start, self.page_size) {
            self.lost.insert(place);
        }
        filled
    }

    fn fill(
        &mut self,
        place: usize,
        fd: impl AsFd,
        offset: u64,
        access: ProtFlags,
    ) -> io::Result<()> {
        let start = self.start(place)?;
        let filled = self.region.fill(start, self.page_size, access, fd, offset);
        self.keep(place, start, filled)
    }

    /// Empties places.
    pub fn unmap(&mut self, places: Range<usize>) -> io::Result<()> {
        if places.is_empty() {
            return Ok(());
        }
        let mut start = places.start;
        let lost: Vec<_> = self.lost.range(places.clone()).copied().collect();
        for end in lost.into_iter().chain([places.end]) {
            let len = end.saturating_sub(start) * self.page_size;
            if len > 0 {
                self.region.empty(start * self.page_size, len)?;
            }
            start = end + 1;
        }
        Ok(())
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.lost.is_empty() {
            // SAFETY: dropped here and nowhere else. If another mapping may have taken a place, the
            // addresses are leaked instead.
            unsafe { ManuallyDrop::drop(&mut self.region) };
        }
    }
}

impl Deref for Reserved {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PageSize, create_memfd};

    #[test]
    fn a_place_is_filled_and_emptied_again() {
        let fd = create_memfd("test", 3, PageSize::Small).unwrap();
        let whole = Region::map(&fd, 0, 3 * 4096).unwrap();
        let mut reserved = Reserved::new(4, 4096).unwrap();
        for page in 0..3u8 {
            whole.write(usize::from(page) * 4096, page + 1).unwrap();
            reserved.map(1, &fd, u64::from(page) * 4096).unwrap();
            assert_eq!(reserved.read::<u8>(4096), Ok(page + 1));
            reserved.unmap(1..2).unwrap();
        }
        reserved.map_writable(2, &fd, 4096).unwrap();
        reserved.write(2 * 4096, 9u8).unwrap();
        assert_eq!(whole.read::<u8>(4096), Ok(9));
        assert!(reserved.map(4, &fd, 0).is_err());
        assert!(reserved.unmap(3..5).is_err());
        assert_eq!(reserved.len(), 4 * 4096);
    }

    /// The access rights of the mapping at an address, if there is one.
    fn mapped(address: usize) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let holds = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (start, end) = range.split_once('-')?;
            let number = |text| usize::from_str_radix(text, 16).ok();
            let holds = (number(start)?..number(end)?).contains(&address);
            holds.then(|| rest[..4].to_owned())
        };
        maps.lines().find_map(holds)
    }

    #[test]
    fn a_place_that_a_driver_refuses_to_fill_stays_reserved() {
        // A socket's mmap fails after the kernel has unmapped the old page.
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let fd = create_memfd("test", 1, PageSize::Small).unwrap();
        let mut reserved = Reserved::new(3, 4096).unwrap();
        let place = reserved.address(4096, 4096).unwrap() as usize;
        assert!(reserved.map(1, &socket, 0).is_err());
        assert_eq!(mapped(place).as_deref(), Some("---p"));
        reserved.map(1, &fd, 0).unwrap();
        assert_eq!(reserved.read::<u8>(4096), Ok(0));
    }

    #[test]
    fn a_place_that_another_mapping_took_is_left_alone() {
        let fd = create_memfd("test", 2, PageSize::Small).unwrap();
        let mut reserved = Reserved::new(3, 4096).unwrap();
        for place in [0, 2] {
            reserved.map(place, &fd, 0).unwrap();
        }
        let start = reserved.address(0, 3 * 4096).unwrap() as usize;
        // Refused before the kernel unmapped the old page: the place may be taken.
        let (pipe, _other) = rustix::pipe::pipe().unwrap();
        assert!(reserved.map(1, &pipe, 0).is_err());
        assert!(reserved.map(1, &fd, 0).is_err());
        reserved.unmap(0..3).unwrap();
        for place in 0..3 {
            assert_eq!(mapped(start + place * 4096).as_deref(), Some("---p"), "{place}");
        }
        drop(reserved);
        assert!(mapped(start + 4096).is_some());
    }
}
