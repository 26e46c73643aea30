//! The hypervisor's services for a guest.

pub(crate) mod balloon;
mod copier;
pub(crate) mod grouping;
pub(crate) mod own_pages;
mod slot;
pub(crate) mod state;

use std::fmt;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use hypervisor::flip::{PageReceiver, TransferSlot};
use hypervisor::guest_copy::{CopyForm, GuestCopier};
use hypervisor::{DomId, Error, GrantRef, Guest, Hypervisor, PAGE_SIZE, Port};
use shm::{PageSize, Region, Space};

use crate::domain::{DRIVER_DOMAIN, Domain};
use crate::event::GuestEvent;
use crate::grant_table::{GRANTS_PER_PAGE, GRANTS_RESERVED, gtf};
use crate::guest_copy::Request;
use crate::hypervisor::Machine;
use crate::memory::{BLOCK_PAGES, MemorySize, populate};

use grouping::{Frames, Grouping};
use slot::Slot;
#[cfg(test)]
pub(crate) use slot::TransferredPage;
use state::{Arrivals, Free, Hypercalls, Inner};

/// A domain seen from inside.
#[derive(Clone)]
pub struct MachineGuest {
    inner: Arc<Inner>,
}

impl MachineGuest {
    pub(crate) fn new(
        domid: DomId,
        file: OwnedFd,
        size: MemorySize,
        calls: Box<dyn Hypercalls>,
    ) -> Result<Self, Error> {
        let MemorySize { pages, grant_pages, exchange_pages, page_size, sealed, .. } = size;
        let wrong = |_| Error::Exhausted("pages");
        let own = file.try_clone().map_err(Error::os("guest memory"))?;
        let space = Space::map(own, 0, pages * PAGE_SIZE, page_size)
            .map_err(Error::os("map own memory"))?;
        let memory = space.memory().ok_or(Error::Exhausted("pages"))?.clone();
        populate(domid, size, &memory);
        if sealed {
            calls.mapped()?;
        }
        let table = memory.slice(0..grant_pages * PAGE_SIZE).map_err(wrong)?;
        let blocks = exchange_pages.div_ceil(BLOCK_PAGES).max(1);
        let places = Space::reserve(blocks * PageSize::Huge.bytes())
            .map_err(Error::os("reserve places for pages"))?;
        let entries = u32::try_from(grant_pages * GRANTS_PER_PAGE).unwrap_or(u32::MAX);
        // Popped from the end: consecutive grants get consecutive entries.
        let grants = (GRANTS_RESERVED..entries).rev().collect();
        let free = Free { frames: Frames::new(size), grants, arrivals: Arrivals::default() };
        let (space, places) = (Arc::new(space), Arc::new(places));
        let (free, ballooning) = (Mutex::new(free), Mutex::new(()));
        let inner =
            Inner { domid, size, file, space, places, memory, table, free, ballooning, calls };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The inside of a domain of `machine`, in the same process: for tests and benchmarks.
    pub fn inside(machine: &Machine, domain: &Arc<Domain>) -> Result<Self, Error> {
        let memory = domain.fd().try_clone().map_err(Error::os("guest memory"))?;
        let calls = Box::new(Direct { machine: machine.clone(), domid: domain.id() });
        Self::new(domain.id(), memory, domain.size(), calls)
    }

    /// The file of the domain's memory, with the grant table at its start. The guest may write
    /// every byte of it without these methods, so nothing may rely on them.
    #[must_use]
    pub fn memory(&self) -> BorrowedFd<'_> {
        self.inner.file.as_fd()
    }

    /// The same memory, as this process has mapped it.
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.inner.memory
    }

    /// Opens a channel to the daemon about this domain's contexts of cards; crate `nic-session` has its
    /// protocol.
    ///
    /// # Errors
    /// The daemon has no cards, or has gone.
    pub fn open_contexts(&self) -> Result<OwnedFd, Error> {
        self.inner.calls.open_contexts()
    }

    /// Decides where transferred pages are mapped from now on. The default is
    /// [`Grouping::Grouped`].
    pub fn group(&self, grouping: Grouping) {
        self.inner.free().frames.group(grouping);
    }
}

/// Hypercalls as function calls, without a socket.
struct Direct {
    machine: Machine,
    domid: DomId,
}

impl Hypercalls for Direct {
    fn mapped(&self) -> Result<(), Error> {
        self.machine.peer(self.domid)?.mapped()
    }

    fn alloc_unbound(&self, to: DomId) -> Result<(GuestEvent, Port), Error> {
        offer(&self.machine, self.domid, to)
    }

    fn surrender(&self, frames: &[u32]) -> Result<(), Error> {
        self.machine.surrender(self.domid, frames)
    }

    fn decrease_reservation(&self, pages: Range<usize>) -> Result<(), Error> {
        self.machine.peer(self.domid)?.decrease_reservation(pages)
    }

    fn increase_reservation(&self, pages: Range<usize>) -> Result<(), Error> {
        self.machine.peer(self.domid)?.increase_reservation(pages)
    }

    fn copy_granted(&self, id: u32, requests: &[Request]) -> Result<u64, Error> {
        self.machine.copy_granted(self.domid, id, requests)
    }

    fn open_pool(&self, id: u32) -> Result<OwnedFd, Error> {
        let copies = self.machine.pool(self.domid, id)?;
        let file = copies.pool_file().ok_or(Error::Unsupported("pool"))?;
        file.try_clone_to_owned().map_err(Error::os("pool"))
    }

    fn open_contexts(&self) -> Result<OwnedFd, Error> {
        Err(Error::Exhausted("cards"))
    }
}

/// Only the driver domain can be the other end: guests may not bypass the switch.
pub(crate) fn offer(
    machine: &Machine,
    from: DomId,
    to: DomId,
) -> Result<(GuestEvent, Port), Error> {
    if to != DRIVER_DOMAIN {
        return Err(Error::NoDomain(to));
    }
    machine.alloc_unbound(from)
}

impl Guest for MachineGuest {
    type Event = GuestEvent;
    type Pages = SharedPages;

    fn domid(&self) -> DomId {
        self.inner.domid
    }

    fn share(&self, to: DomId, pages: usize) -> Result<(SharedPages, Vec<GrantRef>), Error> {
        let mut free = self.inner.free();
        if free.grants.len() < pages {
            return Err(Error::Exhausted("grant references"));
        }
        let first = free.frames.take_run(pages).ok_or(Error::Exhausted("pages"))?;
        let grants: Vec<_> = (0..pages).filter_map(|_| free.grants.pop().map(GrantRef)).collect();
        drop(free);
        let start = first * PAGE_SIZE;
        let region = self.inner.memory.slice(start..start + pages * PAGE_SIZE);
        let region = region.map_err(|_| Error::Exhausted("pages"))?;
        region.zero(0, pages * PAGE_SIZE).map_err(|_| Error::Exhausted("pages"))?;
        for (n, gref) in grants.iter().enumerate() {
            self.inner.publish(*gref, to, first + n, gtf::PERMIT_ACCESS)?;
        }
        let shared =
            SharedPages { region, guest: self.inner.clone(), first, grefs: grants.clone() };
        Ok((shared, grants))
    }

    fn alloc_unbound(&self, to: DomId) -> Result<(GuestEvent, Port), Error> {
        self.inner.calls.alloc_unbound(to)
    }

    fn page_receiver(&self) -> Option<Arc<dyn PageReceiver>> {
        Some(Arc::new(self.clone()))
    }

    fn has_guest_copies(&self) -> bool {
        true
    }

    fn guest_copier(
        &self,
        id: u32,
        form: CopyForm,
    ) -> Result<Box<dyn GuestCopier<SharedPages>>, Error> {
        self.copier(id, form)
    }
}

impl PageReceiver for MachineGuest {
    fn accept_transfer(&self, from: DomId) -> Result<(Box<dyn TransferSlot>, GrantRef), Error> {
        let (slot, gref) = Slot::accept(&self.inner, from)?;
        Ok((Box::new(slot), gref))
    }

    fn surrender(&self) -> Result<(), Error> {
        slot::surrender(&self.inner)
    }
}

/// Pages of a guest that it grants to another domain. Dropping them revokes the grants.
pub struct SharedPages {
    region: Region,
    guest: Arc<Inner>,
    first: usize,
    grefs: Vec<GrantRef>,
}

impl Deref for SharedPages {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        for (n, gref) in self.grefs.iter().enumerate() {
            // A page that the other domain still has mapped must not be reused: the page and its
            // reference are never used again (XSA-396).
            if self.guest.revoke(*gref) {
                let mut free = self.guest.free();
                free.frames.put_back(self.first + n);
                free.grants.push(gref.0);
            }
        }
    }
}

impl fmt::Debug for MachineGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineGuest").field("domid", &self.inner.domid).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use hypervisor::{CopyStatus, Dest, EventChannel, GrantCopy, Hypervisor, Source};

    use super::*;

    fn machine() -> (Machine, Arc<Domain>, MachineGuest) {
        let machine = Machine::new();
        let size = MemorySize { pages: 64, grant_pages: 1, ..MemorySize::default() };
        let domain = machine.create(size).unwrap();
        let guest = MachineGuest::inside(&machine, &domain).unwrap();
        (machine, domain, guest)
    }

    fn fetch(
        machine: &Machine,
        peer: &Arc<Domain>,
        gref: u32,
        offset: u16,
        len: u16,
    ) -> CopyStatus {
        let mut bytes = [0; 8192];
        let source = Source::Grant { peer, gref: GrantRef(gref), offset };
        let mut batch = [GrantCopy::new(source, Dest::Private(&mut bytes), len)];
        machine.copy(&mut batch);
        batch[0].status
    }

    #[test]
    fn a_grant_is_checked_at_every_use() {
        let (machine, domain, guest) = machine();
        let (pages, grefs) = guest.share(DRIVER_DOMAIN, 2).unwrap();
        assert_eq!(fetch(&machine, &domain, grefs[1].0, 4000, 96), CopyStatus::Okay);
        assert_eq!(fetch(&machine, &domain, grefs[0].0, 4000, 97), CopyStatus::BadSource);
        assert_eq!(fetch(&machine, &domain, grefs[0].0, 0, 8000), CopyStatus::BadSource);
        assert_eq!(fetch(&machine, &domain, 100, 0, 1), CopyStatus::BadSource);
        assert_eq!(fetch(&machine, &domain, u32::MAX, 0, 1), CopyStatus::BadSource);
        drop(pages);
        assert_eq!(fetch(&machine, &domain, grefs[1].0, 0, 1), CopyStatus::BadSource);
        let (_pages, grefs) = guest.share(DomId(5), 1).unwrap();
        assert_eq!(fetch(&machine, &domain, grefs[0].0, 0, 1), CopyStatus::BadSource);
    }

    #[test]
    fn a_grant_of_a_page_outside_is_refused() {
        let (machine, domain, guest) = machine();
        for frame in [64, 65, u32::MAX] {
            let frame = frame as usize;
            let access = gtf::PERMIT_ACCESS;
            guest.inner.publish(GrantRef(9), DRIVER_DOMAIN, frame, access).unwrap();
            assert_eq!(fetch(&machine, &domain, 9, 0, 1), CopyStatus::BadSource);
            assert!(machine.map(&domain, &[GrantRef(9)]).is_err());
        }
        assert_eq!(domain.pinned(), 0);
    }

    #[test]
    fn read_only_grants_are_not_written() {
        let (machine, domain, guest) = machine();
        let (_pages, grefs) = guest.share(DRIVER_DOMAIN, 1).unwrap();
        guest.inner.flags(grefs[0]).unwrap().fetch_or(gtf::READONLY, Ordering::Relaxed);
        let dest = Dest::Grant { peer: &domain, gref: grefs[0], offset: 0 };
        let mut batch = [GrantCopy::new(Source::Private(b"x"), dest, 1)];
        machine.copy(&mut batch);
        assert_eq!(batch[0].status, CopyStatus::BadDest);
        assert_eq!(fetch(&machine, &domain, grefs[0].0, 0, 1), CopyStatus::Okay);
        assert!(machine.map(&domain, &grefs).is_err());
    }

    #[test]
    fn mapped_pages_are_shared_and_cannot_be_taken_back() {
        let (machine, domain, guest) = machine();
        let (pages, grefs) = guest.share(DRIVER_DOMAIN, 3).unwrap();
        let mapping = machine.map(&domain, &[grefs[2], grefs[0]]).unwrap();
        pages.write(8192 + 5, 77u8).unwrap();
        assert_eq!(mapping.read::<u8>(5), Ok(77));
        mapping.write(4096, 78u8).unwrap();
        assert_eq!(pages.read::<u8>(0), Ok(78));
        assert_eq!(domain.pinned(), 2);
        assert!(!guest.inner.revoke(grefs[2]));
        drop(mapping);
        assert_eq!(domain.pinned(), 0);
        assert!(guest.inner.revoke(grefs[2]));
    }

    #[test]
    fn pages_come_back_zeroed_unless_they_are_still_mapped() {
        let (machine, domain, guest) = machine();
        let (pages, grefs) = guest.share(DRIVER_DOMAIN, 63).unwrap();
        assert!(guest.share(DRIVER_DOMAIN, 1).is_err());
        pages.write(0, [0xaau8; 64]).unwrap();
        let mapping = machine.map(&domain, &grefs[..1]).unwrap();
        drop(pages);
        assert!(guest.share(DRIVER_DOMAIN, 63).is_err());
        let (pages, _) = guest.share(DRIVER_DOMAIN, 62).unwrap();
        assert_eq!(pages.read::<[u8; 64]>(0), Ok([0; 64]));
        drop(mapping);
    }

    #[test]
    fn a_dead_domain_grants_nothing() {
        let (machine, domain, guest) = machine();
        let (_pages, grefs) = guest.share(DRIVER_DOMAIN, 1).unwrap();
        machine.destroy(domain.id());
        assert_eq!(fetch(&machine, &domain, grefs[0].0, 0, 1), CopyStatus::BadSource);
        assert!(machine.map(&domain, &grefs).is_err());
        assert!(guest.alloc_unbound(DRIVER_DOMAIN).is_err());
    }

    #[test]
    fn events_go_both_ways_and_a_port_is_bound_once_at_a_time() {
        let (machine, domain, guest) = machine();
        let (theirs, port) = guest.alloc_unbound(DRIVER_DOMAIN).unwrap();
        assert!(guest.alloc_unbound(DomId(3)).is_err());
        assert!(machine.bind_interdomain(&domain, Port(port.0 + 1)).is_err());
        let ours = machine.bind_interdomain(&domain, port).unwrap();
        assert!(machine.bind_interdomain(&domain, port).is_err());
        assert!(!readable(&theirs));
        ours.notify().unwrap();
        assert!(readable(&theirs));
        theirs.take().unwrap();
        assert!(!readable(&theirs));
        theirs.notify().unwrap();
        assert!(readable(&ours));
        // A backend that ends leaves the channel unbound, as on Xen, for the next one.
        drop(ours);
        theirs.take().unwrap();
        let ours = machine.bind_interdomain(&domain, port).unwrap();
        ours.notify().unwrap();
        assert!(readable(&theirs));
        theirs.take().unwrap();
        drop(ours);
        machine.destroy(domain.id());
        assert!(matches!(theirs.take(), Err(Error::Gone)));
    }

    #[test]
    fn channels_that_the_guest_has_closed_make_room_for_others() {
        let (machine, domain, guest) = machine();
        let offer = || guest.alloc_unbound(DRIVER_DOMAIN);
        let (first, port) = offer().unwrap();
        let _ours = machine.bind_interdomain(&domain, port).unwrap();
        let others: Vec<_> = (1..256).map(|_| offer().unwrap()).collect();
        assert!(matches!(offer(), Err(Error::Exhausted(_))));
        drop(others);
        let (_event, _) = offer().unwrap();
        // The first one was kept: it is bound as it was.
        assert!(machine.bind_interdomain(&domain, port).is_err());
        drop(first);
    }

    fn readable(event: &impl std::os::fd::AsFd) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(event, PollFlags::IN)];
        poll(&mut fds, Some(&now)).unwrap();
        fds[0].revents().contains(PollFlags::IN)
    }
}
