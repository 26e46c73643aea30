//! One set of receive buffers for all interfaces of a guest.
//!
//! Menon, Cox and Zwaenepoel (2006, §4.2) copy received packets into pages that guest and driver domain
//! share from the set-up on, and all virtual interfaces of a guest share one set of them, so that the
//! copies' working set does not grow with the interfaces. Here each queue of each interface has an equal
//! part of the set. With persistent grants no packet then needs a grant operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hypervisor::{DomId, Error, GrantRef, Guest};

use crate::RING_LEN;

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
