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

/// Grants in gntdev's table. Dropping them takes them out.
#[derive(Debug)]
struct Entries {
    gntdev: Arc<OwnedFd>,
    /// Where in the device they are mapped from.
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
        // The device took them, so there are few.
        let count = u32::try_from(grefs.len()).unwrap_or(0);
        Ok(Self { gntdev: gntdev.clone(), index, count })
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        // It could only say that they are not there.
        let _ = gntdev::unmap_grant_refs(self.gntdev.as_fd(), self.index, self.count);
    }
}

/// Pages of another domain in this process's address space. Dropping it unmaps them.
#[derive(Debug)]
pub struct Mapping {
    region: Region,
    /// Dropped after the region, as the device's header demands. Until then Xen takes the pages for
    /// in use; pages released while they can still be reached here would be read and written when
    /// their owner has put something else there.
    entries: Entries,
}

impl Mapping {
    pub(crate) fn new(
        gntdev: &Arc<OwnedFd>,
        peer: Peer,
        grefs: &[GrantRef],
    ) -> Result<Self, Error> {
        // The pages are mapped by mmap. One that fails drops the entries again.
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

    /// Has the kernel send `event` when the first page is unmapped, this process's death included.
    pub(crate) fn notify_on_unmap(&self, event: &XenEvent) -> rustix::io::Result<()> {
        let Entries { gntdev, index, .. } = &self.entries;
        gntdev::notify_on_unmap(gntdev.as_fd(), *index, event.port().0)
    }
}

/// Pages are mapped all or none, and the answer does not tell which was refused: tries them one
/// by one.
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

/// Places for pages of one domain that come and go, mapped for reading.
pub struct Aperture {
    gntdev: Arc<OwnedFd>,
    peer: Peer,
    reserved: Reserved,
    /// What is at each place.
    taken: Box<[Option<Entries>]>,
    /// Places that the system refused to empty.
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
        let Some(taken @ None) = self.taken.get_mut(op.place as usize) else {
            return MapStatus::BadGrant;
        };
        let Ok(entries) = Entries::new(&self.gntdev, self.peer, &[op.gref]) else {
            return MapStatus::BadGrant;
        };
        let (place, fd) = (op.place as usize, self.gntdev.as_fd());
        // The kernel maps a grant as the address space has it: one to be read only refuses to be
        // written here, and not at the first write, which would end the process.
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

    /// Unmaps what is at these places: first from the address space, at once, then from the
    /// device's table, as with a [`Mapping`].
    pub(crate) fn unmap(&mut self, places: Range<u32>) {
        let range = places.start as usize..places.end as usize;
        let Some(taken) = self.taken.get_mut(range.clone()) else { return };
        if self.reserved.unmap(range).is_err() {
            // The system is out of mappings for now. They stay until something is mapped again.
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
        // A place's number came as 32 bits.
        let places = u32::try_from(self.taken.len()).unwrap_or(u32::MAX);
        self.unmap(0..places);
    }
}

impl fmt::Debug for Aperture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aperture").field("peer", &self.peer).finish_non_exhaustive()
    }
}
