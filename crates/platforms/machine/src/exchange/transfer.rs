//! Transfers of pages of an exchange area.

use std::any::Any;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hypervisor::flip::{FlipPage, GrantTransfer, TransferStatus};
use hypervisor::{DomId, Error, GrantRef, PAGE_SIZE};
use shm::Region;

use crate::domain::{DRIVER_DOMAIN, Domain};
use crate::exchange::ExchangeCount;
use crate::grant_table::gtf;

impl Domain {
    /// Where the pages of its exchange area are. None is held after a clean detach.
    #[must_use]
    pub fn exchange_count(&self) -> ExchangeCount {
        self.exchange().count()
    }

    /// The domain gives pages back.
    pub(crate) fn surrender(&self, frames: &[u32]) -> Result<(), Error> {
        self.exchange().surrender(self.id(), frames)
    }

    /// Uses up an entry that accepts a page from `caller`. One compare-and-exchange of the whole
    /// word: the guest may change it at any moment, and two workers may race for it.
    fn commit_transfer(&self, caller: DomId, gref: GrantRef) -> bool {
        let offered = head(gtf::ACCEPT_TRANSFER, caller);
        let committed = head(gtf::ACCEPT_TRANSFER | gtf::TRANSFER_COMMITTED, caller);
        self.entry_at(gref).and_then(|at| self.memory().atomic_u32(at).ok()).is_some_and(|word| {
            word.compare_exchange(offered, committed, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
    }

    /// Tells the guest which page it got. A guest that changes the entry between commitment and
    /// completion only loses the page.
    fn complete_transfer(&self, gref: GrantRef, frame: u32) {
        let Some(at) = self.entry_at(gref) else { return };
        let written = self.memory().write(at + 4, frame);
        if let (Ok(()), Ok(flags)) = (written, self.memory().atomic_u16(at)) {
            // Release: a guest that sees the bit sees the frame.
            flags.fetch_or(gtf::TRANSFER_COMPLETED, Ordering::Release);
        }
    }
}

/// The first half of a v1 grant entry, as it lies in memory.
fn head(flags: u16, domid: DomId) -> u32 {
    let ([f0, f1], [d0, d1]) = (flags.to_ne_bytes(), domid.0.to_ne_bytes());
    u32::from_ne_bytes([f0, f1, d0, d1])
}

/// A page that belongs to the driver domain, mapped. Dropping it unmaps it.
pub(crate) struct ExchangePage {
    /// Dropped first: a page is unmapped before it can be taken again.
    region: Region,
    held: Held,
}

/// Holds a page of an area, mapped or not.
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

    /// Unmaps the page and makes the guest its owner; returns its number.
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

/// Transfers one page, in Xen's order: the entry is used up, the page leaves the caller's address
/// space, the peer becomes its owner, and only then the entry names it.
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

/// Takes a page out of its operation, if it is for `domain`.
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
