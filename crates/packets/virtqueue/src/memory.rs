//! The memory of a guest, as regions that are mapped here.

use std::sync::Arc;

use shm::Region;

use crate::RingMemory;
use crate::dirty::DirtyLog;

/// A run of bytes of a chain that lies in one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Which region of the [memory](crate::GuestMemory::regions).
    pub region: u16,
    /// First byte in it.
    pub offset: u64,
    /// Bytes, at least one.
    pub len: u32,
}

/// A range of guest addresses that one region of memory backs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// Its first address in the guest's physical address space, which descriptors use.
    pub guest: u64,
    /// Its first address in the address space of the front-end, which ring addresses use.
    pub user: u64,
    /// Bytes.
    pub len: u64,
}

impl Range {
    #[inline]
    fn holds(&self, address: u64) -> bool {
        address.wrapping_sub(self.guest) < self.len
    }

    fn overlaps(&self, other: &Self) -> bool {
        let meet = |a: u64, b: u64| a < b + other.len && b < a + self.len;
        meet(self.guest, other.guest) || meet(self.user, other.user)
    }
}

/// Why an address, or a set of ranges, was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemoryError {
    /// Nothing is at the address, or not enough.
    #[error("{len} bytes at {address:#x} are not in the guest's memory")]
    Outside {
        /// The first address.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// A range is empty, ends beyond the address space, or is not as long as its memory.
    #[error("an impossible range: {len} bytes at {address:#x}")]
    BadRange {
        /// The first guest address.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// Two ranges share addresses.
    #[error("the ranges at {0:#x} and {1:#x} overlap")]
    Overlap(u64, u64),
    /// The log of written pages does not reach to the end of a range.
    #[error("the log of dirty pages ends before the {len} bytes at {address:#x}")]
    NoLog {
        /// The range's first guest address.
        address: u64,
        /// Bytes.
        len: u64,
    },
    /// More ranges than a port may have.
    #[error("more than {} ranges", GuestMemory::RANGES_MAX)]
    TooMany,
}

/// The memory of a guest: a table of regions. It never changes; a guest whose memory changes gets another table.
#[derive(Debug)]
pub struct GuestMemory {
    ranges: Box<[Range]>,
    regions: Arc<[Region]>,
    log: Option<DirtyLog>,
}

impl GuestMemory {
    /// The most ranges: what QEMU's machines with a full set of memory slots in use need, and few enough to look
    /// through at each descriptor.
    pub const RANGES_MAX: usize = 64;

    /// A table of ranges and the memory of each, which has the range's length.
    ///
    /// # Errors
    /// See [`MemoryError`].
    pub fn new(parts: Vec<(Range, Region)>) -> Result<Self, MemoryError> {
        if parts.len() > Self::RANGES_MAX {
            return Err(MemoryError::TooMany);
        }
        let (ranges, regions): (Vec<Range>, Vec<Region>) = parts.into_iter().unzip();
        for (n, (range, region)) in ranges.iter().zip(&regions).enumerate() {
            let Range { guest, user, len } = *range;
            let ends = guest.checked_add(len).is_some() && user.checked_add(len).is_some();
            if len == 0 || !ends || region.len() as u64 != len {
                return Err(MemoryError::BadRange { address: guest, len });
            }
            if let Some(other) = ranges[..n].iter().find(|other| range.overlaps(other)) {
                return Err(MemoryError::Overlap(other.guest, guest));
            }
        }
        Ok(Self { ranges: ranges.into(), regions: regions.into(), log: None })
    }

    /// The same with a log of the pages that the device writes.
    ///
    /// # Errors
    /// The log has no bit for some page.
    pub fn with_log(self, log: DirtyLog) -> Result<Self, MemoryError> {
        match self.ranges.iter().find(|range| !log.covers(range.guest + range.len)) {
            Some(Range { guest, len, .. }) => {
                Err(MemoryError::NoLog { address: *guest, len: *len })
            }
            None => Ok(Self { log: Some(log), ..self }),
        }
    }

    /// Whether pages that the device writes are logged.
    #[inline]
    #[must_use]
    pub fn is_logged(&self) -> bool {
        self.log.is_some()
    }

    /// Notes that `len` bytes at `offset` of a region were written.
    pub fn mark(&self, region: u16, offset: u64, len: u64) {
        if let (Some(log), Some(range)) = (&self.log, self.ranges.get(usize::from(region))) {
            log.mark(range.guest.saturating_add(offset), len);
        }
    }

    /// The regions, which [`Buffer`](crate::Buffer)s count.
    #[must_use]
    pub fn regions(&self) -> &Arc<[Region]> {
        &self.regions
    }

    /// The ranges, in the order of the regions.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// Whether a part of it [is lost](Region::is_lost).
    #[inline]
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.regions.iter().any(Region::is_lost)
    }

    /// Where a guest address lies: the region, the offset in it, and how many bytes from there on it has.
    #[inline]
    pub(crate) fn find(&self, address: u64) -> Option<(usize, u64, u64)> {
        let index = self.ranges.iter().position(|range| range.holds(address))?;
        let offset = address - self.ranges[index].guest;
        Some((index, offset, self.ranges[index].len - offset))
    }

    /// The `len` bytes at a guest address, if there are any and they lie in one region. `last` is a guess which: the
    /// region of the lookup before.
    #[inline]
    pub(crate) fn find_whole(&self, address: u64, len: u32, last: &mut usize) -> Option<Buffer> {
        let mut range = self.ranges.get(*last)?;
        let mut offset = address.wrapping_sub(range.guest);
        if offset >= range.len {
            *last = self.ranges.iter().position(|range| range.holds(address))?;
            range = &self.ranges[*last];
            offset = address - range.guest;
        }
        let region = u16::try_from(*last).ok()?;
        let fits = len > 0 && range.len - offset >= len.into();
        fits.then_some(Buffer { region, offset, len })
    }

    /// A value at a guest address, which may straddle two ranges.
    ///
    /// # Errors
    /// It is not in the guest's memory.
    pub(crate) fn read_16(&self, address: u64) -> Result<[u8; 16], MemoryError> {
        let mut bytes = [0; 16];
        let outside = MemoryError::Outside { address, len: 16 };
        let mut done = 0;
        while done < bytes.len() {
            let at = address.checked_add(done as u64).ok_or(outside)?;
            let (index, offset, left) = self.find(at).ok_or(outside)?;
            let len = (bytes.len() - done).min(usize::try_from(left).unwrap_or(usize::MAX));
            let offset = usize::try_from(offset).map_err(|_| outside)?;
            let place = &mut bytes[done..done + len];
            self.regions[index].copy_out(offset, place).map_err(|_| outside)?;
            done += len;
        }
        Ok(bytes)
    }

    /// A handle of `len` bytes at an address of the front-end, which must lie in one range.
    ///
    /// # Errors
    /// They do not.
    pub(crate) fn area(&self, user: u64, len: usize) -> Result<Area, MemoryError> {
        let outside = MemoryError::Outside { address: user, len: len as u64 };
        let within = |range: &Range| user.wrapping_sub(range.user) < range.len;
        let index = self.ranges.iter().position(within).ok_or(outside)?;
        let offset = user - self.ranges[index].user;
        if self.ranges[index].len - offset < len as u64 {
            return Err(outside);
        }
        let region = self.regions[index].share().ok_or(outside)?;
        let start = usize::try_from(offset).map_err(|_| outside)?;
        // At most RANGES_MAX ranges.
        let index = u16::try_from(index).map_err(|_| outside)?;
        Ok(Area { region, start, index })
    }
}

/// A part of a ring, in a region of the guest's memory or in loom's model of one.
#[derive(Debug)]
pub(crate) struct Area<M = Region> {
    pub(crate) region: M,
    /// Its first byte in the region.
    pub(crate) start: usize,
    index: u16,
}

impl<M: RingMemory> Area<M> {
    /// What begins at this offset of the first region.
    pub(crate) fn over(region: M, start: u64) -> Self {
        Self { region, start: usize::try_from(start).unwrap_or(usize::MAX), index: 0 }
    }

    /// Notes that `len` bytes at `offset` were written.
    pub(crate) fn mark(&self, memory: &GuestMemory, offset: usize, len: usize) {
        memory.mark(self.index, (self.start + offset) as u64, len as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(len: usize) -> Region {
        Arc::new(Region::anonymous(len).unwrap()).slice(0..len).unwrap()
    }

    fn range(guest: u64, user: u64, len: u64) -> (Range, Region) {
        (Range { guest, user, len }, region(usize::try_from(len).unwrap()))
    }

    #[test]
    fn ranges_that_cannot_be_are_refused() {
        let new = |parts| GuestMemory::new(parts).map(drop);
        assert_eq!(new(vec![range(0, 1 << 20, 4096), range(4096, 2 << 20, 4096)]), Ok(()));
        let twice = vec![range(0, 1 << 20, 8192), range(4096, 2 << 20, 4096)];
        assert_eq!(new(twice), Err(MemoryError::Overlap(0, 4096)));
        let same_user = vec![range(0, 1 << 20, 8192), range(1 << 30, (1 << 20) + 4096, 4096)];
        assert_eq!(new(same_user), Err(MemoryError::Overlap(0, 1 << 30)));
        let (end, memory) = range(0, 0, 4096);
        let beyond = Range { guest: u64::MAX - 100, ..end };
        assert!(new(vec![(beyond, memory)]).is_err());
        let longer = Range { guest: 0, user: 0, len: 8192 };
        assert!(new(vec![(longer, region(4096))]).is_err());
        let many = (0..65).map(|n| range(n << 16, n << 16, 4096)).collect();
        assert_eq!(new(many), Err(MemoryError::TooMany));
    }

    #[test]
    fn an_address_is_found_and_its_end_known() {
        let memory =
            GuestMemory::new(vec![range(0, 1 << 40, 4096), range(1 << 32, 2 << 40, 8192)]).unwrap();
        assert_eq!(memory.find(4095), Some((0, 4095, 1)));
        assert_eq!(memory.find(4096), None);
        assert_eq!(memory.find((1 << 32) + 5), Some((1, 5, 8187)));
        assert_eq!(memory.find(u64::MAX), None);
        assert_eq!(memory.area((2 << 40) + 4096, 4096).unwrap().start, 4096);
        assert!(memory.area((2 << 40) + 4097, 4096).is_err());
        assert!(memory.area(u64::MAX, 2).is_err());
    }

    #[test]
    fn a_value_may_straddle_two_ranges() {
        let memory =
            GuestMemory::new(vec![range(4096, 0, 4096), range(8192, 1 << 40, 4096)]).unwrap();
        memory.regions()[0].copy_in(4088, b"straddle").unwrap();
        memory.regions()[1].copy_in(0, b"s ranges").unwrap();
        assert_eq!(&memory.read_16(8184).unwrap(), b"straddles ranges");
        assert!(memory.read_16(12_280).is_err());
        assert!(memory.read_16(u64::MAX - 3).is_err());
    }
}
