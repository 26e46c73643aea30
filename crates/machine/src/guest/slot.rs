//! Slots: places of a guest for pages from the driver domain, and the pages that came.
//!
//! A slot is a grant entry that accepts a transfer. Its `frame` says where the guest wants the
//! page, a pseudo-physical number above its ordinary pages; the transfer replaces it by the
//! page's real number, which is what is mapped and given back. The hypervisor does not look at
//! the first, as Xen does not for a guest that keeps its own page tables.

use std::fmt;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hypervisor::{DomId, Error, GrantRef, PAGE_SIZE};
use shm::Region;

use super::{Free, Inner};
use crate::domain::{GRANT_ENTRY_LEN, MemorySize, gtf};
use crate::proto::FRAMES_MAX;

/// An entry whose page has come.
const TRANSFERRED: u16 = gtf::ACCEPT_TRANSFER | gtf::TRANSFER_COMMITTED | gtf::TRANSFER_COMPLETED;

/// What a guest knows of its side of the exchange area.
pub(super) struct Places {
    /// Pseudo-physical numbers where no page is, nor is awaited.
    empty: Vec<usize>,
    /// Pages, by real number, that are unmapped and go back with the next surrender.
    leaving: Vec<u32>,
    /// Offers that were dropped while a page was on its way.
    unsettled: Vec<Offer>,
}

impl Places {
    pub(super) fn new(size: MemorySize) -> Self {
        let empty = (size.pages..size.pages + size.exchange_pages).rev().collect();
        Self { empty, leaving: Vec::new(), unsettled: Vec::new() }
    }
}

/// A published offer.
#[derive(Clone, Copy, Debug)]
struct Offer {
    gref: GrantRef,
    pfn: usize,
}

/// A place for one page from the driver domain. Dropping it takes the offer back; a page that
/// came and was not claimed goes back with the next surrender.
pub struct TransferSlot {
    guest: Arc<Inner>,
    offer: Offer,
    claimed: bool,
}

/// A page that came from the driver domain, mapped.
pub struct TransferredPage {
    /// Dropped first: the page is unmapped before it can be given back.
    region: Region,
    occupied: Occupied,
}

/// A place that holds a page, mapped or not.
struct Occupied {
    guest: Arc<Inner>,
    pfn: usize,
    frame: u32,
}

impl Drop for Occupied {
    fn drop(&mut self) {
        let mut free = self.guest.free();
        free.places.empty.push(self.pfn);
        free.places.leaving.push(self.frame);
    }
}

/// Offers `from` a place for one page.
pub(super) fn accept(guest: &Arc<Inner>, from: DomId) -> Result<(TransferSlot, GrantRef), Error> {
    let mut free = guest.free();
    let pfn = free.places.empty.pop().ok_or(Error::Exhausted("places for pages"))?;
    let Some(gref) = free.grants.pop().map(GrantRef) else {
        free.places.empty.push(pfn);
        return Err(Error::Exhausted("grant references"));
    };
    drop(free);
    guest.publish(gref, from, pfn, gtf::ACCEPT_TRANSFER)?;
    let offer = Offer { gref, pfn };
    Ok((TransferSlot { guest: guest.clone(), offer, claimed: false }, gref))
}

/// Gives back `pages` and whatever else is leaving, [`FRAMES_MAX`] a hypercall.
pub(super) fn surrender(
    guest: &Inner,
    pages: impl IntoIterator<Item = TransferredPage>,
) -> Result<(), Error> {
    // A page that is dropped is unmapped and then leaving.
    pages.into_iter().for_each(drop);
    let mut free = guest.free();
    let mut unsettled = mem::take(&mut free.places.unsettled);
    unsettled.retain(|offer| !free.settle(guest, *offer));
    free.places.unsettled = unsettled;
    let leaving = mem::take(&mut free.places.leaving);
    drop(free);
    leaving.chunks(FRAMES_MAX).try_for_each(|frames| guest.calls.surrender(frames))
}

impl TransferSlot {
    pub(super) fn claim(&mut self) -> Result<Option<TransferredPage>, Error> {
        let Offer { gref, pfn } = self.offer;
        if self.claimed {
            return Err(Error::BadGrant { dom: self.guest.domid, gref, what: "transfer" });
        }
        let Some(frame) = self.guest.arrived(gref) else { return Ok(None) };
        self.claimed = true;
        self.guest.free().grants.push(gref.0);
        // From here on the page is ours to give back, mapped or not.
        let occupied = Occupied { guest: self.guest.clone(), pfn, frame };
        let start = u64::from(frame) * PAGE_SIZE as u64;
        let region = Region::map(&self.guest.memory, start, PAGE_SIZE)
            .map_err(Error::os("map a transferred page"))?;
        Ok(Some(TransferredPage { region, occupied }))
    }
}

impl Drop for TransferSlot {
    fn drop(&mut self) {
        if self.claimed {
            return;
        }
        let mut free = self.guest.free();
        if !free.settle(&self.guest, self.offer) {
            free.places.unsettled.push(self.offer);
        }
    }
}

impl Inner {
    /// The real number of the page that came to an entry, which is empty from then on.
    fn arrived(&self, gref: GrantRef) -> Option<u32> {
        let flags = self.flags(gref)?;
        // Acquire: the hypervisor writes the frame before it completes.
        if flags.load(Ordering::Acquire) != TRANSFERRED {
            return None;
        }
        let frame = self.table.read(gref.0 as usize * GRANT_ENTRY_LEN + 4).ok()?;
        flags.store(0, Ordering::Release);
        Some(frame)
    }

    /// Takes an offer back; not once the hypervisor has committed to it.
    fn withdraw(&self, gref: GrantRef) -> bool {
        self.flags(gref).is_some_and(|flags| {
            let (accept, order) = (gtf::ACCEPT_TRANSFER, Ordering::AcqRel);
            flags.compare_exchange(accept, 0, order, Ordering::Relaxed).is_ok()
        })
    }
}

impl Free {
    /// Ends an offer that nobody will claim; not while a page is on its way to it, when the
    /// entry must not be touched.
    fn settle(&mut self, guest: &Inner, offer: Offer) -> bool {
        if !guest.withdraw(offer.gref) {
            let Some(frame) = guest.arrived(offer.gref) else { return false };
            self.places.leaving.push(frame);
        }
        self.grants.push(offer.gref.0);
        self.places.empty.push(offer.pfn);
        true
    }
}

impl TransferredPage {
    /// Its number within this domain's memory.
    #[must_use]
    pub fn frame(&self) -> u32 {
        self.occupied.frame
    }
}

impl Deref for TransferredPage {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl fmt::Debug for TransferSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferSlot").field("offer", &self.offer).finish()
    }
}

impl fmt::Debug for TransferredPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransferredPage").field("frame", &self.frame()).finish()
    }
}
