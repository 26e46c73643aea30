//! Pages that this domain grants to itself.
//!
//! A process names its own end of a copy by an address. gntdev then pins the page, in a walk of its page tables, for each copy. A page
//! that is granted to this domain itself is named by its grant, as the guest's is: Xen checks one grant more, and Linux does nothing.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hypervisor::{Error, PAGE_SIZE};
use parking_lot::Mutex;
use shm::Region;

use crate::peer::Peer;
use crate::shared_pages::{Entries, Grants, KnownGrants};
use crate::sys::gntalloc::Access;
use crate::sys::gntdev::{End, Segment, grant_copy};

/// Bytes at the start of [buffer memory](OwnPages::buffer_memory) that are granted: 16 frames of 64 KiB. The window of a queue that reads
/// frames takes the buffers from the first on, and seldom holds more at once. The pages are there from the start, so all would be too
/// many.
const GRANTED_BYTES: usize = 1 << 20;
/// Pages that this domain grants to itself for a queue of a device.
pub const OWN_PAGES_OF_A_QUEUE: usize = GRANTED_BYTES / PAGE_SIZE;
/// Private bytes that go through a [scratch](OwnPages::scratch): a frame's header, or a short frame. Copying more costs more than pinning a page.
pub(crate) const SCRATCH_BYTES: usize = 256;
/// Places of a scratch. Further short copies of a system call pin their pages.
pub(crate) const SCRATCH_PLACES: usize = 64;
const SCRATCH_LEN: usize = SCRATCH_PLACES * SCRATCH_BYTES;

/// What this domain grants to itself.
#[derive(Debug)]
pub(crate) struct OwnPages {
    gntalloc: Arc<OwnedFd>,
    /// This domain.
    own: Peer,
    /// For copies of short private bytes. Each is in use by one thread at most.
    scratches: Mutex<Vec<Region>>,
    granted: Arc<AtomicU64>,
    refused: AtomicU64,
}

/// How many pages this domain grants to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnPageCounts {
    /// Pages that are granted now.
    pub granted: u64,
    /// Allocations that gntalloc has refused: their copies pin pages.
    pub refused: u64,
}

impl OwnPages {
    /// Tries a copy between two pages of this domain, which is `own`.
    ///
    /// # Errors
    /// gntalloc gives no pages, or Xen does not copy between them.
    pub(crate) fn new(gntalloc: OwnedFd, own: Peer, gntdev: &OwnedFd) -> Result<Self, Error> {
        let this = Self {
            gntalloc: Arc::new(gntalloc),
            own,
            scratches: Mutex::default(),
            granted: Arc::default(),
            refused: AtomicU64::default(),
        };
        let pages = this.grant(SCRATCH_LEN, SCRATCH_LEN)?;
        let failed = |what| Error::os("copy between own pages")(io::Error::other(what));
        pages.write(8, u64::MAX).map_err(failed)?;
        let end = |offset| End::mapped(&pages, offset, 8, &mut KnownGrants::default());
        let segment = end(8).zip(end(PAGE_SIZE)).and_then(|(from, to)| Segment::between(from, to));
        let mut segment = segment.ok_or(Error::Unsupported("copies between own pages"))?;
        grant_copy(gntdev.as_fd(), slice::from_mut(&mut segment))
            .map_err(Error::os("copy between own pages"))?;
        if !segment.is_done() || pages.read(PAGE_SIZE) != Ok(u64::MAX) {
            return Err(Error::Unsupported("copies between own pages"));
        }
        this.scratches.lock().push(pages);
        Ok(this)
    }

    /// See [`Hypervisor::buffer_memory`](hypervisor::Hypervisor::buffer_memory).
    pub(crate) fn buffer_memory(&self, len: usize) -> io::Result<Region> {
        self.grant(len, GRANTED_BYTES).or_else(|_| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            Region::anonymous(len)
        })
    }

    /// Memory of `len` bytes, of which the first whole pages of `granted` bytes are granted.
    fn grant(&self, len: usize, granted: usize) -> Result<Region, Error> {
        let pages = granted.min(len) / PAGE_SIZE;
        let (entries, grefs) = Entries::grant(&self.gntalloc, self.own, pages, Access::Writable)?;
        let region = Region::map_first(&self.gntalloc, entries.index(), pages * PAGE_SIZE, len);
        let region = region.map_err(Error::os("map own pages"))?;
        Ok(region.keeping(Grants::new(self.own, grefs, entries, self.granted.clone())))
    }

    /// Granted memory with [`SCRATCH_PLACES`] places of [`SCRATCH_BYTES`], for as long as the result lives.
    pub(crate) fn scratch(&self) -> Option<Scratch<'_>> {
        let free = self.scratches.lock().pop();
        let new = || self.grant(SCRATCH_LEN, SCRATCH_LEN).ok();
        Some(Scratch { of: self, region: Some(free.or_else(new)?) })
    }

    pub(crate) fn counts(&self) -> OwnPageCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        OwnPageCounts { granted: load(&self.granted), refused: load(&self.refused) }
    }
}

/// A copy stays in its page.
const _: () =
    assert!(PAGE_SIZE.is_multiple_of(SCRATCH_BYTES) && SCRATCH_LEN.is_multiple_of(PAGE_SIZE));

/// A scratch in use.
pub(crate) struct Scratch<'a> {
    of: &'a OwnPages,
    region: Option<Region>,
}

impl Scratch<'_> {
    /// The first byte of a place.
    pub(crate) fn place(n: usize) -> usize {
        n % SCRATCH_PLACES * SCRATCH_BYTES
    }

    pub(crate) fn region(&self) -> Option<&Region> {
        self.region.as_ref()
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        self.of.scratches.lock().extend(self.region.take());
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use hypervisor::DomId;

    use super::*;
    use crate::shared_pages::grant_of;
    use crate::shared_pages::tests::granted_memory;

    #[test]
    fn a_device_that_refuses_leaves_ordinary_memory() {
        let device = || rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let own = Peer::new(DomId(0)).unwrap();
        assert!(OwnPages::new(device(), own, &device()).is_err());
        let gntalloc = Arc::new(device());
        let pages = OwnPages {
            gntalloc,
            own,
            scratches: Mutex::default(),
            granted: Arc::default(),
            refused: AtomicU64::default(),
        };
        let memory = pages.buffer_memory(2 * PAGE_SIZE).unwrap();
        memory.write(PAGE_SIZE, 7u8).unwrap();
        assert!(grant_of(&memory, 0, 1).is_none());
        assert!(pages.scratch().is_none());
        assert_eq!(pages.counts(), OwnPageCounts { granted: 0, refused: 1 });
    }

    /// One scratch, and a device that refuses.
    pub(crate) fn own_pages() -> OwnPages {
        let device = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let scratches = Mutex::new(vec![granted_memory(SCRATCH_LEN / PAGE_SIZE, SCRATCH_LEN)]);
        let (gntalloc, own) = (Arc::new(device), Peer::new(DomId(0)).unwrap());
        OwnPages {
            gntalloc,
            own,
            scratches,
            granted: Arc::default(),
            refused: AtomicU64::default(),
        }
    }

    #[test]
    fn a_scratch_is_used_by_one_batch_at_a_time() {
        let pages = own_pages();
        let first = pages.scratch().unwrap();
        assert!(first.region().is_some());
        assert!(pages.scratch().is_none(), "the other is in use, and the device gives no more");
        drop(first);
        assert!(pages.scratch().is_some());
    }
}
