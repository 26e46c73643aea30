//! Persistent grants: pages that stay mapped between packets, so that no grant operation is
//! needed to reach them.
//!
//! Santos et al. (2008, §4.4) propose to keep granted pages mapped in the driver domain, but did
//! not implement it. Xen's netif has it since (`netif-staging-grants`): the frontend asks over the
//! [control ring](crate::ControlRing) to map some of its pages, and only it can ask to unmap them.
//! All other pages are reached by grant copies.
//!
//! ```text
//!   control ring ── ADD, DEL ──►  table of a queue:  gref ─► place in an aperture
//!      (writes, rarely)               ▲          ▲
//!                      TX: pieces of packets    RX: buffers      (read, once per batch)
//! ```
//!
//! **Locking.** Nobody waits for the table's lock. A batch that uses mapped pages holds it for
//! reading. While pages are mapped or unmapped, a batch uses grant copies, which are always
//! possible. Who wants to map or unmap pages during a batch tries again later; until then, new
//! batches use grant copies too, or a busy guest's pages could never change. So no copy loses its
//! mapping while it runs, and no worker waits for another.
//!
//! **Pages in use.** A page is not unmapped while a packet in hand has unread bytes in it. Each
//! place has a count of such pieces. Only the TX queue of the table changes it, so plain loads and
//! stores suffice, without a locked instruction per packet. The count protects the frontend, which
//! must not get a page back too early; the backend's safety does not depend on it. Buffers on the
//! RX ring are taken and answered within one batch, under the lock.

mod index;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use frame::{Piece, Place, Window};
use hypervisor::{
    Counted, Dest, GrantMap, GrantRef, Granted, Hypervisor, MapStatus, MappedGrants, MappedPages,
    PAGE_SIZE,
};
use shm::Region;
use wire::netif::GrefMapping;
use wire::netif::ctrl::status;

use index::{Found, Index};

/// The pages of one queue that stay mapped: at most as many as were offered.
pub struct PersistentGrants<H: Hypervisor> {
    hypervisor: H,
    table: RwLock<Table<H>>,
    /// Whether a change waits for the batches that hold the lock. No other batch then takes it.
    wanted: AtomicBool,
    /// For each place, how many pieces of packets in hand lie there.
    users: Box<[AtomicU16]>,
}

struct Table<H: Hypervisor> {
    aperture: H::Aperture,
    /// What is mapped at each place.
    grefs: Box<[Option<GrantRef>]>,
    /// The places of mapped pages, by reference.
    index: Index,
    free: Vec<u16>,
}

/// The right to map and unmap pages. While this lives, batches use grant copies.
pub(crate) struct Change<'a, H: Hypervisor> {
    grants: &'a PersistentGrants<H>,
    table: RwLockWriteGuard<'a, Table<H>>,
}

/// The mapped pages, which stay mapped while this lives.
pub(crate) struct Pages<'a, H: Hypervisor>(RwLockReadGuard<'a, Table<H>>);

impl<H: Hypervisor> PersistentGrants<H> {
    /// Reserves address space for `bound` pages of `peer`.
    pub(crate) fn new(
        hypervisor: &H,
        peer: &H::Peer,
        bound: u16,
    ) -> Result<Self, hypervisor::Error> {
        let table = Table {
            aperture: hypervisor.aperture(peer, bound.into())?,
            grefs: vec![None; bound.into()].into(),
            index: Index::new(bound),
            free: (0..bound).rev().collect(),
        };
        let users = (0..bound).map(|_| AtomicU16::new(0)).collect();
        let (table, wanted) = (RwLock::new(table), AtomicBool::new(false));
        Ok(Self { hypervisor: hypervisor.clone(), table, wanted, users })
    }

    /// How many pages can be mapped.
    pub fn bound(&self) -> usize {
        self.users.len()
    }

    /// How many pages are mapped.
    pub fn mapped(&self) -> usize {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        self.bound() - table.free.len()
    }

    /// The pages, for one batch; none while they change, or are about to.
    #[inline]
    pub(crate) fn pages(&self) -> Option<Pages<'_, H>> {
        // Relaxed, because the lock protects the table. This only keeps batches off it.
        if self.wanted.load(Ordering::Relaxed) {
            return None;
        }
        match self.table.try_read() {
            Ok(table) => Some(Pages(table)),
            Err(TryLockError::Poisoned(error)) => Some(Pages(error.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Locks the table for a change. None while batches use the pages: then the caller must try
    /// again, and succeeds once these batches have ended.
    pub(crate) fn change(&self) -> Option<Change<'_, H>> {
        let table = match self.table.try_write() {
            Ok(table) => Some(table),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        self.wanted.store(table.is_none(), Ordering::Relaxed);
        table.map(|table| Change { grants: self, table })
    }

    fn is_in_use(&self, place: u16) -> bool {
        // Relaxed, because counts are changed under the lock too.
        self.users[usize::from(place)].load(Ordering::Relaxed) > 0
    }

    /// Changes a place's count. Only the TX queue calls this.
    #[inline]
    fn count(&self, place: u16, change: impl FnOnce(u16) -> u16) {
        let users = &self.users[usize::from(place)];
        users.store(change(users.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

impl<H: Hypervisor> Change<'_, H> {
    /// Maps pages, all or none. The error is the status for the frontend.
    pub(crate) fn add(&mut self, entries: &[GrefMapping]) -> Result<(), u32> {
        let table = &mut *self.table;
        let left = table.free.len().checked_sub(entries.len()).ok_or(status::BUFFER_OVERFLOW)?;
        let mut ops = Vec::<GrantMap>::with_capacity(entries.len());
        // The last of the free places first, so that adjacent entries get adjacent places.
        for (entry, place) in entries.iter().zip(table.free[left..].iter().rev()) {
            let (gref, place) = (GrantRef(entry.gref), u32::from(*place));
            let known = table.index.find(gref).is_some() || ops.iter().any(|op| op.gref == gref);
            ops.push(match entry.flags {
                _ if known => return Err(status::INVALID_PARAMETER),
                0 => GrantMap::writable(place, gref),
                GrefMapping::READ_ONLY => GrantMap::new(place, gref),
                _ => return Err(status::INVALID_PARAMETER),
            });
        }
        self.grants.hypervisor.map_at(&mut table.aperture, &mut ops);
        let (mapped, refused): (Vec<_>, Vec<_>) =
            ops.iter().partition(|op| op.status == MapStatus::Okay);
        if refused.is_empty() {
            table.free.truncate(left);
            mapped.into_iter().for_each(|op| table.insert(op));
            return Ok(());
        }
        for op in mapped {
            self.grants.hypervisor.unmap(&mut table.aperture, op.place..op.place + 1);
        }
        Err(status::INVALID_PARAMETER)
    }

    /// Unmaps those pages that are mapped and not in use, and writes the status of each. Returns
    /// how many were unmapped.
    pub(crate) fn remove(&mut self, entries: &mut [GrefMapping]) -> u32 {
        let Self { grants, table } = self;
        let mut removed = 0;
        for entry in entries {
            let gref = GrantRef(entry.gref);
            let idle = table.index.find(gref).filter(|found| !grants.is_in_use(found.place));
            let status = if idle.is_some() {
                table.remove(&grants.hypervisor, gref);
                removed += 1;
                status::SUCCESS
            } else {
                status::INVALID_PARAMETER
            };
            // Both are small.
            entry.status = u16::try_from(status).unwrap_or(u16::MAX);
        }
        removed
    }

    /// Unmaps pages that [`add`](Self::add) has mapped, even if they are in use: a packet that
    /// was taken meanwhile is then reached by grant copies.
    pub(crate) fn take_back(&mut self, entries: &[GrefMapping]) {
        for entry in entries {
            self.table.remove(&self.grants.hypervisor, GrantRef(entry.gref));
        }
    }
}

impl<H: Hypervisor> Table<H> {
    /// Notes a page that was mapped.
    fn insert(&mut self, op: &GrantMap) {
        // Free places have 16 bits.
        let place = u16::try_from(op.place).unwrap_or(u16::MAX);
        self.grefs[usize::from(place)] = Some(op.gref);
        self.index.insert(op.gref, Found { place, writable: op.writable });
    }

    /// Unmaps a page, if it is mapped.
    fn remove(&mut self, hypervisor: &H, gref: GrantRef) {
        let Some(Found { place, .. }) = self.index.remove(gref) else { return };
        // Removed from both before it is unmapped, so that every page found is mapped.
        self.grefs[usize::from(place)] = None;
        let at = u32::from(place);
        hypervisor.unmap(&mut self.aperture, at..at + 1);
        self.free.push(place);
    }
}

impl<H: Hypervisor> Pages<'_, H> {
    /// The pages that are mapped.
    #[inline]
    pub(crate) fn mapped(&self) -> MappedPages<'_> {
        MappedPages { region: &self.0.aperture, grefs: &self.0.grefs }
    }
}

/// The pages that packets in hand refer to, of a TX queue with persistent grants.
pub(crate) struct PiecesInUse<H: Hypervisor> {
    grants: Arc<PersistentGrants<H>>,
    /// How many pieces of packets lie in pages that are mapped.
    pieces: usize,
}

impl<H: Hypervisor> PiecesInUse<H> {
    pub(crate) fn new(grants: Arc<PersistentGrants<H>>) -> Self {
        Self { grants, pieces: 0 }
    }

    /// The pages, for one batch; none while they change, or if no packet in hand uses one.
    #[inline]
    pub(crate) fn pages(&self) -> Option<Pages<'_, H>> {
        if self.pieces > 0 { self.grants.pages() } else { None }
    }

    /// Finds the pages of the packets in `fresh` and marks them as in use.
    #[inline]
    pub(crate) fn take(&mut self, window: &mut Window, fresh: u64) {
        // Frames that are all header have no pieces, so they need no lock.
        let mut pages = None;
        let (mut hits, mut misses) = (0, 0);
        for (_, frame) in window.in_slots(fresh) {
            for piece in &mut frame.pieces {
                let Place::Grant(Granted { gref, mapped, .. }) = &mut piece.place else { continue };
                let pages = pages.get_or_insert_with(|| self.grants.pages());
                match pages.as_ref().and_then(|pages| pages.0.index.find(*gref)) {
                    Some(Found { place, .. }) => {
                        hits += 1;
                        *mapped = Some(place);
                        self.grants.count(place, |users| users.saturating_add(1));
                    }
                    None => misses += 1,
                }
            }
        }
        self.pieces += hits;
        note(&self.grants.hypervisor, hits as u64, misses);
    }

    /// Marks pieces as not in use: they were copied, or their packet is about to be answered.
    #[inline]
    pub(crate) fn release(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        for piece in pieces {
            if let Place::Grant(Granted { mapped: Some(place), .. }) = piece.place {
                self.grants.count(place, |users| users.saturating_sub(1));
                self.pieces -= 1;
            }
        }
    }
}

fn note<H: Hypervisor>(hypervisor: &H, hits: u64, misses: u64) {
    hypervisor.note(Counted::GrantHits, hits);
    hypervisor.note(Counted::GrantMisses, misses);
}

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

    /// The pages that are mapped, for a batch of [`buffers`](Self::buffers).
    #[inline]
    pub(crate) fn pages(&self) -> Option<Pages<'_, H>> {
        self.grants.as_ref().and_then(|grants| grants.pages())
    }

    /// The buffers, for one batch.
    #[inline]
    pub(crate) fn buffers<'a>(&'a self, pages: Option<&'a Pages<'_, H>>) -> Buffers<'a, H> {
        let mapped = pages.map(|pages| {
            (&pages.0.index, MappedGrants { peer: &self.peer, pages: pages.mapped() })
        });
        Buffers { to: self, mapped, pool: None, hits: Cell::new(0), misses: Cell::new(0) }
    }
}

/// Where the buffers of an RX queue lie, for one batch.
pub(crate) struct Buffers<'a, H: Hypervisor> {
    to: &'a Destination<H>,
    /// The index of mapped pages, and the pages.
    mapped: Option<(&'a Index, MappedGrants<'a, H::Peer>)>,
    /// Pages of the driver domain that the guest copies from, instead of its buffers.
    pool: Option<&'a Region>,
    hits: Cell<u64>,
    misses: Cell<u64>,
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
        Self { pool: Some(pool), ..self }
    }

    /// Whether they are pages of a pool.
    #[inline]
    pub(crate) fn is_pool(&self) -> bool {
        self.pool.is_some()
    }

    /// The buffer that a request in slot `slot` grants. A page that is mapped read-only is reached by
    /// its grant, which then refuses the write.
    #[inline]
    pub(crate) fn find(&self, gref: GrantRef, slot: u16) -> Buffer<'_, H::Peer> {
        if let Some(pool) = self.pool {
            return Buffer::Pooled { pool, start: usize::from(slot) * PAGE_SIZE };
        }
        if let Some((index, pages)) = &self.mapped
            && let Some(Found { place, writable: true }) = index.find(gref)
        {
            self.hits.set(self.hits.get() + 1);
            return Buffer::Mapped { pages, place };
        }
        self.misses.set(self.misses.get() + 1);
        Buffer::Granted { peer: &self.to.peer, gref }
    }

    /// Counts hits and misses, if the frontend may have persistent grants.
    #[inline]
    pub(crate) fn note(&self, hypervisor: &H) {
        if self.to.grants.is_some() {
            note(hypervisor, self.hits.get(), self.misses.get());
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
