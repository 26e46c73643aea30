//! Memory that can be handed to another process.

use std::io;
use std::os::fd::OwnedFd;

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
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let len = (pages * PageSize::Small.bytes()).next_multiple_of(size.bytes());
    rustix::fs::ftruncate(&fd, len as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_sealed() {
        let fd = create_memfd("test", 3, PageSize::Small).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());
        assert!(rustix::fs::ftruncate(&fd, 1 << 20).is_err());
        assert_eq!(rustix::fs::fstat(&fd).unwrap().st_size, 3 * 4096);
    }
}
