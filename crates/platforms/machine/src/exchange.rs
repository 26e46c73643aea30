//! The exchange area: pages that change hands between the driver domain and one guest.
//!
//! Xen can hand over any page, since it writes all page tables. A process can only map what
//! lies in a file it has, so each guest has an area of its own behind its ordinary pages, in
//! the same file, and every page of it has one owner: the driver domain or that guest. No
//! area serves two guests. What a page held before, and what a guest sees that keeps a page
//! mapped after it gave it back, or maps one it never got, are therefore its own frames and
//! nobody else's; what it writes there reaches nobody but itself.
//!
//! ```text
//!        surrender (guest's hypercall)            take (zeroed, mmap)
//! guest ───────────────────────────────▶ spare ───────────────────────▶ held
//!   ▲                                      ▲            drop (munmap)     │
//!   │                                      └─────────────────────────────┤
//!   └────────────────────────── transfer (munmap) ───────────────────────┘
//! ```

use std::any::Any;
use std::io;
use std::ops::Deref;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hypervisor::flip::{FlipPage, GrantTransfer, TransferStatus};
use hypervisor::{DomId, Error, GrantRef, PAGE_SIZE};
use shm::Region;

use crate::domain::{Domain, MemorySize, gtf};
use crate::hypervisor::DRIVER_DOMAIN;

/// Who owns each page of a guest's exchange area.
pub(crate) struct Exchange {
    /// The number of the area's first page, within the guest's memory.
    first: u32,
    owners: Mutex<Owners>,
}

struct Owners {
    /// By place in the area.
    of: Box<[Owner]>,
    /// The driver domain's pages that it has not mapped, by number.
    spare: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    DriverDomain,
    Guest,
}

/// How many pages of an exchange area are where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExchangeCount {
    /// The driver domain's, not mapped.
    pub spare: usize,
    /// The driver domain's, mapped.
    pub held: usize,
    /// The guest's.
    pub guest: usize,
}

impl Exchange {
    /// An area that is wholly the driver domain's.
    pub(crate) fn new(size: MemorySize) -> io::Result<Self> {
        let number = |n| u32::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
        let first = number(size.pages)?;
        let end = number(size.pages.saturating_add(size.exchange_pages))?;
        // Taken from the end: the page that came back last is the one most likely cached.
        let spare = (first..end).rev().collect();
        let of = vec![Owner::DriverDomain; size.exchange_pages].into();
        Ok(Self { first, owners: Mutex::new(Owners { of, spare }) })
    }

    fn owners(&self) -> MutexGuard<'_, Owners> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, frame: u32) -> Option<usize> {
        frame.checked_sub(self.first).map(|place| place as usize)
    }

    fn take(&self) -> Option<u32> {
        self.owners().spare.pop()
    }

    fn put_back(&self, frame: u32) {
        self.owners().spare.push(frame);
    }

    /// Makes the guest the owner of a page that the driver domain held.
    fn give(&self, frame: u32) {
        let mut owners = self.owners();
        if let Some(owner) = self.place(frame).and_then(|place| owners.of.get_mut(place)) {
            *owner = Owner::Guest;
        }
    }

    /// Makes the driver domain the owner of pages that the guest gives back. Ends at the first
    /// that is not the guest's to give; those before it are given.
    fn surrender(&self, guest: DomId, frames: &[u32]) -> Result<(), Error> {
        let mut owners = self.owners();
        for &frame in frames {
            let place = self.place(frame);
            let owner = place.and_then(|place| owners.of.get_mut(place));
            let owner = owner.filter(|owner| **owner == Owner::Guest);
            *owner.ok_or(Error::NotOwner { dom: guest, frame })? = Owner::DriverDomain;
            owners.spare.push(frame);
        }
        Ok(())
    }

    fn count(&self) -> ExchangeCount {
        let owners = self.owners();
        let guest = owners.of.iter().filter(|owner| **owner == Owner::Guest).count();
        let spare = owners.spare.len();
        ExchangeCount { spare, held: owners.of.len() - spare - guest, guest }
    }
}

impl Domain {
    /// Where the pages of its exchange area are. None is held when it was detached well.
    #[must_use]
    pub fn exchange_count(&self) -> ExchangeCount {
        self.exchange().count()
    }

    /// The domain gives pages back.
    pub(crate) fn surrender(&self, frames: &[u32]) -> Result<(), Error> {
        self.exchange().surrender(self.id(), frames)
    }

    /// Uses up an entry that accepts a page from `caller`. One exchange of the whole word: the
    /// guest may change it at any moment, and two workers may both mean it.
    fn commit_transfer(&self, caller: DomId, gref: GrantRef) -> bool {
        let offered = head(gtf::ACCEPT_TRANSFER, caller);
        let committed = head(gtf::ACCEPT_TRANSFER | gtf::TRANSFER_COMMITTED, caller);
        self.entry_at(gref).and_then(|at| self.memory().atomic_u32(at).ok()).is_some_and(|word| {
            word.compare_exchange(offered, committed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Tells the guest which page it got. What a guest does to the entry between commitment and
    /// completion only makes it lose sight of the page.
    fn complete_transfer(&self, gref: GrantRef, frame: u32) {
        let Some(at) = self.entry_at(gref) else { return };
        let written = self.memory().write(at + 4, frame);
        if let (Ok(()), Ok(flags)) = (written, self.memory().atomic_u16(at)) {
            // Release: who sees the bit sees the frame.
            flags.fetch_or(gtf::TRANSFER_COMPLETED, Ordering::Release);
        }
    }
}

/// The first half of a v1 grant entry, as it lies in memory.
fn head(flags: u16, domid: DomId) -> u32 {
    let ([f0, f1], [d0, d1]) = (flags.to_ne_bytes(), domid.0.to_ne_bytes());
    u32::from_ne_bytes([f0, f1, d0, d1])
}

/// A page of the driver domain's own, in its address space. Dropping it unmaps it.
pub(crate) struct ExchangePage {
    /// Dropped first: a page is unmapped before anybody else can have it.
    region: Region,
    held: Held,
}

/// The hold on a page of an area, whether it is mapped or not.
struct Held {
    domain: Arc<Domain>,
    frame: u32,
    given: bool,
}

impl Held {
    fn new(domain: &Arc<Domain>) -> Result<Self, Error> {
        let frame = domain.exchange().take().ok_or(Error::Exhausted("exchange pages"))?;
        Ok(Self { domain: domain.clone(), frame, given: false })
    }

    fn give(mut self) -> u32 {
        self.given = true;
        self.domain.exchange().give(self.frame);
        self.frame
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.given {
            self.domain.exchange().put_back(self.frame);
        }
    }
}

impl ExchangePage {
    /// Takes a page for `domain`, maps it and fills it with zero.
    pub(crate) fn take(domain: &Arc<Domain>) -> Result<Self, Error> {
        if !domain.is_alive() {
            return Err(Error::NoDomain(domain.id()));
        }
        let held = Held::new(domain)?;
        let start = u64::from(held.frame) * PAGE_SIZE as u64;
        let region = Region::map(domain.fd(), start, PAGE_SIZE)
            .map_err(Error::os("map an exchange page"))?;
        region.zero(0, PAGE_SIZE).map_err(|_| Error::Exhausted("exchange pages"))?;
        Ok(Self { region, held })
    }

    /// Its number within the memory of the domain that it is for.
    #[cfg(test)]
    fn frame(&self) -> u32 {
        self.held.frame
    }

    fn is_for(&self, domain: &Arc<Domain>) -> bool {
        Arc::ptr_eq(&self.held.domain, domain)
    }

    /// Unmaps the page and makes the guest its owner; answers its number.
    fn give(self) -> u32 {
        drop(self.region);
        self.held.give()
    }
}

impl Deref for ExchangePage {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

/// One page changes hands, in Xen's order: the entry is used up, the page leaves the caller's
/// address space, the peer owns it, and only then is the peer told.
pub(crate) fn transfer(op: &mut GrantTransfer<'_, Arc<Domain>>) -> TransferStatus {
    let Some(page) = take_for(op.peer, &mut op.page) else {
        return TransferStatus::BadPage;
    };
    if !op.peer.commit_transfer(DRIVER_DOMAIN, op.gref) {
        op.page = Some(page);
        return TransferStatus::BadGrant;
    }
    op.peer.complete_transfer(op.gref, page.give());
    TransferStatus::Okay
}

/// Takes a page out of its operation, if it is one for `domain`.
fn take_for(
    domain: &Arc<Domain>,
    page: &mut Option<Box<dyn FlipPage>>,
) -> Option<Box<ExchangePage>> {
    let page: Box<dyn Any> = page.take_if(|page| {
        let page: &dyn Any = &**page;
        page.downcast_ref().is_some_and(|page: &ExchangePage| page.is_for(domain))
    })?;
    page.downcast().ok()
}

#[cfg(test)]
mod tests;
