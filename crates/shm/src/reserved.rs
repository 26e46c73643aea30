//! Address space in which pages come and go.

use std::io;
use std::ops::{Deref, Range};
use std::os::fd::AsFd;

use rustix::mm::ProtFlags;

use crate::Region;

/// A reserved range of addresses, page by page either empty or a page of some file.
///
/// It derefs to a [`Region`] over all of it. Touching an empty place, or writing to one that was
/// filled to be read, ends the process, as the kernel does with whoever leaves its memory: whoever
/// uses it keeps to the places it has filled.
#[derive(Debug)]
pub struct Reserved {
    region: Region,
    page_size: usize,
}

impl Reserved {
    /// Reserves `places` pages of `page_size` bytes, all empty.
    pub fn new(places: usize, page_size: usize) -> io::Result<Self> {
        Ok(Self { region: Region::reserve(places * page_size)?, page_size })
    }

    /// Fills a place with the page at byte `offset` of `fd`, to be read.
    pub fn map(&mut self, place: usize, fd: impl AsFd, offset: u64) -> io::Result<()> {
        self.region.fill(place * self.page_size, self.page_size, ProtFlags::READ, fd, offset)
    }

    /// As [`map`](Self::map), to be read and written.
    pub fn map_writable(&mut self, place: usize, fd: impl AsFd, offset: u64) -> io::Result<()> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        self.region.fill(place * self.page_size, self.page_size, access, fd, offset)
    }

    /// Empties places.
    pub fn unmap(&mut self, places: Range<usize>) -> io::Result<()> {
        let len = places.len() * self.page_size;
        self.region.empty(places.start * self.page_size, len)
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
}
