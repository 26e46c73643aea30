//! Slots: places for pages from the driver domain, and the pages that came.
//!
//! A slot is a grant entry that accepts a transfer. In its `frame` the guest says where it wants the
//! page: a pseudo-physical number from the [grouping allocator](super::grouping), which the
//! hypervisor ignores, as Xen does for a guest that keeps its own page tables. The transfer replaces
//! it by the page's machine number. The guest maps the page by that, and later gives it back.

use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hypervisor::flip::{FlipPage, TransferSlot};
use hypervisor::{DomId, Error, GrantRef, PAGE_SIZE};
use shm::{Region, Replaced, Space};

use super::state::{Free, Inner, Offer};
use crate::grant_table::{GRANT_ENTRY_LEN, gtf};
use crate::proto::FRAMES_MAX;

/// An entry whose page has come.
const TRANSFERRED: u16 = gtf::ACCEPT_TRANSFER | gtf::TRANSFER_COMMITTED | gtf::TRANSFER_COMPLETED;

/// A place for one page from the driver domain. Dropping it withdraws the offer; a page that came
/// and was not claimed goes back with the next surrender.
pub(super) struct Slot {
    guest: Arc<Inner>,
    offer: Offer,
    claimed: bool,
}

/// A page that came from the driver domain, mapped.
pub(crate) struct TransferredPage {
    /// Dropped first: the page is unmapped before it can be given back.
    region: Replaced,
    _occupied: Occupied,
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
        free.frames.put_back_place(self.pfn);
        free.arrivals.leaving.push(self.frame);
    }
}

/// Gives back all dropped pages, [`FRAMES_MAX`] per hypercall.
pub(super) fn surrender(guest: &Inner) -> Result<(), Error> {
    let mut free = guest.free();
    let mut dropped = mem::take(&mut free.arrivals.dropped);
    dropped.retain(|offer| !free.end_offer(guest, *offer));
    free.arrivals.dropped = dropped;
    let leaving = mem::take(&mut free.arrivals.leaving);
    drop(free);
    leaving.chunks(FRAMES_MAX).try_for_each(|frames| guest.calls.surrender(frames))
}

impl Slot {
    /// Offers `from` a place for one page.
    pub(super) fn accept(guest: &Arc<Inner>, from: DomId) -> Result<(Self, GrantRef), Error> {
        let mut free = guest.free();
        let pfn = free.frames.take_place().ok_or(Error::Exhausted("places for pages"))?;
        let Some(gref) = free.grants.pop().map(GrantRef) else {
            free.frames.put_back_place(pfn);
            return Err(Error::Exhausted("grant references"));
        };
        drop(free);
        guest.publish(gref, from, pfn, gtf::ACCEPT_TRANSFER)?;
        let offer = Offer { gref, pfn };
        Ok((Self { guest: guest.clone(), offer, claimed: false }, gref))
    }
}

impl TransferSlot for Slot {
    fn claim(&mut self) -> Result<Option<Box<dyn FlipPage>>, Error> {
        let Offer { gref, pfn } = self.offer;
        if self.claimed {
            return Err(Error::BadGrant { dom: self.guest.domid, gref, what: "transfer" });
        }
        let Some(frame) = self.guest.arrived(gref) else { return Ok(None) };
        self.claimed = true;
        self.guest.free().grants.push(gref.0);
        // From here on this guest must give the page back, mapped or not.
        let occupied = Occupied { guest: self.guest.clone(), pfn, frame };
        let start = u64::from(frame) * PAGE_SIZE as u64;
        let (space, place) = self.guest.place(pfn);
        let region = space
            .replace(place, &self.guest.file, start)
            .map_err(Error::os("map a transferred page"))?;
        Ok(Some(Box::new(TransferredPage { region, _occupied: occupied })))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.claimed {
            return;
        }
        let mut free = self.guest.free();
        if !free.end_offer(&self.guest, self.offer) {
            free.arrivals.dropped.push(self.offer);
        }
    }
}

impl Inner {
    /// The address space that holds page number `pfn`, and the page's index in it.
    fn place(&self, pfn: usize) -> (&Arc<Space>, usize) {
        match pfn.checked_sub(self.size.pages) {
            Some(reserved) => (&self.places, reserved),
            None => (&self.space, pfn),
        }
    }

    /// Takes the machine number of the page that came to an entry, and empties the entry.
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

    /// Withdraws an offer; fails once the hypervisor has committed to it.
    fn withdraw(&self, gref: GrantRef) -> bool {
        self.flags(gref).is_some_and(|flags| {
            let (accept, order) = (gtf::ACCEPT_TRANSFER, Ordering::AcqRel);
            flags.compare_exchange(accept, 0, order, Ordering::Relaxed).is_ok()
        })
    }
}

impl Free {
    /// Ends an offer that nobody will claim. Fails while a page is on its way to it: then the entry
    /// must not be touched.
    fn end_offer(&mut self, guest: &Inner, offer: Offer) -> bool {
        if !guest.withdraw(offer.gref) {
            let Some(frame) = guest.arrived(offer.gref) else { return false };
            self.arrivals.leaving.push(frame);
        }
        self.grants.push(offer.gref.0);
        self.frames.put_back_place(offer.pfn);
        true
    }
}

impl TransferredPage {
    /// Its number within this domain's memory.
    #[cfg(test)]
    pub(crate) fn frame(&self) -> u32 {
        self._occupied.frame
    }
}

impl Deref for TransferredPage {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}
