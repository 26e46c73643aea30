//! Receive buffers: pages that are granted once, or pages that the backend transfers.

#![expect(clippy::cast_possible_truncation, reason = "a ring has 256 slots")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hypervisor::flip::{FlipPage, PageReceiver, TransferSlot};
use hypervisor::{DomId, Error, GrantRef, Guest, PAGE_SIZE};
use shm::Region;

use crate::RING_LEN;

/// The buffers of an RX ring, one for each of its slots.
pub(crate) enum Buffers<G: Guest> {
    /// Pages that the backend copies into; slot `n` always has page `n`.
    Shared { pages: G::Pages, grefs: Box<[GrantRef]> },
    /// Some pages of a pool that the backend copies into. There are as many as divide the slots, and
    /// no more buffers are posted: slot `n` has page `n` modulo their number.
    Pooled(PoolPart<G>),
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
            Self::Shared { grefs, .. } | Self::Pooled(PoolPart { grefs, .. }) => grefs,
            Self::Flipped(_) => &[],
        }
    }

    /// The pages that the backend copies into, by slot, for copies of this guest.
    pub(crate) fn pages(&self) -> Option<&G::Pages> {
        match self {
            Self::Shared { pages, .. } => Some(pages),
            Self::Pooled(_) | Self::Flipped(_) => None,
        }
    }

    /// How many buffers there can be at a time.
    #[inline]
    pub(crate) fn count(&self) -> u32 {
        match self {
            Self::Shared { .. } | Self::Flipped(_) => RING_LEN as u32,
            // At most a ring's.
            Self::Pooled(part) => part.grefs.len() as u32,
        }
    }
    /// The reference to post for a slot. None if no transfer slot is left.
    #[inline]
    pub(crate) fn offer(&mut self, slot: usize) -> Option<GrantRef> {
        match self {
            Self::Shared { grefs, .. } => Some(grefs[slot]),
            Self::Pooled(PoolPart { grefs, .. }) => Some(grefs[slot % grefs.len()]),
            Self::Flipped(flipped) => flipped.offer(slot),
        }
    }

    /// The backend has announced data in a slot. Returns whether there is a page.
    #[inline]
    pub(crate) fn arrived(&mut self, slot: usize) -> bool {
        match self {
            Self::Shared { .. } | Self::Pooled(_) => true,
            Self::Flipped(flipped) => flipped.claim(slot),
        }
    }

    /// The page of a slot: a region, and the page's offset in it.
    #[inline]
    pub(crate) fn page(&self, slot: usize) -> Option<(&Region, usize)> {
        match self {
            Self::Shared { pages, .. } => Some((pages, slot * PAGE_SIZE)),
            Self::Pooled(PoolPart { pages, grefs, first }) => {
                Some((pages, (first + slot % grefs.len()) * PAGE_SIZE))
            }
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

// One set of receive buffers for all interfaces of a guest.
//
// Menon, Cox and Zwaenepoel (2006, §4.2) copy received packets into pages that guest and driver domain
// share from the set-up on, and all virtual interfaces of a guest share one set of them, so that the
// copies' working set does not grow with the interfaces. Here each queue of each interface has an equal
// part of the set. With persistent grants no packet then needs a grant operation.

/// The fewest buffers of a queue: one frame of the longest, and what comes meanwhile.
const BUFFERS_MIN: usize = 32;

/// Pages for the receive buffers of several queues, all granted to one backend.
pub struct CopyPool<G: Guest> {
    backend: DomId,
    pages: Arc<G::Pages>,
    grefs: Arc<[GrantRef]>,
    /// Pages of one queue: a power of two.
    each: usize,
    taken: AtomicUsize,
}

/// The part of a pool that one queue has.
pub(crate) struct PoolPart<G: Guest> {
    pub(crate) pages: Arc<G::Pages>,
    pub(crate) grefs: Box<[GrantRef]>,
    /// The first page.
    pub(crate) first: usize,
}

impl<G: Guest> CopyPool<G> {
    /// Grants `backend` at most `pages` pages for `queues` queues: each gets an equal part, 32 at least and
    /// 256 at most.
    pub fn new(guest: &G, backend: DomId, pages: usize, queues: usize) -> Result<Self, Error> {
        let queues = queues.max(1);
        let part = (pages / queues).clamp(BUFFERS_MIN, RING_LEN);
        // The buffers of a ring's slots then repeat evenly.
        let each = 1 << part.ilog2();
        let (pages, grefs) = guest.share(backend, each * queues)?;
        let (pages, taken) = (Arc::new(pages), AtomicUsize::new(0));
        Ok(Self { backend, pages, grefs: grefs.into(), each, taken })
    }

    /// The next queue's part; none if all are taken, or for another backend.
    pub(crate) fn take(&self, backend: DomId) -> Option<PoolPart<G>> {
        let first = self.taken.fetch_add(1, Ordering::Relaxed).checked_mul(self.each)?;
        let grefs = self.grefs.get(first..first.checked_add(self.each)?)?;
        let part = || PoolPart { pages: self.pages.clone(), grefs: grefs.into(), first };
        (backend == self.backend).then(part)
    }
}
