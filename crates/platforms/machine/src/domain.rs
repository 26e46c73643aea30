//! A domain as the hypervisor sees it: its memory and its grant table.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use hypervisor::{DomId, Error, GrantRef, PAGE_SIZE};
use shm::{Region, create_memfd, create_sealable_memfd, seal_future_writes};

use crate::balloon::Balloon;
use crate::dma::Holds;
use crate::dma::pages::DmaPages;
use crate::exchange::Exchange;
use crate::grant_table::{Access, GRANT_ENTRY_LEN, GRANTS_PER_PAGE, GrantEntry, gtf};
use crate::guest_copy::CopiesOfDomain;
use crate::memory::{MemorySize, populate, secret_memory};
use crate::share::{MappingCount, Share};

/// The driver domain's number.
pub const DRIVER_DOMAIN: DomId = DomId(0);

/// A domain: its memory and its identity.
pub struct Domain {
    id: DomId,
    size: MemorySize,
    fd: OwnedFd,
    /// Its ordinary pages: no grant reaches into the exchange area.
    memory: Region,
    balloon: Balloon,
    exchange: Exchange,
    process: OnceLock<u32>,
    alive: AtomicBool,
    /// Pins of mapped grants. The flags in the guest's table do not say how many there are.
    pins: Box<[AtomicU32]>,
    holds: Holds,
    dma_pages: DmaPages,
    mappings: MappingCount,
    copies: CopiesOfDomain,
    /// Whether its memory may be mapped here: sealed, if its size asks for that.
    ready: AtomicBool,
}

impl Domain {
    /// A domain with fresh, zeroed memory, from the machine page `first` on.
    pub(crate) fn new(
        id: DomId,
        mut size: MemorySize,
        share: Share,
        first: u64,
    ) -> std::io::Result<Self> {
        let exchange = Exchange::new(size)?;
        let secret = if size.secret { secret_memory(id, size) } else { None };
        // The kernel may have refused.
        size.secret = secret.is_some();
        let (fd, mapping) = match secret {
            Some(secret) => secret,
            None => {
                let name = format!("pvnet-domain-{id}");
                let create = if size.sealed { create_sealable_memfd } else { create_memfd };
                let fd = create(&name, size.pages + size.exchange_pages, size.page_size)?;
                let mapping = Region::map_aligned(&fd, 0, size.pages * PAGE_SIZE)?;
                (fd, mapping)
            }
        };
        // A slice, which can have users that outlive the domain.
        let memory = Arc::new(mapping).slice(0..size.pages * PAGE_SIZE)?;
        populate(id, size, &memory);
        let pins = (0..size.grant_pages * GRANTS_PER_PAGE).map(|_| AtomicU32::new(0)).collect();
        let (balloon, process) = (Balloon::new(size), OnceLock::new());
        let alive = AtomicBool::new(true);
        let (holds, dma_pages) = (Holds::default(), DmaPages::new(first));
        let mappings = MappingCount::new(share.mappings);
        let ready = AtomicBool::new(!size.sealed);
        let copies = CopiesOfDomain::default();
        Ok(Self {
            id,
            size,
            fd,
            memory,
            balloon,
            exchange,
            process,
            alive,
            pins,
            holds,
            dma_pages,
            mappings,
            copies,
            ready,
        })
    }

    /// The guest has mapped its memory: seals it, if its size says so.
    pub(crate) fn mapped(&self) -> Result<(), Error> {
        if self.size.sealed {
            seal_future_writes(&self.fd).map_err(Error::os("seal guest memory"))?;
        }
        self.ready.store(true, Ordering::Release);
        Ok(())
    }

    /// Fails until its memory is sealed. The driver domain maps none of it before, so no worker
    /// reaches memory in which the guest can make holes.
    pub(crate) fn check_ready(&self) -> Result<(), Error> {
        match self.ready.load(Ordering::Acquire) {
            true => Ok(()),
            false => Err(Error::NotReady(self.id)),
        }
    }

    /// The number of its process, once it has joined. The process may have ended.
    #[must_use]
    pub fn process(&self) -> Option<u32> {
        self.process.get().copied()
    }

    /// Records the process that became this domain. Only one ever does.
    pub(crate) fn joined(&self, process: u32) {
        let _ = self.process.set(process);
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> DomId {
        self.id
    }

    /// The size of its memory.
    #[must_use]
    pub fn size(&self) -> MemorySize {
        self.size
    }

    /// The file behind its memory, to hand to the guest.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The same, for a card. It cannot be mapped writable if it is [sealed](MemorySize::sealed).
    #[must_use]
    pub fn memory_file(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// How many bytes the file behind its memory has now; none if the guest cannot make holes in it.
    #[must_use]
    pub fn memory_in_use(&self) -> Option<u64> {
        let can_have_holes = !(self.size.sealed || self.size.secret);
        let blocks = rustix::fs::fstat(&self.fd).ok().filter(|_| can_have_holes)?.st_blocks;
        // Blocks of 512 bytes, whatever the file system's are.
        u64::try_from(blocks).ok().map(|blocks| blocks * 512)
    }

    #[inline]
    pub(crate) fn memory(&self) -> &Region {
        &self.memory
    }

    /// The pages that it has given up.
    pub(crate) fn balloon(&self) -> &Balloon {
        &self.balloon
    }

    /// The owners of the pages of its exchange area.
    pub(crate) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// The holds of devices on its memory.
    pub(crate) fn holds(&self) -> &Holds {
        &self.holds
    }

    /// Where its pages lie in the machine, and the cards that reach them.
    #[inline]
    pub(crate) fn dma_pages(&self) -> &DmaPages {
        &self.dma_pages
    }

    /// The mappings of its apertures.
    pub(crate) fn mappings(&self) -> &MappingCount {
        &self.mappings
    }

    /// Its guest copies.
    pub(crate) fn copies(&self) -> &CopiesOfDomain {
        &self.copies
    }

    /// Whether an ordinary page has this number, and is not given up.
    #[inline]
    pub(crate) fn has_page(&self, page: usize) -> bool {
        page < self.size.pages && !self.balloon.is_out(page)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Ends it: from now on no grant of it is honoured.
    pub(crate) fn kill(&self) {
        self.alive.store(false, Ordering::Release);
    }

    /// Checks one use of a grant; returns the first byte of the page in the domain's memory.
    ///
    /// The guest may change the entry at any moment, so it is read once, as a whole, and the copy
    /// is checked. A guest that revokes a page during a copy only affects its own memory; see
    /// docs/decisions/0002-copies-do-not-pin-grants.md.
    #[inline]
    pub(crate) fn check(
        &self,
        caller: DomId,
        gref: GrantRef,
        access: Access,
    ) -> Result<usize, Error> {
        self.entry(gref)
            .filter(|entry| entry.permits(caller, access))
            .map(|entry| entry.frame as usize)
            .filter(|frame| self.has_page(*frame))
            .map(|frame| frame * PAGE_SIZE)
            .ok_or_else(|| self.bad(gref, access))
    }

    /// Prefetches the first byte of a copy. The grant is not checked: a prefetch within the
    /// domain's memory has no effect on it.
    #[inline]
    pub(crate) fn prefetch(&self, gref: GrantRef, offset: u16, access: Access) {
        if let Some(entry) = self.entry(gref) {
            let at = entry.frame as usize * PAGE_SIZE + usize::from(offset);
            match access {
                Access::Read => self.memory.prefetch(at),
                Access::Write => self.memory.prefetch_for_write(at),
            }
        }
    }

    #[cold]
    fn bad(&self, gref: GrantRef, access: Access) -> Error {
        let what = match access {
            Access::Read => "read",
            Access::Write => "write",
        };
        Error::BadGrant { dom: self.id, gref, what }
    }

    /// The first byte of an entry in the domain's memory; none for a dead domain.
    #[inline]
    pub(crate) fn entry_at(&self, gref: GrantRef) -> Option<usize> {
        let index = gref.0 as usize;
        (index < self.pins.len() && self.is_alive()).then_some(index * GRANT_ENTRY_LEN)
    }

    #[inline]
    fn entry(&self, gref: GrantRef) -> Option<GrantEntry> {
        // Acquire: the guest writes domid and frame before it publishes the flags.
        let word = self.memory.atomic_u64(self.entry_at(gref)?).ok()?.load(Ordering::Acquire);
        Some(GrantEntry::from(word))
    }

    /// Pins a grant for a mapping: the guest can see that it must not take the page back.
    pub(crate) fn pin(
        &self,
        caller: DomId,
        gref: GrantRef,
        access: Access,
    ) -> Result<usize, Error> {
        let pin = self.pins.get(gref.0 as usize).ok_or_else(|| self.bad(gref, access))?;
        pin.fetch_add(1, Ordering::AcqRel);
        self.flags(gref, |flags| flags.fetch_or(gtf::READING | gtf::WRITING, Ordering::AcqRel));
        // Checked after pinning: a guest that revokes in between has seen no pin.
        self.check(caller, gref, access).inspect_err(|_| self.unpin(gref))
    }

    /// Removes a pin; the last one clears the bits that the guest sees.
    pub(crate) fn unpin(&self, gref: GrantRef) {
        let Some(pin) = self.pins.get(gref.0 as usize) else { return };
        if pin.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.flags(gref, |flags| {
                flags.fetch_and(!(gtf::READING | gtf::WRITING), Ordering::AcqRel)
            });
        }
    }

    fn flags(&self, gref: GrantRef, change: impl FnOnce(&std::sync::atomic::AtomicU16) -> u16) {
        if let Ok(flags) = self.memory.atomic_u16(gref.0 as usize * GRANT_ENTRY_LEN) {
            change(flags);
        }
    }

    /// How many grants the hypervisor holds pinned: none after a clean detach.
    #[must_use]
    pub fn pinned(&self) -> usize {
        self.pins.iter().filter(|pin| pin.load(Ordering::Relaxed) > 0).count()
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("id", &self.id).field("size", &self.size).finish()
    }
}

/// The granted pages of a mapping, unpinned when it goes.
pub(crate) struct Pins {
    domain: Arc<Domain>,
    grefs: Vec<GrantRef>,
}

impl Pins {
    /// Pins all or none; returns where the pages start in the domain's memory.
    pub(crate) fn new(
        domain: &Arc<Domain>,
        caller: DomId,
        grefs: &[GrantRef],
    ) -> Result<(Self, Vec<usize>), Error> {
        let mut pins = Self { domain: Arc::clone(domain), grefs: Vec::with_capacity(grefs.len()) };
        let mut places = Vec::with_capacity(grefs.len());
        for gref in grefs {
            // On an error, dropping `pins` removes the pins so far.
            places.push(domain.pin(caller, *gref, Access::Write)?);
            pins.grefs.push(*gref);
        }
        Ok((pins, places))
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        for gref in &self.grefs {
            self.domain.unpin(*gref);
        }
    }
}

#[cfg(test)]
mod tests {
    use shm::PageSize;

    use super::*;
    use crate::coverage::{AddressSpace, Coverage};

    fn coverage(domain: &Domain) -> Coverage {
        domain.coverage(&AddressSpace::of_self().unwrap())
    }

    #[test]
    fn memory_gets_large_pages_if_it_asks_for_them() {
        let size = MemorySize { pages: 2048, page_size: PageSize::Huge, ..MemorySize::default() };
        let domain = Domain::new(DomId(7001), size, Share::default(), 512).unwrap();
        if domain.memory().populate_huge(0..2048 * PAGE_SIZE).is_err() {
            eprintln!("skipped: this kernel has no 2 MiB pages to give");
            return;
        }
        assert_eq!(coverage(&domain), Coverage { large: 8 << 20, total: 8 << 20 });
    }

    #[test]
    fn small_pages_are_allocated_at_first_use() {
        let domain =
            Domain::new(DomId(7002), MemorySize::default(), Share::default(), 512).unwrap();
        domain.memory().write(0, 1u8).unwrap();
        assert_eq!(coverage(&domain), Coverage { large: 0, total: 64 << 20 });
        assert_eq!(rustix::fs::fstat(domain.fd()).unwrap().st_blocks, 8);
    }
}
