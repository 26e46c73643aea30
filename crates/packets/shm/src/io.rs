//! Reads and writes of a descriptor straight to and from shared memory.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use arrayvec::ArrayVec;

use crate::Region;

/// A contiguous part of a gathered write, as `struct iovec` of writev(2).
#[derive(Clone, Copy, Debug)]
pub enum Iovec<'a> {
    /// Bytes of a region.
    Shared {
        /// The memory.
        region: &'a Region,
        /// First byte.
        offset: usize,
        /// How many bytes.
        len: usize,
    },
    /// Private bytes; only for writing to a descriptor.
    Private(&'a [u8]),
}

/// Most iovecs per call: a frame's metadata and header, its slots, and the runs of those that were merged with it.
pub const IOVECS_MAX: usize = 128;

/// Raw vectors on the stack, so that a frame costs no allocation. Those that are not used are not written either.
struct Vectors(ArrayVec<libc::iovec, IOVECS_MAX>);

impl Vectors {
    fn new() -> Self {
        Self(ArrayVec::new())
    }

    /// Adds an iovec. It is merged with the last one if it follows that in memory: the kernel looks up, checks and
    /// copies each vector separately, which for pages of 4 KiB is a fifth of a bulk transfer's time.
    fn push(&mut self, base: *mut u8, len: usize) -> io::Result<()> {
        if let Some(last) = self.0.last_mut()
            && last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == base
        {
            last.iov_len += len;
            return Ok(());
        }
        let entry = libc::iovec { iov_base: base.cast(), iov_len: len };
        self.0.try_push(entry).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    /// Makes this system call with them, not by the C library's function: that is a cancellation point, so in a program with threads it sets and clears
    /// a flag by two locked instructions.
    ///
    /// # Safety
    /// The call is `readv` or `writev`, and may access what the vectors cover.
    #[inline]
    unsafe fn call(&self, number: libc::c_long, fd: BorrowedFd<'_>) -> libc::c_long {
        // SAFETY: the pointer and the count are those of an array that lives for this call; the caller vouches for the memory that it covers.
        unsafe { libc::syscall(number, fd.as_raw_fd(), self.0.as_ptr(), self.0.len()) }
    }
}

fn result(bytes: libc::c_long) -> io::Result<usize> {
    usize::try_from(bytes).map_err(|_| io::Error::last_os_error())
}

/// Writes all iovecs with one `writev`. Returns the number of bytes written.
pub fn writev<'a>(fd: impl AsFd, iovecs: impl IntoIterator<Item = Iovec<'a>>) -> io::Result<usize> {
    let mut vectors = Vectors::new();
    for iovec in iovecs {
        match iovec {
            Iovec::Shared { region, offset, len } => {
                vectors.push(region.address(offset, len)?, len)?;
            }
            Iovec::Private(bytes) => vectors.push(bytes.as_ptr().cast_mut(), bytes.len())?,
        }
    }
    // SAFETY: each vector covers mapped memory that the iovecs borrow for this call; the
    // kernel only reads it.
    result(unsafe { vectors.call(libc::SYS_writev, fd.as_fd()) })
}

/// Reads with one `readv` into `header` (private), then into the shared iovecs in order. Returns
/// the number of bytes read.
#[expect(
    clippy::inline_always,
    reason = "as one of several callers, a tap's read takes 24 instructions more by a call"
)]
#[inline(always)]
pub fn readv<'a>(
    fd: impl AsFd,
    header: &mut [u8],
    iovecs: impl IntoIterator<Item = (&'a Region, usize, usize)>,
) -> io::Result<usize> {
    let mut vectors = Vectors::new();
    if !header.is_empty() {
        vectors.push(header.as_mut_ptr(), header.len())?;
    }
    for (region, offset, len) in iovecs {
        vectors.push(region.address(offset, len)?, len)?;
    }
    // SAFETY: each vector covers mapped, writable memory borrowed for this call; `header` is
    // borrowed mutably, the rest is shared memory that no reference covers.
    result(unsafe { vectors.call(libc::SYS_readv, fd.as_fd()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_in_iovecs_goes_through_a_pipe() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let region = Region::anonymous(8192).unwrap();
        region.copy_in(100, b"body").unwrap();
        let iovecs =
            [Iovec::Private(b"head"), Iovec::Shared { region: &region, offset: 100, len: 4 }];
        assert_eq!(writev(&writer, iovecs).unwrap(), 8);
        let mut head = [0; 2];
        let parts = [(&region, 4096, 3), (&region, 5000, 100)];
        assert_eq!(readv(&reader, &mut head, parts).unwrap(), 8);
        let mut seen = [0; 3];
        assert_eq!(&head, b"he");
        region.copy_out(4096, &mut seen).unwrap();
        assert_eq!(&seen, b"adb");
        region.copy_out(5000, &mut seen).unwrap();
        assert_eq!(&seen, b"ody");
    }

    #[test]
    fn adjacent_iovecs_are_merged() {
        let region = Region::anonymous(5 * 4096).unwrap();
        let page = |n: usize| region.address(n * 4096, 4096).unwrap();
        let mut vectors = Vectors::new();
        let mut private = [0; 10];
        vectors.push(private.as_mut_ptr(), private.len()).unwrap();
        for n in [0, 1, 2, 4, 3] {
            vectors.push(page(n), 4096).unwrap();
        }
        let lengths: Vec<_> = vectors.0.iter().map(|v| v.iov_len).collect();
        assert_eq!(lengths, [10, 3 * 4096, 4096, 4096]);
        assert_eq!(vectors.0[1].iov_base.cast(), page(0));
    }

    #[test]
    fn iovecs_outside_are_refused_before_the_call() {
        let (_reader, writer) = rustix::pipe::pipe().unwrap();
        let region = Region::anonymous(4096).unwrap();
        let bad = [Iovec::Shared { region: &region, offset: 4000, len: 97 }];
        assert_eq!(writev(&writer, bad).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let many = [Iovec::Private(b"x"); IOVECS_MAX + 1];
        assert!(writev(&writer, many).is_err());
    }
}
