//! Receive buffers: pages that are granted once, or pages that the backend transfers.

use std::sync::Arc;

use hypervisor::flip::{FlipPage, PageReceiver, TransferSlot};
use hypervisor::{DomId, Error, GrantRef, Guest, PAGE_SIZE};
use shm::Region;

use crate::RING_LEN;

/// The buffers of an RX ring, one for each of its slots.
pub(crate) enum Buffers<G: Guest> {
    /// Pages that the backend copies into; slot `n` always has page `n`.
    Shared { pages: G::Pages, grefs: Box<[GrantRef]> },
    /// Transfer slots for pages that the backend gives to this guest.
    Flipped(Flipped),
}

/// Offered transfer slots, and the pages that have arrived in them.
pub(crate) struct Flipped {
    receiver: Arc<dyn PageReceiver>,
    backend: DomId,
    places: Box<[Option<Box<dyn TransferSlot>>]>,
    pages: Box<[Option<Box<dyn FlipPage>>]>,
}

impl<G: Guest> Buffers<G> {
    /// Grants `backend` a page for each slot.
    pub(crate) fn shared(guest: &G, backend: DomId) -> Result<Self, Error> {
        let (pages, grefs) = guest.share(backend, RING_LEN)?;
        Ok(Self::Shared { pages, grefs: grefs.into() })
    }

    /// Buffers that will offer transfer slots to `backend`.
    pub(crate) fn flipped(guest: &G, backend: DomId) -> Result<Self, Error> {
        let receiver = guest.page_receiver().ok_or(Error::Unsupported("page flipping"))?;
        Ok(Self::Flipped(Flipped {
            receiver,
            backend,
            places: (0..RING_LEN).map(|_| None).collect(),
            pages: (0..RING_LEN).map(|_| None).collect(),
        }))
    }

    /// The references of pages that are granted once.
    pub(crate) fn grefs(&self) -> &[GrantRef] {
        match self {
            Self::Shared { grefs, .. } => grefs,
            Self::Flipped(_) => &[],
        }
    }

    /// The pages that the backend copies into, for copies of this guest.
    pub(crate) fn pages(&self) -> Option<&G::Pages> {
        match self {
            Self::Shared { pages, .. } => Some(pages),
            Self::Flipped(_) => None,
        }
    }

    /// The reference to post for a slot. None if no transfer slot is left.
    #[inline]
    pub(crate) fn offer(&mut self, slot: usize) -> Option<GrantRef> {
        match self {
            Self::Shared { grefs, .. } => Some(grefs[slot]),
            Self::Flipped(flipped) => flipped.offer(slot),
        }
    }

    /// The backend has announced data in a slot. Returns whether there is a page.
    #[inline]
    pub(crate) fn arrived(&mut self, slot: usize) -> bool {
        match self {
            Self::Shared { .. } => true,
            Self::Flipped(flipped) => flipped.claim(slot),
        }
    }

    /// The page of a slot: a region, and the page's offset in it.
    #[inline]
    pub(crate) fn page(&self, slot: usize) -> Option<(&Region, usize)> {
        match self {
            Self::Shared { pages, .. } => Some((pages, slot * PAGE_SIZE)),
            Self::Flipped(flipped) => flipped.pages[slot].as_deref().map(|page| (&**page, 0)),
        }
    }

    /// Gives back the pages of all frames received so far.
    #[inline]
    pub(crate) fn give_back(&mut self) {
        if let Self::Flipped(flipped) = self {
            flipped.pages.fill_with(|| None);
            // This fails if the backend is gone, which the store reports.
            let _ = flipped.receiver.surrender();
        }
    }
}

impl Flipped {
    fn offer(&mut self, slot: usize) -> Option<GrantRef> {
        // A slot that was answered without a page is withdrawn first.
        self.places[slot] = None;
        let (place, gref) = self.receiver.accept_transfer(self.backend).ok()?;
        self.places[slot] = Some(place);
        Some(gref)
    }

    /// Checks that a page has really arrived.
    fn claim(&mut self, slot: usize) -> bool {
        let Some(mut place) = self.places[slot].take() else { return false };
        match place.claim() {
            Ok(Some(page)) => {
                self.pages[slot] = Some(page);
                true
            }
            Ok(None) | Err(_) => false,
        }
    }
}
