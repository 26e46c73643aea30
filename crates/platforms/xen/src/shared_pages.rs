//! Pages that this domain grants.

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hypervisor::{Error, GrantRef, PAGE_SIZE};
use rustix::io::Errno;
use shm::Region;

use crate::peer::Peer;
use crate::sys::gntalloc::{self, Access};

/// Pages in gntalloc's table. Dropping them ends their grants and frees them. The kernel keeps
/// pages that the other end still has mapped (XSA-396).
#[derive(Debug)]
pub(crate) struct Entries {
    gntalloc: Arc<OwnedFd>,
    /// Where in the device they are mapped from.
    index: u64,
    count: u32,
}

impl Entries {
    /// Grants `pages` zeroed pages to a domain.
    pub(crate) fn grant(
        gntalloc: &Arc<OwnedFd>,
        to: Peer,
        pages: usize,
        access: Access,
    ) -> Result<(Self, Vec<GrantRef>), Error> {
        let mut grefs = Vec::with_capacity(pages);
        let index = gntalloc::alloc_grefs(gntalloc.as_fd(), to.domain().0, pages, access, |gref| {
            grefs.push(GrantRef(gref));
        });
        let index = index.map_err(|error| match error {
            Errno::NOSPC => Error::Exhausted(LIMIT),
            error => Error::os("grant pages")(error),
        })?;
        // The device granted them, so the count fits.
        let count = u32::try_from(pages).unwrap_or(0);
        Ok((Self { gntalloc: gntalloc.clone(), index, count }, grefs))
    }

    /// None, of a device that need not be gntalloc.
    #[cfg(test)]
    pub(crate) fn of_nothing(gntalloc: &Arc<OwnedFd>) -> Self {
        Self { gntalloc: gntalloc.clone(), index: 0, count: 0 }
    }

    /// Where in the device they are mapped from.
    pub(crate) fn index(&self) -> u64 {
        self.index
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // The only error is that they are not there.
        let _ = gntalloc::dealloc_grefs(self.gntalloc.as_fd(), self.index, self.count);
    }
}

/// Pages that this domain grants to another. Dropping them revokes the grants.
#[derive(Debug)]
pub struct SharedPages {
    /// It can be shared.
    region: Region,
    /// Dropped after the region: pages are freed only when this process cannot reach them.
    _entries: Entries,
}

impl SharedPages {
    pub(crate) fn new(
        gntalloc: &Arc<OwnedFd>,
        to: Peer,
        pages: usize,
        access: Access,
    ) -> Result<(Self, Vec<GrantRef>), Error> {
        let (entries, grefs) = Entries::grant(gntalloc, to, pages, access)?;
        let region = Region::map(gntalloc.as_fd(), entries.index(), pages * PAGE_SIZE)
            .map_err(Error::os("map own pages"))?;
        let region = Arc::new(region).slice(0..pages * PAGE_SIZE);
        let region = region.map_err(|_| Error::Exhausted("pages"))?;
        Ok((Self { region, _entries: entries }, grefs))
    }
}

const LIMIT: &str = "pages that gntalloc grants: raise its limit with \
    `echo 65536 > /sys/module/xen_gntalloc/parameters/limit`";

impl Deref for SharedPages {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

/// The grants by this domain to itself of the first pages of a region, which it keeps. Dropping it revokes them.
#[derive(Debug)]
pub(crate) struct Grants {
    own: Peer,
    grefs: Vec<GrantRef>,
    /// How many pages all such regions have.
    granted: Arc<AtomicU64>,
    /// Dropped once the pages are unmapped.
    _entries: Entries,
}

impl Grants {
    pub(crate) fn new(
        own: Peer,
        grefs: Vec<GrantRef>,
        entries: Entries,
        granted: Arc<AtomicU64>,
    ) -> Self {
        granted.fetch_add(grefs.len() as u64, Ordering::Relaxed);
        Self { own, grefs, granted, _entries: entries }
    }
}

impl Drop for Grants {
    fn drop(&mut self) {
        self.granted.fetch_sub(self.grefs.len() as u64, Ordering::Relaxed);
    }
}

/// The grants of the regions that a batch of copies names. Nearly all of these are of the same region, and are looked up once.
#[derive(Default)]
pub(crate) struct KnownGrants<'a> {
    last: Option<(&'a Region, Option<(&'a Grants, usize)>)>,
}

impl<'a> KnownGrants<'a> {
    /// The grant of `len` bytes of a region, if they lie in one page that this domain grants to itself: who grants it, the page and the
    /// first byte in it.
    #[inline(always)]
    pub(crate) fn of(
        &mut self,
        region: &'a Region,
        offset: usize,
        len: u16,
    ) -> Option<(&'a Peer, GrantRef, u16)> {
        let (grants, start) = match self.last {
            Some((last, kept)) if std::ptr::eq(last, region) => kept?,
            _ => self.lookup(region)?,
        };
        let first = start + offset;
        // Below a page's length.
        let within = u16::try_from(first % PAGE_SIZE).ok()?;
        let in_one_page = usize::from(within) + usize::from(len) <= PAGE_SIZE;
        let gref = grants.grefs.get(first / PAGE_SIZE).filter(|_| in_one_page)?;
        Some((&grants.own, *gref, within))
    }

    #[inline(never)]
    fn lookup(&mut self, region: &'a Region) -> Option<(&'a Grants, usize)> {
        let kept = region.kept::<Grants>();
        self.last = Some((region, kept));
        kept
    }
}

/// See [`KnownGrants::of`].
#[cfg(test)]
pub(crate) fn grant_of(region: &Region, offset: usize, len: u16) -> Option<(&Peer, GrantRef, u16)> {
    KnownGrants::default().of(region, offset, len)
}

#[cfg(test)]
pub(crate) mod tests {
    use hypervisor::DomId;

    use super::*;

    /// Memory of `len` bytes, of which the first pages have grants without a hypervisor: their references count from 100 on.
    pub(crate) fn granted_memory(pages: usize, len: usize) -> Region {
        let own = Peer::new(DomId(5)).unwrap();
        let device = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        let entries = Entries::of_nothing(&Arc::new(device));
        let grefs = (100..).take(pages).map(GrantRef).collect();
        let grants = Grants::new(own, grefs, entries, Arc::default());
        Region::anonymous(len).unwrap().keeping(grants)
    }

    /// What a copy of this length names.
    fn named(region: &Region, offset: usize, len: u16) -> Option<(u16, u32, u16)> {
        grant_of(region, offset, len).map(|(own, gref, offset)| (own.domain().0, gref.0, offset))
    }

    #[test]
    fn only_bytes_within_a_granted_page_have_a_grant() {
        let region = Arc::new(granted_memory(2, 4 * PAGE_SIZE));
        assert_eq!(named(&region, 0, 4096), Some((5, 100, 0)));
        assert_eq!(named(&region, 4097, 4095), Some((5, 101, 1)));
        assert_eq!(named(&region, 4097, 4096), None, "it reaches into the next page");
        assert_eq!(named(&region, 2 * PAGE_SIZE, 1), None, "this page is not granted");
        let slice = region.slice(PAGE_SIZE..3 * PAGE_SIZE).unwrap();
        assert_eq!(named(&slice, 8, 100), Some((5, 101, 8)));
        assert_eq!(named(&slice, PAGE_SIZE, 1), None);
        assert_eq!(named(&Region::anonymous(4096).unwrap(), 0, 1), None);
    }

    #[test]
    fn grants_end_with_the_last_user_of_their_memory() {
        let region = Arc::new(granted_memory(3, 3 * PAGE_SIZE));
        let granted = region.kept::<Grants>().unwrap().0.granted.clone();
        let slice = region.slice(0..8).unwrap();
        drop(region);
        assert_eq!(granted.load(Ordering::Relaxed), 3);
        drop(slice);
        assert_eq!(granted.load(Ordering::Relaxed), 0);
    }
}
