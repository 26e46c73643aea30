//! What a queue lends to an ingress queue: the guest's buffers, or a pool that the guest copies from.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hypervisor::{GuestCopies, Hypervisor};
use offload::Need;
use port::{LentBuffer, Offer, Wanted};
use shm::Region;

use super::lend::Lending;
use super::pool::PoolLending;
use super::slots::Slots;
use crate::request::Fault;

/// The number of the next queue that lends.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// What a queue lends.
pub(super) enum Loans {
    /// Buffers that the guest posted.
    Buffers(Lending),
    /// Pages of the driver domain.
    Pool(PoolLending),
}

impl Loans {
    /// Lends buffers in `region`, the guest's memory.
    pub(super) fn buffers(region: Region) -> Self {
        Self::Buffers(Lending::new(region, next_id()))
    }

    /// Lends the pages of a pool: see [`PoolLending::new`].
    pub(super) fn pool(copies: &Arc<dyn GuestCopies>, after: Option<u32>) -> Option<Self> {
        PoolLending::new(&**copies, next_id(), after).map(Self::Pool)
    }

    /// The number of this lender.
    pub(super) fn id(&self) -> u64 {
        match self {
            Self::Buffers(lending) => lending.id(),
            Self::Pool(pool) => pool.id(),
        }
    }

    /// The memory in which lent buffers lie.
    pub(super) fn region<H: Hypervisor>(&self, slots: &Slots<H>) -> Option<Region> {
        match self {
            Self::Buffers(_) => slots.hypervisor.dma_region(slots.to.peer()),
            Self::Pool(pool) => pool.region().share(),
        }
    }

    /// Whether something is lent.
    #[inline]
    pub(super) fn is_any<H: Hypervisor>(&self, slots: &Slots<H>) -> bool {
        match self {
            Self::Buffers(_) => slots.ring.lent() > 0,
            Self::Pool(pool) => pool.lent() > 0,
        }
    }

    /// Lends buffers.
    pub(super) fn lend<H: Hypervisor>(
        &mut self,
        slots: &mut Slots<H>,
        wanted: Wanted,
        lent: &mut Vec<LentBuffer>,
    ) -> Result<(), Fault> {
        match self {
            Self::Buffers(lending) => lending.lend(slots, wanted, lent),
            Self::Pool(pool) => pool.lend(slots, wanted, lent),
        }
    }

    /// Takes back buffers without a frame.
    pub(super) fn take_back<H: Hypervisor>(&mut self, slots: &mut Slots<H>, tokens: &[u32]) {
        match self {
            Self::Buffers(lending) => lending.take_back(slots, tokens),
            Self::Pool(pool) => pool.take_back(tokens),
        }
    }

    /// How many of the first offers are alike: all lie in lent buffers and can be handed over there, or none does.
    pub(super) fn run<H: Hypervisor>(
        &self,
        slots: &Slots<H>,
        offers: &[Offer<'_>],
    ) -> (usize, bool) {
        // A frame that needs software lies there for nothing: it is copied like any other.
        let is_lent = |offer: &Offer<'_>| {
            let lent = &offer.frame.lent;
            let is_mine = lent.lender == self.id() && lent.is_any();
            is_mine && offer.frame.need(slots.features) == Need::Nothing
        };
        let are_lent = offers.first().is_some_and(is_lent);
        let run = offers.iter().take_while(|offer| is_lent(offer) == are_lent).count();
        (run, are_lent)
    }

    /// Hands over the buffers in which a frame lies.
    pub(super) fn deliver<H: Hypervisor>(
        &mut self,
        slots: &mut Slots<H>,
        offer: &mut Offer<'_>,
        now: Duration,
    ) -> Result<(), Fault> {
        match self {
            Self::Buffers(lending) => lending.deliver(slots, offer),
            Self::Pool(pool) => pool.deliver(slots, offer, now)?,
        }
        Ok(())
    }
}

fn next_id() -> u64 {
    NEXT.fetch_add(1, Ordering::Relaxed)
}
