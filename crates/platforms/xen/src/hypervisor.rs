//! The hypervisor's services for a backend.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hypervisor::guest_copy::{CopyForm, GuestCopies};
use hypervisor::{DmaRange, DomId, Error, EvtchnPort, GrantMap, GrantRef, Hypervisor, MappedPages};
use shm::Region;

use crate::copy::{COPIES_PER_HYPERCALL, XenCopies};
use crate::device::{Device, OpenError, open};
use crate::event::XenEvent;
use crate::grant::{Aperture, Mapping};
use crate::own_pages::{OwnPageCounts, OwnPages};
use crate::peer::Peer;
use crate::pool::GrantedPool;

/// Xen, for a process that serves other domains.
#[derive(Clone, Debug)]
pub struct Xen {
    gntdev: Arc<OwnedFd>,
    copies: Option<PoolSource>,
    own: Option<Arc<OwnPages>>,
}

/// Why this domain grants no pages to itself.
#[derive(Debug, thiserror::Error)]
pub enum OwnPagesError {
    /// gntalloc cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// gntalloc or Xen refuses.
    #[error(transparent)]
    Refused(#[from] Error),
}

/// Where pools for guest copies come from.
#[derive(Clone, Debug)]
struct PoolSource {
    gntalloc: Arc<OwnedFd>,
    pages: usize,
}

impl Xen {
    /// Opens the devices.
    ///
    /// # Errors
    /// When there is no Xen, or a driver or the right to use it is missing.
    pub fn open() -> Result<Self, OpenError> {
        // Opened only to report a missing driver at start: each channel opens it again later.
        open(Device::Evtchn)?;
        Ok(Self { gntdev: Arc::new(open(Device::Gntdev)?), copies: None, own: None })
    }

    /// As [`open`](Self::open), with guest copies: each queue of a guest that copies gets a pool of `pages` pages, at
    /// most [`POOL_PAGES_MAX`](wire::netif::guest_copy::POOL_PAGES_MAX).
    pub fn with_guest_copies(pages: usize) -> Result<Self, OpenError> {
        let gntalloc = Arc::new(open(Device::Gntalloc)?);
        Ok(Self { copies: Some(PoolSource { gntalloc, pages }), ..Self::open()? })
    }

    /// Lets this domain, `own`, grant pages to itself from now on, as many as gntalloc has: the kernel need not pin such pages for
    /// each copy.
    ///
    /// # Errors
    /// gntalloc is missing or refuses, or Xen does not copy between such pages. Copies pin pages then.
    pub fn grant_own_pages(&mut self, own: DomId) -> Result<(), OwnPagesError> {
        let pages = OwnPages::new(open(Device::Gntalloc)?, Peer::new(own)?, &self.gntdev)?;
        self.own = Some(Arc::new(pages));
        Ok(())
    }

    /// How many pages this domain grants to itself; none if it grants none.
    #[must_use]
    pub fn own_pages(&self) -> Option<OwnPageCounts> {
        self.own.as_deref().map(OwnPages::counts)
    }
}

impl Hypervisor for Xen {
    type Peer = Peer;
    type Mapping = Mapping;
    type Aperture = Aperture;
    type Event = XenEvent;
    type Copies<'a> = XenCopies<'a>;

    const COPIES_PER_HYPERCALL: usize = COPIES_PER_HYPERCALL;

    /// A frontend sees that a pool is gone by its mark.
    const RESUMES_GUEST_COPIES: bool = true;

    fn peer(&self, domain: DomId) -> Result<Peer, Error> {
        Peer::new(domain)
    }

    fn map(&self, peer: &Peer, grefs: &[GrantRef]) -> Result<Mapping, Error> {
        Mapping::new(&self.gntdev, *peer, grefs)
    }

    fn aperture(&self, peer: &Peer, places: u32) -> Result<Aperture, Error> {
        Aperture::new(&self.gntdev, *peer, places)
    }

    fn map_at(&self, aperture: &mut Aperture, batch: &mut [GrantMap]) {
        for op in batch {
            op.status = aperture.map(op);
        }
    }

    fn unmap(&self, aperture: &mut Aperture, places: Range<u32>) {
        aperture.unmap(places);
    }

    /// Pages that are not mapped are out of reach: no system call takes a grant. They are copied.
    /// Mapped pages are good for this call, and no longer: their owner may have them unmapped.
    fn dma_map<'a>(
        &self,
        _: &'a Peer,
        mapped: Option<MappedPages<'a>>,
        batch: &mut [DmaRange<'a>],
    ) {
        for DmaRange { from, len, address } in batch {
            *address = mapped.and_then(|pages| pages.address(*from, *len));
        }
    }

    #[inline]
    fn perform(&self, batch: &mut XenCopies<'_>) -> bool {
        batch.perform(self.gntdev.as_fd(), self.own.as_deref())
    }

    fn buffer_memory(&self, len: usize) -> io::Result<Region> {
        match &self.own {
            Some(own) => own.buffer_memory(len),
            None => Region::anonymous(len),
        }
    }

    /// The guest copies out of a [granted](CopyForm::Granted) pool.
    fn guest_copies(&self, peer: &Peer, form: CopyForm) -> Result<Arc<dyn GuestCopies>, Error> {
        match (&self.copies, form) {
            (Some(PoolSource { gntalloc, pages }), CopyForm::Hypercall) => {
                Ok(Arc::new(GrantedPool::new(gntalloc, *peer, *pages)?))
            }
            _ => Err(Error::Unsupported("guest copies")),
        }
    }

    fn bind_interdomain(&self, peer: &Peer, port: EvtchnPort) -> Result<XenEvent, Error> {
        XenEvent::bind_interdomain(peer.domain(), port)
    }

    fn notify_on_unmap(&self, mapping: &Mapping, event: &XenEvent) {
        // If it fails, the frontend only notices a crash later.
        let _ = mapping.notify_on_unmap(event);
    }
}
