//! Pages that this domain grants to another.

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

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
