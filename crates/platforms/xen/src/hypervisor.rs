//! The hypervisor's services for a backend.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hypervisor::{
    DmaRange, DomId, Error, GrantCopy, GrantMap, GrantRef, Hypervisor, MappedPages, Port,
};

use crate::copy::copy;
use crate::device::{Device, OpenError, open};
use crate::event::XenEvent;
use crate::grant::{Aperture, Mapping};
use crate::peer::Peer;

/// Xen, for a process that serves other domains.
#[derive(Clone, Debug)]
pub struct Xen {
    gntdev: Arc<OwnedFd>,
}

impl Xen {
    /// Opens the devices.
    ///
    /// # Errors
    /// When there is no Xen, or a driver or the right to use it is missing.
    pub fn open() -> Result<Self, OpenError> {
        // Each channel opens it again later. Opened here to report a missing driver at start.
        open(Device::Evtchn)?;
        Ok(Self { gntdev: Arc::new(open(Device::Gntdev)?) })
    }
}

impl Hypervisor for Xen {
    type Peer = Peer;
    type Mapping = Mapping;
    type Aperture = Aperture;
    type Event = XenEvent;

    /// `GNTDEV_COPY_BATCH`: the device splits a batch into hypercalls of this size.
    const COPIES_PER_HYPERCALL: usize = 16;

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
    fn copy(&self, batch: &mut [GrantCopy<'_, Peer>]) {
        copy(self.gntdev.as_fd(), batch);
    }

    fn bind_interdomain(&self, peer: &Peer, port: Port) -> Result<XenEvent, Error> {
        XenEvent::bind_interdomain(peer.domain(), port)
    }

    fn notify_on_unmap(&self, mapping: &Mapping, event: &XenEvent) {
        // If it fails, the frontend only notices a crash later.
        let _ = mapping.notify_on_unmap(event);
    }
}
