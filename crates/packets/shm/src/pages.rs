//! Memory that can be handed to another process.

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};

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

/// A secret file (`memfd_secret`) of `pages` 4 KiB pages, all zero. Nobody can make holes in it or change its length, and
/// unlike a file that is [sealed](seal_future_writes), it can be mapped at any time. Its pages are locked in memory, and
/// the kernel has no mapping of them, so no device can read them where they are.
///
/// # Errors
/// The kernel has no such files, or switched them off (`secretmem.enable`). A mapping counts as locked memory, and fails
/// beyond the limit of its process.
pub fn create_secret_file(pages: usize) -> io::Result<OwnedFd> {
    // SAFETY: the call takes flags and no memory, and returns a new descriptor or an error.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_secret, libc::O_CLOEXEC) };
    let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the descriptor is new, and nothing else owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // The first length is the last one.
    rustix::fs::ftruncate(&fd, (pages * PageSize::Small.bytes()) as u64)?;
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
    use rustix::mm::Advice;

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
    fn a_secret_file_gets_no_holes_and_is_mapped_by_those_who_come_later() {
        let secret = create_secret_file(4).and_then(|fd| Ok((Region::map(&fd, 0, 4 * 4096)?, fd)));
        let Ok((first, fd)) = secret else {
            eprintln!("skipped: no secret memory here");
            return;
        };
        first.write(5000, 7u8).unwrap();
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert!(fallocate(&fd, flags, 0, 4096).is_err());
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err());
        let (start, len) = (first.address(0, 4096).unwrap().cast(), 4096);
        // SAFETY: a hole would only make the test's own bytes zero.
        assert!(unsafe { rustix::mm::madvise(start, len, Advice::LinuxRemove) }.is_err());
        let later = Region::map(&fd, 0, 4 * 4096).unwrap();
        assert_eq!(later.read(5000), Ok(7u8));
        later.write(5000, 8u8).unwrap();
        assert_eq!(first.read(5000), Ok(8u8));
    }

    #[test]
    fn the_length_is_sealed() {
        let fd = create_memfd("test", 3, PageSize::Small).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert!(rustix::fs::ftruncate(&fd, 1 << 20).is_err());
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size, 3 * 4096);
    }
}
