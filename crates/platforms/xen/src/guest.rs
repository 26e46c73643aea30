//! The hypervisor's services for a frontend.

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hypervisor::guest_copy::{CopyForm, GuestCopier};
use hypervisor::{DomId, Error, GrantRef, Guest, PAGE_SIZE, Port};
use rustix::io::Errno;
use shm::Region;

use crate::device::{Device, OpenError, open};
use crate::event::XenEvent;
use crate::guest_copy::PoolCopier;
use crate::peer::Peer;
use crate::sys::gntalloc::{self, Access};

/// Xen, for a process that is served by another domain.
#[derive(Clone, Debug)]
pub struct XenGuest {
    domid: DomId,
    gntalloc: Arc<OwnedFd>,
    /// None if its driver is not loaded: this guest then leaves all copies to the driver domain.
    gntdev: Option<Arc<OwnedFd>>,
}

impl XenGuest {
    /// Opens the devices. `domid` is this domain's number, from its key `domid` in the store: no
    /// device knows it.
    ///
    /// # Errors
    /// When there is no Xen, or a driver or the right to use it is missing.
    pub fn open(domid: DomId) -> Result<Self, OpenError> {
        open(Device::Evtchn)?;
        let gntdev = open(Device::Gntdev).ok().map(Arc::new);
        Ok(Self { domid, gntalloc: Arc::new(open(Device::Gntalloc)?), gntdev })
    }

    /// As [`share`](Guest::share), but read-only. Tests use it: a backend must survive a ring or a
    /// buffer that it cannot write.
    ///
    /// # Errors
    /// As [`share`](Guest::share).
    pub fn share_read_only(
        &self,
        to: DomId,
        pages: usize,
    ) -> Result<(SharedPages, Vec<GrantRef>), Error> {
        SharedPages::new(&self.gntalloc, Peer::new(to)?, pages, Access::ReadOnly)
    }
}

impl Guest for XenGuest {
    type Event = XenEvent;
    type Pages = SharedPages;

    fn domid(&self) -> DomId {
        self.domid
    }

    /// The device takes the pages with `__GFP_ZERO` (`add_grefs` of Linux's gntalloc.c).
    fn share(&self, to: DomId, pages: usize) -> Result<(SharedPages, Vec<GrantRef>), Error> {
        SharedPages::new(&self.gntalloc, Peer::new(to)?, pages, Access::Writable)
    }

    fn alloc_unbound(&self, to: DomId) -> Result<(XenEvent, Port), Error> {
        let event = XenEvent::alloc_unbound(Peer::new(to)?.domain())?;
        let port = event.port();
        Ok((event, port))
    }

    fn has_guest_copies(&self) -> bool {
        self.gntdev.is_some()
    }

    fn guest_copier(
        &self,
        from: DomId,
        id: u32,
        form: CopyForm,
    ) -> Result<Box<dyn GuestCopier<SharedPages>>, Error> {
        match (&self.gntdev, form) {
            (Some(gntdev), CopyForm::Granted) => {
                Ok(Box::new(PoolCopier::open(gntdev, Peer::new(from)?, GrantRef(id))?))
            }
            _ => Err(Error::Unsupported("guest copies of this form")),
        }
    }
}

/// Pages in gntalloc's table. Dropping them ends their grants and frees them. The kernel keeps
/// pages that the other end still has mapped (XSA-396).
#[derive(Debug)]
struct Entries {
    gntalloc: Arc<OwnedFd>,
    /// Where in the device they are mapped from.
    index: u64,
    count: u32,
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
        let entries = Entries { gntalloc: gntalloc.clone(), index, count };
        let region = Region::map(gntalloc.as_fd(), index, pages * PAGE_SIZE)
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
