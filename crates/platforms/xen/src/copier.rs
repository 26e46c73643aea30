//! Copies out of a pool that the driver domain grants to this guest.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use arrayvec::ArrayVec;
use hypervisor::guest_copy::{CopierCounts, GUEST_COPIES_PER_HYPERCALL, GuestCopier, GuestCopy};
use hypervisor::{COPIES_MAX, Copies as _, CopyStatus, Dest, Error, GrantRef, Source};
use shm::Region;
use wire::netif::guest_copy::{Directory, Mark};
use zerocopy::{FromZeros as _, IntoBytes as _};

use crate::copy::{COPIES_PER_HYPERCALL, XenCopies};
use crate::peer::Peer;
use crate::shared_pages::SharedPages;

const DIRECTORY_LEN: u16 = 4096;
const MARK_LEN: u16 = 16;

const _: () = assert!(size_of::<Directory>() == DIRECTORY_LEN as usize);
const _: () = assert!(size_of::<Mark>() == MARK_LEN as usize);

// The copies of one call, and that of the mark.
const _: () = assert!(GUEST_COPIES_PER_HYPERCALL < COPIES_MAX);

/// Copies out of a pool that `from` grants to this guest.
pub(crate) struct PoolCopier {
    gntdev: Arc<OwnedFd>,
    from: Peer,
    directory: GrantRef,
    mark: Mark,
    /// The grant of each page.
    grefs: Vec<u32>,
    is_stale: bool,
    done: CopierCounts,
}

impl PoolCopier {
    /// Reads the directory that `from` grants by this reference.
    pub(crate) fn open(
        gntdev: &Arc<OwnedFd>,
        from: Peer,
        directory: GrantRef,
    ) -> Result<Self, Error> {
        let bad = Error::BadGrant { dom: from.domain(), gref: directory, what: "read" };
        let mut listed = Directory::new_zeroed();
        let source = Source::Grant { peer: &from, gref: directory, offset: 0 };
        let dest = Dest::Private(listed.as_mut_bytes());
        let mut batch = XenCopies::default();
        batch.push(source, dest, DIRECTORY_LEN);
        let is_read = batch.perform(gntdev.as_fd(), None);
        drop(batch);
        let (mark, grefs) = listed.read().filter(|_| is_read).ok_or(bad)?;
        let (is_stale, grefs, done) = (false, grefs.to_vec(), CopierCounts::default());
        Ok(Self { gntdev: gntdev.clone(), from, directory, mark, grefs, is_stale, done })
    }

    /// Copies, and then reads the mark. A copy counts as done only if the pool was still there at that time.
    fn copy_some(&mut self, pages: &Region, some: &mut [GuestCopy]) {
        let mut mark = Mark::default();
        let Self { from, directory, grefs, .. } = &*self;
        let mut batch = XenCopies::default();
        for copy in &*some {
            let Some(gref) = grefs.get(usize::from(copy.number)).copied().map(GrantRef) else {
                continue;
            };
            let source = Source::Grant { peer: from, gref, offset: copy.offset };
            let dest = Dest::Mapped { region: pages, offset: copy.to };
            batch.push(source, dest, copy.len);
        }
        let source = Source::Grant { peer: from, gref: *directory, offset: 0 };
        batch.push(source, Dest::Private(&mut mark), MARK_LEN);
        batch.perform(self.gntdev.as_fd(), None);
        let hypercalls = batch.len().div_ceil(COPIES_PER_HYPERCALL) as u64;
        let statuses: ArrayVec<_, COPIES_MAX> =
            (0..batch.len()).map(|n| batch.status(n) == CopyStatus::Okay).collect();
        drop(batch);
        let is_there = statuses.last() == Some(&true) && mark == self.mark;
        let mut statuses = statuses.into_iter();
        for copy in some {
            let is_listed = usize::from(copy.number) < self.grefs.len();
            copy.done = is_listed && statuses.next() == Some(true) && is_there;
            self.done.copies += u64::from(copy.done);
        }
        self.done.hypercalls += hypercalls;
        self.is_stale |= !is_there;
    }
}

impl GuestCopier<SharedPages> for PoolCopier {
    fn copy(&mut self, pages: &SharedPages, batch: &mut [GuestCopy]) {
        for some in batch.chunks_mut(GUEST_COPIES_PER_HYPERCALL) {
            self.copy_some(pages, some);
        }
    }

    fn is_stale(&self) -> bool {
        self.is_stale
    }

    fn done(&self) -> CopierCounts {
        self.done
    }
}
