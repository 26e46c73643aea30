//! Apertures: places where the driver domain maps pages of a guest, for one packet or until the
//! guest wants them unmapped.
//!
//! The original netback mapped and unmapped every page of every packet, which the header channel
//! avoids: each change of the address space is costly, and each unmapping also flushes other cores'
//! TLBs. Persistent grants pay this once.

use std::ops::{Deref, Range};
use std::sync::Arc;

use hypervisor::{Error, GrantMap, GrantRef, MapStatus, PAGE_SIZE};
use shm::Reserved;

use crate::domain::{DRIVER_DOMAIN, Domain};
use crate::grant_table::Access;

/// Places for pages of one guest.
pub struct Aperture {
    domain: Arc<Domain>,
    reserved: Reserved,
    /// The page at each place.
    taken: Box<[Option<GrantRef>]>,
    /// Places that the system refused to unmap.
    stuck: Vec<Range<u32>>,
}

impl Aperture {
    pub(crate) fn new(domain: &Arc<Domain>, places: u32) -> Result<Self, Error> {
        let reserved = Reserved::new(places as usize, PAGE_SIZE)
            .map_err(Error::os("address space for granted pages"))?;
        let taken = vec![None; places as usize].into();
        Ok(Self { domain: Arc::clone(domain), reserved, taken, stuck: Vec::new() })
    }

    /// Maps one page. It is pinned before it is mapped and unpinned after it is unmapped, so that
    /// its owner sees when it must not take the page back.
    pub(crate) fn map(&mut self, op: &GrantMap) -> MapStatus {
        for places in std::mem::take(&mut self.stuck) {
            self.unmap(places);
        }
        let Some(taken @ None) = self.taken.get_mut(op.place as usize) else {
            return MapStatus::BadGrant;
        };
        let access = if op.writable { Access::Write } else { Access::Read };
        let Ok(start) = self.domain.pin(DRIVER_DOMAIN, op.gref, access) else {
            return MapStatus::BadGrant;
        };
        let (place, fd, start) = (op.place as usize, self.domain.fd(), start as u64);
        let mapped = match access {
            Access::Read => self.reserved.map(place, fd, start),
            Access::Write => self.reserved.map_writable(place, fd, start),
        };
        if mapped.is_err() {
            self.domain.unpin(op.gref);
            return MapStatus::BadGrant;
        }
        *taken = Some(op.gref);
        MapStatus::Okay
    }

    /// Unmaps these places in one change of the address space.
    pub(crate) fn unmap(&mut self, places: Range<u32>) {
        let range = places.start as usize..places.end as usize;
        let Some(taken) = self.taken.get_mut(range.clone()) else { return };
        if self.reserved.unmap(range).is_err() {
            // The system is out of mappings. The pages stay mapped and pinned until the next map,
            // which tries again.
            self.stuck.push(places);
            return;
        }
        for gref in taken.iter_mut().filter_map(Option::take) {
            self.domain.unpin(gref);
        }
    }
}

impl Deref for Aperture {
    type Target = shm::Region;

    fn deref(&self) -> &shm::Region {
        &self.reserved
    }
}

impl Drop for Aperture {
    fn drop(&mut self) {
        // Place numbers have 32 bits.
        let places = u32::try_from(self.taken.len()).unwrap_or(u32::MAX);
        self.unmap(0..places);
    }
}

#[cfg(test)]
mod tests;
