//! Memory that can be handed to another process.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};

/// The size of the pages of a domain's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PageSize {
    /// 4 KiB.
    #[default]
    Small,
    /// 2 MiB where the kernel has them, else 4 KiB.
    Huge,
}

impl PageSize {
    /// Bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Small => 4096,
            Self::Huge => 2 << 20,
        }
    }
}

/// A file in memory of `pages` 4 KiB pages, rounded up to whole pages of `size`, all zero.
///
/// Its length is sealed: a domain that could shrink it would kill the other side by SIGBUS. 2 MiB
/// pages are transparent ones (see [`crate::Region::populate_huge`]), because a grant maps a single
/// 4 KiB page, which a hugetlb file does not allow.
pub fn create_memfd(name: &str, pages: usize, size: PageSize) -> io::Result<OwnedFd> {
    let fd = create_sealable_memfd(name, pages, size)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SEAL)?;
    Ok(fd)
}

/// As [`create_memfd`], for a file that [`seal_future_writes`] will seal.
pub fn create_sealable_memfd(name: &str, pages: usize, size: PageSize) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let len = (pages * PageSize::Small.bytes()).next_multiple_of(size.bytes());
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW)?;
    Ok(fd)
}

/// Forbids new writable mappings of a file, and with them holes: a page fault in this process would
/// wait until a hole has been made. Writable mappings that exist stay.
pub fn seal_future_writes(fd: impl AsFd) -> io::Result<()> {
    Ok(rustix::fs::fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL)?)
}

#[cfg(test)]
mod tests {
    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;
    use crate::{Region, Reserved};

    #[test]
    fn a_sealed_file_gets_no_holes_and_is_still_mapped() {
        let fd = create_sealable_memfd("test", 4, PageSize::Small).unwrap();
        let whole = Region::map(&fd, 0, 4 * 4096).unwrap();
        let punch = || {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&fd, flags, 0, 4096)
        };
        assert!(punch().is_ok());
        seal_future_writes(&fd).unwrap();
        assert!(punch().is_err() && Region::map(&fd, 0, 4096).is_err());
        // A mapping that exists can be made once more.
        (0..4u8).for_each(|n| whole.write(usize::from(n) * 4096, n).unwrap());
        let scattered = Region::alias_scattered(&whole, &[3 * 4096, 4096], 4096).unwrap();
        assert_eq!([0, 4096].map(|at| scattered.read::<u8>(at).unwrap()), [3, 1]);
        scattered.write(8, 9u8).unwrap();
        assert_eq!(whole.read(3 * 4096 + 8), Ok(9u8));
        let mut reserved = Reserved::new(2, 4096).unwrap();
        reserved.alias(1, &whole, 2 * 4096).unwrap();
        assert_eq!(reserved.read(4096), Ok(2u8));
        assert!(reserved.alias(0, &whole, 4 * 4096).is_err());
        assert!(reserved.alias(2, &whole, 0).is_err());
        drop((scattered, reserved));
        assert_eq!(whole.read(2 * 4096), Ok(2u8));
    }

    #[test]
    fn a_sealed_file_is_read_by_others_as_its_owner_writes_it() {
        let fd = create_sealable_memfd("test", 1, PageSize::Small).unwrap();
        let writer = Region::map(&fd, 0, 4096).unwrap();
        seal_future_writes(&fd).unwrap();
        let reader = Region::map_read_only(&fd, 0, 4096).unwrap();
        writer.write(12, 7u32).unwrap();
        assert_eq!(reader.read(12), Ok(7u32));
    }

    #[test]
    fn the_length_is_sealed() {
        let fd = create_memfd("test", 3, PageSize::Small).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert!(rustix::fs::ftruncate(&fd, 1 << 20).is_err());
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size, 3 * 4096);
    }
}
