//! Maps the guest's memory, and tells what is left in its files.

use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex};

use rustix::fs::fstat;
use shm::Region;
use virtqueue::Range;

use crate::budget::{Mapped, MemoryBudget, OverBudget};
use crate::lock;

/// Ranges of the guest's memory begin and end at pages.
const PAGE: u64 = 4096;

/// A descriptor of a front-end that cannot be the guest's memory.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// Not a file in memory. A page of another file system may take for ever to read.
    #[error("a descriptor for memory that is no memfd and no file in tmpfs or hugetlbfs")]
    NoMemory,
    /// It is shorter than the range.
    #[error("a file of {size} bytes for a range that ends at {end}")]
    Short {
        /// Its length.
        size: u64,
        /// The end of the range in it.
        end: u64,
    },
    /// The range is empty, not at pages, or too long.
    #[error("a range of {len} bytes from byte {offset} of a file on")]
    BadRange {
        /// Bytes.
        len: u64,
        /// First byte.
        offset: u64,
    },
    /// It is more than the front-end may have mapped.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// The system's error.
    #[error("mapping the guest's memory: {0}")]
    System(#[from] io::Error),
}

/// Maps the bytes of `range`, which begin at byte `offset` of `file`.
///
/// The front-end may cut the file short later: the region [is lost](Region::is_lost) then, and the process goes on.
///
/// # Errors
/// See [`MapError`].
pub(crate) fn map(
    range: &Range,
    file: &File,
    offset: u64,
    budget: &Arc<MemoryBudget>,
) -> Result<Region, MapError> {
    let bad = MapError::BadRange { len: range.len, offset };
    let at_pages = |value: u64| value.is_multiple_of(PAGE);
    let end = offset.checked_add(range.len).filter(|_| range.len > 0);
    if end.is_none_or(|end| !at_pages(offset) || !at_pages(end)) {
        return Err(bad);
    }
    map_part(file, offset, range.len, budget)
}

/// Maps `len` bytes of a file in memory, from a multiple of 8 on. The pages that they lie in count in the budget as long as they are mapped.
///
/// # Errors
/// See [`MapError`].
pub(crate) fn map_part(
    file: &File,
    offset: u64,
    len: u64,
    budget: &Arc<MemoryBudget>,
) -> Result<Region, MapError> {
    map_counted(file, offset, len, |bytes| budget.take(bytes))
}

/// As [`map_part`], in the place of a mapping that is about to be [revoked](Region::revoke) and may be counted for a while.
pub(crate) fn map_part_again(
    file: &File,
    offset: u64,
    len: u64,
    budget: &Arc<MemoryBudget>,
) -> Result<Region, MapError> {
    map_counted(file, offset, len, |bytes| Ok(budget.take_again(bytes)))
}

fn map_counted(
    file: &File,
    offset: u64,
    len: u64,
    count: impl FnOnce(u64) -> Result<Mapped, OverBudget>,
) -> Result<Region, MapError> {
    let bad = MapError::BadRange { len, offset };
    let end = offset.checked_add(len).filter(|_| len > 0 && offset.is_multiple_of(8));
    let Some(end) = end else { return Err(bad) };
    // Only files of these have seals, be they none. It is asked first: another file system may never say what kind of file it is.
    if rustix::fs::fcntl_get_seals(file).is_err() {
        return Err(MapError::NoMemory);
    }
    let stat = rustix::fs::fstat(file).map_err(io::Error::from)?;
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if end > size {
        return Err(MapError::Short { size, end });
    }
    // A file of large pages can be mapped at those only, and for whole ones.
    let page = u64::try_from(stat.st_blksize).unwrap_or(PAGE).max(PAGE);
    let start = offset - offset % page;
    let whole = end.checked_next_multiple_of(page).ok_or(bad)? - start;
    let size = |bytes: u64| {
        usize::try_from(bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
    };
    let mapped = count(whole)?;
    let whole = Region::map_guarded(file, start, size(whole)?)?.keeping(mapped);
    let part = size(offset - start)?..size(end - start)?;
    Ok(Arc::new(whole).slice(part).map_err(io::Error::from)?)
}

/// The files of a guest's memory.
///
/// Whoever has such a file can make a hole in it, and whoever touches a page of the hole sleeps until the hole is made.
#[derive(Debug, Default)]
pub struct MemoryFiles(Mutex<Vec<Arc<File>>>);

impl MemoryFiles {
    pub(crate) fn set(&self, files: impl Iterator<Item = Arc<File>>) {
        let files = files.collect();
        let mut present = lock(&self.0);
        let before = std::mem::replace(&mut *present, files);
        drop(present);
        // Without the lock: to free a large file takes time.
        drop(before);
    }

    /// How many bytes they have now. They get fewer while a hole is made; this does not wait for that.
    pub fn bytes(&self) -> u64 {
        let files = lock(&self.0);
        let blocks =
            files.iter().filter_map(|file| u64::try_from(fstat(file).ok()?.st_blocks).ok());
        // Blocks of 512 bytes, whatever the file system's are.
        blocks.sum::<u64>() * 512
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(len: u64) -> Range {
        Range { guest: 0, user: 0, len }
    }

    fn memfd(pages: usize) -> File {
        shm::create_memfd("test", pages, shm::PageSize::Small).unwrap().into()
    }

    #[test]
    fn a_part_of_a_file_is_mapped() {
        let file = memfd(4);
        let region = map(&range(8192), &file, 8192, &MemoryBudget::unlimited()).unwrap();
        region.write(4096, 7u8).unwrap();
        assert_eq!(region.len(), 8192);
        assert_eq!(
            map(&range(4096), &file, 12_288, &MemoryBudget::unlimited()).unwrap().read(0),
            Ok(7u8)
        );
    }

    #[test]
    fn what_is_no_memory_is_refused() {
        let budget = &MemoryBudget::unlimited();
        for path in ["/dev/null", "/dev/zero", "/proc/self/maps", "/"] {
            let Ok(file) = File::open(path) else { continue };
            let refused = map(&range(4096), &file, 0, budget);
            assert!(matches!(refused, Err(MapError::NoMemory)), "{path}: {refused:?}");
        }
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert!(map(&range(4096), &reader.into(), 0, budget).is_err());
        let directory = File::open("/dev/shm");
        assert!(directory.is_err() || map(&range(4096), &directory.unwrap(), 0, budget).is_err());
    }

    #[test]
    fn a_range_that_is_not_in_the_file_is_refused() {
        let file = memfd(4);
        for (len, offset) in [
            (5 * 4096, 0),
            (4096, 4 * 4096),
            (4096, u64::MAX - 4095),
            (u64::MAX, 4096),
            (0, 0),
            (100, 0),
            (4096, 100),
        ] {
            assert!(
                map(&range(len), &file, offset, &MemoryBudget::unlimited()).is_err(),
                "{len} {offset}"
            );
        }
    }

    #[test]
    fn a_file_that_closes_slowly_delays_nobody_who_asks_for_their_size() {
        let files = MemoryFiles::default();
        let (slow, socket) = lab::SlowClose::new().unwrap();
        files.set(std::iter::once(Arc::new(File::from(socket))));
        assert!(slow.delays_not(|| files.set(std::iter::empty()), || _ = files.bytes()));
    }

    /// A file of 1 TiB, of which a part is named.
    #[test]
    fn nothing_is_mapped_or_counted_but_what_is_named() {
        let file: File =
            rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(1 << 40).unwrap();
        let page = u64::try_from(rustix::fs::fstat(&file).unwrap().st_blksize).unwrap();
        let budget = MemoryBudget::new(0, crate::ProcessBudget::new(u64::MAX));
        let at = (1 << 39) + page;
        let region = map_part(&file, at + 8, 8192, &budget).unwrap();
        region.write(0, 7u8).unwrap();
        let counted = (8 + 8192u64).next_multiple_of(page);
        assert_eq!((region.len(), budget.held()), (8192, counted));
        let again = map_part(&file, at, 16, &budget).unwrap();
        assert_eq!((again.read(8), budget.held()), (Ok(7u8), counted + page));
        drop((region, again));
        assert_eq!(budget.held(), 0);
        let refused = map_part(&file, 0, 1 << 40, &budget);
        assert!(matches!(refused, Err(MapError::OverBudget(_))), "{refused:?}");
    }
}
