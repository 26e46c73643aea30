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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use hypervisor::flip::{PageReceiver, TransferSlot};
use hypervisor::guest_copy::{CopyForm, GuestCopier};
use hypervisor::{DomId, Error, EvtchnPort, GrantRef, Guest, Hypervisor, PAGE_SIZE};
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

    fn alloc_unbound(&self, to: DomId) -> Result<(GuestEvent, EvtchnPort), Error> {
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

/// Offers an event channel. Only the driver domain can be the other end: guests may not bypass the switch.
pub(crate) fn offer(
    machine: &Machine,
    from: DomId,
    to: DomId,
) -> Result<(GuestEvent, EvtchnPort), Error> {
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
        let (guest, grefs) = (self.inner.clone(), grants.clone());
        let freed = (0..pages).map(|_| AtomicBool::new(false)).collect();
        Ok((SharedPages { region, guest, first, grefs, freed }, grants))
    }

    fn release(&self, pages: &SharedPages, page: usize) -> bool {
        pages.free(page)
    }

    fn alloc_unbound(&self, to: DomId) -> Result<(GuestEvent, EvtchnPort), Error> {
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
        _: DomId,
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
    /// Which pages were freed already.
    freed: Box<[AtomicBool]>,
}

impl SharedPages {
    /// Ends a page's grant and frees it. Returns false if it is free already, or if the other domain
    /// still has it mapped.
    fn free(&self, page: usize) -> bool {
        let Some(freed) = self.freed.get(page) else { return false };
        if freed.swap(true, Ordering::AcqRel) {
            return false;
        }
        if !self.guest.revoke(self.grefs[page]) {
            freed.store(false, Ordering::Release);
            return false;
        }
        let mut free = self.guest.free();
        free.frames.put_back(self.first + page);
        free.grants.push(self.grefs[page].0);
        true
    }
}

impl Deref for SharedPages {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        for page in 0..self.grefs.len() {
            // A page that the other domain still has mapped must not be reused: the page and its
            // reference are never used again (XSA-396).
            self.free(page);
        }
    }
}

impl fmt::Debug for MachineGuest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MachineGuest").field("domid", &self.inner.domid).finish()
    }
}

#[cfg(test)]
mod tests;
