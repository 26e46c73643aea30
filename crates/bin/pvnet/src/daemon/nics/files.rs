//! The descriptors that a guest gets of an assignment.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Copies of them. They are sent without a lock, since a guest may be slow to read.
pub(super) struct GuestFiles([OwnedFd; 4]);

impl GuestFiles {
    pub(super) fn copies(files: &[BorrowedFd<'_>; 4]) -> io::Result<Self> {
        let [a, b, c, d] = files.map(|file| file.try_clone_to_owned());
        Ok(Self([a?, b?, c?, d?]))
    }

    pub(super) fn borrowed(&self) -> [BorrowedFd<'_>; 4] {
        self.0.each_ref().map(AsFd::as_fd)
    }
}
