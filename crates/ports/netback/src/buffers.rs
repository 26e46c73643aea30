//! The buffers of an RX queue, and where the backend writes to them.

use std::cell::Cell;
use std::sync::Arc;

use hypervisor::{Dest, GrantRef, Hypervisor, MappedGrants, PAGE_SIZE};
use shm::Region;

use crate::grant_cache::GrantCache;
use crate::index::{Found, Index};
use crate::persistent::{Pages, note};
use crate::{GrantUse, PersistentGrants};

/// The frontend whose buffers an RX queue fills.
pub(crate) struct Destination<H: Hypervisor> {
    peer: H::Peer,
    /// Its pages that stay mapped, if it may have some.
    grants: Option<Arc<PersistentGrants<H>>>,
}

impl<H: Hypervisor> Destination<H> {
    pub(crate) fn new(peer: H::Peer, grants: Option<Arc<PersistentGrants<H>>>) -> Self {
        Self { peer, grants }
    }

    pub(crate) fn peer(&self) -> &H::Peer {
        &self.peer
    }

    /// How pages that stay mapped as agreed are used, if some may.
    pub(crate) fn usage(&self) -> Option<&Arc<GrantUse>> {
        self.grants.as_ref().map(|grants| grants.usage())
    }

    /// The pages that are mapped, for a batch of [`buffers`](Self::buffers).
    #[inline]
    pub(crate) fn pages(&self) -> Option<Pages<'_, H>> {
        self.grants.as_ref().and_then(|grants| grants.pages())
    }

    /// The buffers, for one batch: in pages that the frontend wants mapped, or in a cache.
    #[inline]
    pub(crate) fn buffers<'a>(
        &'a self,
        pages: Option<&'a Pages<'_, H>>,
        cache: Option<&'a GrantCache<H>>,
    ) -> Buffers<'a, H> {
        let access = match (pages, cache) {
            (Some(pages), _) => {
                let mapped = MappedGrants { peer: &self.peer, pages: pages.mapped() };
                Access::Mapped(pages.index(), mapped)
            }
            (None, Some(cache)) => {
                let (index, mapped) = cache.grants();
                Access::Mapped(index, mapped)
            }
            (None, None) => Access::Granted,
        };
        Buffers { to: self, access, hits: Cell::new(0), misses: Cell::new(0) }
    }
}

/// Where the buffers of an RX queue lie, for one batch.
pub(crate) struct Buffers<'a, H: Hypervisor> {
    to: &'a Destination<H>,
    access: Access<'a, H::Peer>,
    hits: Cell<u64>,
    misses: Cell<u64>,
}

/// How the backend reaches the buffers.
enum Access<'a, P> {
    Granted,
    /// Where they are mapped, if they are: the index of mapped pages, and the pages.
    Mapped(&'a Index, MappedGrants<'a, P>),
    /// Not at all. It writes to pages of the driver domain, which the guest copies from.
    Pool(&'a Region),
}

/// A buffer: a page that the backend writes to.
#[derive(Debug)]
pub(crate) enum Buffer<'a, P> {
    Granted { peer: &'a P, gref: GrantRef },
    Mapped { pages: &'a MappedGrants<'a, P>, place: u16 },
    Pooled { pool: &'a Region, start: usize },
}

impl<'b, H: Hypervisor> Buffers<'b, H> {
    /// Pages of `pool` in place of the buffers: one for each slot of the ring.
    pub(crate) fn in_pool(self, pool: &'b Region) -> Self {
        Self { access: Access::Pool(pool), ..self }
    }

    /// Whether they are pages of a pool.
    #[inline]
    pub(crate) fn is_pool(&self) -> bool {
        matches!(self.access, Access::Pool(_))
    }

    /// The buffer that a request in slot `slot` grants. A page that is mapped read-only is reached by
    /// its grant, which then refuses the write.
    #[inline]
    pub(crate) fn find(&self, gref: GrantRef, slot: u16) -> Buffer<'_, H::Peer> {
        match &self.access {
            Access::Mapped(index, pages) => {
                if let Some(Found { place, writable: true }) = index.find(gref) {
                    self.hits.set(self.hits.get() + 1);
                    return Buffer::Mapped { pages, place };
                }
            }
            Access::Granted => {}
            Access::Pool(pool) => {
                return Buffer::Pooled { pool, start: usize::from(slot) * PAGE_SIZE };
            }
        }
        self.misses.set(self.misses.get() + 1);
        Buffer::Granted { peer: &self.to.peer, gref }
    }

    /// Counts hits and misses, if the frontend may have persistent grants.
    #[inline]
    pub(crate) fn note(&self, hypervisor: &H) {
        if let Some(grants) = &self.to.grants {
            let (hits, misses) = (self.hits.get(), self.misses.get());
            note(hypervisor, hits, misses);
            grants.usage().rx.add(hits, misses, 0);
        }
    }
}

impl<'a, P> Buffer<'a, P> {
    /// Its bytes from `offset` on.
    #[inline]
    pub(crate) fn from(&self, offset: u16) -> Dest<'a, P> {
        match *self {
            Self::Granted { peer, gref } => Dest::Grant { peer, gref, offset },
            Self::Mapped { pages, place } => Dest::MappedGrant { pages, place, offset },
            Self::Pooled { pool, start } => {
                Dest::Mapped { region: pool, offset: start + usize::from(offset) }
            }
        }
    }
}
