//! The hypervisor's services for a backend.

use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hypervisor::{
    DmaHold, DmaRange, DomId, Error, GrantCopy, GrantMap, GrantRef, Hypervisor, MappedPages, Port,
};

use crate::XenEvent;
use crate::copy::copy;
use crate::device::{Device, OpenError, open};
use crate::grant::{Aperture, Mapping};

/// The first number that is no domain's (`DOMID_FIRST_RESERVED`): it and those above name what the
/// caller is, Xen itself, or nobody.
const FIRST_RESERVED: u16 = 0x7FF0;

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
        // Opened for each channel later; what is missing shall be known now.
        open(Device::Evtchn)?;
        Ok(Self { gntdev: Arc::new(open(Device::Gntdev)?) })
    }
}

/// Another domain, by its number: Xen looks it up at each use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(DomId);

impl Peer {
    /// A domain, which need not be there.
    pub(crate) fn new(domain: DomId) -> Result<Self, Error> {
        if domain.0 >= FIRST_RESERVED {
            return Err(Error::NoDomain(domain));
        }
        Ok(Self(domain))
    }

    /// Its number.
    #[must_use]
    pub fn domain(self) -> DomId {
        self.0
    }
}

impl Hypervisor for Xen {
    type Peer = Peer;
    type Mapping = Mapping;
    type Aperture = Aperture;
    type Event = XenEvent;

    /// `GNTDEV_COPY_BATCH`: the device splits what it is given into hypercalls of so many.
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
    ) -> Option<DmaHold> {
        for DmaRange { from, len, address } in batch {
            *address = mapped.and_then(|pages| pages.address(*from, *len));
        }
        None
    }

    #[inline]
    fn copy(&self, batch: &mut [GrantCopy<'_, Peer>]) {
        copy(self.gntdev.as_fd(), batch);
    }

    fn bind_interdomain(&self, peer: &Peer, port: Port) -> Result<XenEvent, Error> {
        XenEvent::bind_interdomain(peer.domain(), port)
    }

    fn notify_on_unmap(&self, mapping: &Mapping, event: &XenEvent) {
        // Without it a crash is noticed later, and that is all.
        let _ = mapping.notify_on_unmap(event);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_numbers_are_no_domains() {
        for domain in [0, 1, 0x7FEF] {
            assert_eq!(Peer::new(DomId(domain)).unwrap().domain(), DomId(domain));
        }
        for domain in [0x7FF0, 0x7FF1, 0x7FFF, u16::MAX] {
            assert!(matches!(Peer::new(DomId(domain)), Err(Error::NoDomain(_))));
        }
    }
}
