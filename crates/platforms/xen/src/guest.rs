//! The hypervisor's services for a frontend.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use hypervisor::guest_copy::{CopyForm, GuestCopier};
use hypervisor::{DomId, Error, EvtchnPort, GrantRef, Guest};

use crate::copier::PoolCopier;
use crate::device::{Device, OpenError, open};
use crate::event::XenEvent;
use crate::peer::Peer;
use crate::shared_pages::SharedPages;
use crate::sys::gntalloc::Access;

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

    fn alloc_unbound(&self, to: DomId) -> Result<(XenEvent, EvtchnPort), Error> {
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
