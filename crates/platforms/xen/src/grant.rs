//! Pages that other domains grant, in this process's address space.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use hypervisor::{Error, GrantMap, GrantRef, MapStatus, PAGE_SIZE};
use rustix::io::Errno;
use shm::{Region, Reserved};

use crate::event::XenEvent;
use crate::peer::Peer;
use crate::sys::gntdev;

/// Grants in gntdev's table. Dropping them removes them.
#[derive(Debug)]
struct Entries {
    gntdev: Arc<OwnedFd>,
    /// The offset in the device at which they are mapped.
    index: u64,
    count: u32,
}

impl Entries {
    fn new(gntdev: &Arc<OwnedFd>, peer: Peer, grefs: &[GrantRef]) -> Result<Self, Error> {
        let index =
            gntdev::map_grant_refs(gntdev.as_fd(), peer, grefs).map_err(|error| match error {
                Errno::NOMEM => Error::Exhausted("pages that gntdev maps"),
                error => Error::os("map granted pages")(error),
            })?;
        // The device accepted them, so the count fits.
        let count = u32::try_from(grefs.len()).unwrap_or(0);
        Ok(Self { gntdev: gntdev.clone(), index, count })
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // The only error is that they are not there.
        let _ = gntdev::unmap_grant_refs(self.gntdev.as_fd(), self.index, self.count);
    }
}

/// Pages of another domain in this process's address space. Dropping it unmaps them.
#[derive(Debug)]
pub struct Mapping {
    region: Region,
    /// Dropped after the region, as the device's header demands. Until then Xen counts the pages as
    /// in use. If they were released while this process can still reach them, it would access
    /// whatever their owner puts there next.
    entries: Entries,
}

impl Mapping {
    pub(crate) fn new(
        gntdev: &Arc<OwnedFd>,
        peer: Peer,
        grefs: &[GrantRef],
    ) -> Result<Self, Error> {
        // The mmap maps the pages. If it fails, the entries are dropped again.
        let entries = Entries::new(gntdev, peer, grefs)?;
        let region = Region::map(gntdev.as_fd(), entries.index, grefs.len() * PAGE_SIZE);
        match region {
            Ok(region) => Ok(Self { region, entries }),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NOMEM) => {
                Err(Error::os("map granted pages")(error))
            }
            Err(error) => {
                drop(entries);
                Err(first_bad(gntdev, peer, grefs)
                    .unwrap_or_else(|| Error::os("map granted pages")(error)))
            }
        }
    }

    /// Makes the kernel send `event` when the first page is unmapped, also by the death of this
    /// process.
    pub(crate) fn notify_on_unmap(&self, event: &XenEvent) -> rustix::io::Result<()> {
        let Entries { gntdev, index, .. } = &self.entries;
        gntdev::notify_on_unmap(gntdev.as_fd(), *index, event.port().0)
    }
}

/// Finds the refused page by trying them one by one: the device maps all or none and does not say
/// which failed.
fn first_bad(gntdev: &Arc<OwnedFd>, peer: Peer, grefs: &[GrantRef]) -> Option<Error> {
    let is_bad = |gref: &&GrantRef| match grefs {
        [_] => true,
        _ => Mapping::new(gntdev, peer, &[**gref]).is_err(),
    };
    let gref = *grefs.iter().find(is_bad)?;
    Some(Error::BadGrant { dom: peer.domain(), gref, what: "write" })
}

impl Deref for Mapping {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

/// Places for pages of one domain that come and go, mapped for reading, or for writing too.
pub struct Aperture {
    gntdev: Arc<OwnedFd>,
    peer: Peer,
    reserved: Reserved,
    /// The grant at each place.
    taken: Box<[Option<Entries>]>,
    /// Places that the system refused to unmap.
    stuck: BTreeSet<u32>,
}

impl Aperture {
    pub(crate) fn new(gntdev: &Arc<OwnedFd>, peer: Peer, places: u32) -> Result<Self, Error> {
        let reserved = Reserved::new(places as usize, PAGE_SIZE)
            .map_err(Error::os("address space for granted pages"))?;
        let taken = (0..places).map(|_| None).collect();
        Ok(Self { gntdev: gntdev.clone(), peer, reserved, taken, stuck: BTreeSet::new() })
    }

    /// Maps one page.
    pub(crate) fn map(&mut self, op: &GrantMap) -> MapStatus {
        for place in std::mem::take(&mut self.stuck) {
            self.unmap(place..place + 1);
        }
        // Xen pins whatever it maps: the frontend could not end the grant.
        let (Some(taken @ None), true) = (self.taken.get_mut(op.place as usize), op.pinned) else {
            return MapStatus::BadGrant;
        };
        let Ok(entries) = Entries::new(&self.gntdev, self.peer, &[op.gref]) else {
            return MapStatus::BadGrant;
        };
        let (place, fd) = (op.place as usize, self.gntdev.as_fd());
        // The kernel maps a grant with the access rights of the mapping. So a read-only grant is
        // refused here, and not at the first write, which would end the process.
        let mapped = match op.writable {
            true => self.reserved.map_writable(place, fd, entries.index),
            false => self.reserved.map(place, fd, entries.index),
        };
        match mapped {
            Ok(()) => {
                *taken = Some(entries);
                MapStatus::Okay
            }
            Err(_) => MapStatus::BadGrant,
        }
    }

    /// Unmaps these places: first from the address space in one call, then from the device's table,
    /// as with a [`Mapping`].
    pub(crate) fn unmap(&mut self, places: Range<u32>) {
        let range = places.start as usize..places.end as usize;
        let Some(taken) = self.taken.get_mut(range.clone()) else { return };
        if self.reserved.unmap(range).is_err() {
            // The system is out of mappings. The pages stay until the next map, which tries again.
            self.stuck.extend(places);
            return;
        }
        for entries in taken {
            *entries = None;
        }
    }
}

impl Deref for Aperture {
    type Target = Region;

    fn deref(&self) -> &Region {
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

impl fmt::Debug for Aperture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aperture").field("peer", &self.peer).finish_non_exhaustive()
    }
}
