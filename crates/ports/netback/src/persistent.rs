//! Persistent grants: pages that stay mapped between packets, so that no grant operation is
//! needed to reach them.
//!
//! Santos et al. (2008, §4.4) propose to keep granted pages mapped in the driver domain and leave
//! it undone. Xen's netif has it since (`netif-staging-grants`): the frontend says over the
//! [control ring](crate::ControlRing) which of its pages are to be mapped, and only it can say
//! when they are to be let go. A page that is not among them is reached by a grant copy, as ever.
//!
//! ```text
//!   control ring ── ADD, DEL ──►  table of a queue:  gref ─► place in an aperture
//!      (writes, rarely)               ▲          ▲
//!                      TX: pieces of packets    RX: buffers      (read, once a batch)
//! ```
//!
//! **Who may look when.** Whoever uses mapped pages holds the table's lock for reading as long as
//! the batch takes, and gets it at once or not at all: while pages are mapped or unmapped a batch
//! goes by grant copies, which is always right. So no copy that is under way ever loses the
//! mapping it uses, and no worker waits for a guest.
//!
//! **What is in use.** A page is not unmapped while a packet in hand has bytes in it that are still
//! to be read. Each place has a count of the pieces that do. Only the TX queue of the table changes it, so that plain loads
//! and stores do: no locked instruction for a packet. It is a courtesy to the frontend, which must
//! not believe that it can have a page back too early; no mapping is relied upon for it. Buffers
//! on the RX ring are taken and answered within one batch, under the lock.

mod index;

use std::cell::Cell;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use frame::{Piece, Place, Window};
use hypervisor::{
    Counted, Dest, GrantMap, GrantRef, Granted, Hypervisor, MapStatus, MappedGrants, MappedPages,
};
use wire::netif::GrefMapping;
use wire::netif::ctrl::status;

use index::{Found, Index};

/// The pages of one queue that are kept mapped: as many as were offered, at most.
pub struct PersistentGrants<H: Hypervisor> {
    hypervisor: H,
    table: RwLock<Table<H>>,
    /// For each place, how many pieces of packets in hand lie there.
    users: Box<[AtomicU16]>,
}

struct Table<H: Hypervisor> {
    aperture: H::Aperture,
    /// What is mapped at each place.
    grefs: Box<[Option<GrantRef>]>,
    /// The same, to be found by its reference.
    index: Index,
    free: Vec<u16>,
}

/// The mapped pages, which stay while this is held.
pub(crate) struct Pages<'a, H: Hypervisor>(RwLockReadGuard<'a, Table<H>>);

impl<H: Hypervisor> PersistentGrants<H> {
    /// Room for `bound` pages of `peer`. It costs addresses only until some are mapped.
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
        Ok(Self { hypervisor: hypervisor.clone(), table: RwLock::new(table), users })
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

    /// The pages, to be used for a batch; none while they change.
    #[inline]
    pub(crate) fn pages(&self) -> Option<Pages<'_, H>> {
        match self.table.try_read() {
            Ok(table) => Some(Pages(table)),
            Err(TryLockError::Poisoned(error)) => Some(Pages(error.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for the batches that use the pages. None of them waits for this.
    fn change(&self) -> RwLockWriteGuard<'_, Table<H>> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps pages, all or none. The error is the status for the frontend.
    pub(crate) fn add(&self, entries: &[GrefMapping]) -> Result<(), u32> {
        let mut table = self.change();
        let table = &mut *table;
        let left = table.free.len().checked_sub(entries.len()).ok_or(status::BUFFER_OVERFLOW)?;
        let mut ops = Vec::<GrantMap>::with_capacity(entries.len());
        // The last of the free places first, so that neighbours become neighbours.
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
        self.hypervisor.map_at(&mut table.aperture, &mut ops);
        let (mapped, refused): (Vec<_>, Vec<_>) =
            ops.iter().partition(|op| op.status == MapStatus::Okay);
        if refused.is_empty() {
            table.free.truncate(left);
            mapped.into_iter().for_each(|op| table.insert(op));
            return Ok(());
        }
        for op in mapped {
            self.hypervisor.unmap(&mut table.aperture, op.place..op.place + 1);
        }
        Err(status::INVALID_PARAMETER)
    }

    /// Unmaps pages, each that is mapped and not in use, and writes each one's status. Answers
    /// how many were unmapped.
    pub(crate) fn remove(&self, entries: &mut [GrefMapping]) -> u32 {
        let mut table = self.change();
        let mut removed = 0;
        for entry in entries {
            let gref = GrantRef(entry.gref);
            let idle = table.index.find(gref).filter(|found| !self.is_in_use(found.place));
            let status = if idle.is_some() {
                table.remove(&self.hypervisor, gref);
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

    /// Unmaps pages that [`add`](Self::add) has mapped, in use or not: a packet that was taken
    /// meanwhile is reached by grant copies from here on.
    pub(crate) fn take_back(&self, entries: &[GrefMapping]) {
        let mut table = self.change();
        for entry in entries {
            table.remove(&self.hypervisor, GrantRef(entry.gref));
        }
    }

    fn is_in_use(&self, place: u16) -> bool {
        // What was counted under the lock is seen under the lock.
        self.users[usize::from(place)].load(Ordering::Relaxed) > 0
    }

    /// Changes a place's count, as the queue that is the only one to do so.
    #[inline]
    fn count(&self, place: u16, change: impl FnOnce(u16) -> u16) {
        let users = &self.users[usize::from(place)];
        users.store(change(users.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

impl<H: Hypervisor> Table<H> {
    /// Notes a page that was mapped.
    fn insert(&mut self, op: &GrantMap) {
        // It was a place of the free ones, which have 16 bits.
        let place = u16::try_from(op.place).unwrap_or(u16::MAX);
        self.grefs[usize::from(place)] = Some(op.gref);
        self.index.insert(op.gref, Found { place, writable: op.writable });
    }

    /// Unmaps a page, if it is mapped.
    fn remove(&mut self, hypervisor: &H, gref: GrantRef) {
        let Some(Found { place, .. }) = self.index.remove(gref) else { return };
        // Gone from both before it is unmapped: whoever finds it finds it mapped.
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

    /// The pages, to be used for a batch; none while they change, or when none is in hand.
    #[inline]
    pub(crate) fn pages(&self) -> Option<Pages<'_, H>> {
        if self.pieces > 0 { self.grants.pages() } else { None }
    }

    /// Finds the pages of the packets in `fresh`, which from here on are in use.
    #[inline]
    pub(crate) fn take(&mut self, window: &mut Window, fresh: u64) {
        // Frames that are all header have no pages to be found: the lock is not needed for them.
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

    /// Pieces are needed no longer: they were copied, or their packet is about to be answered.
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

/// Whose buffers an RX queue fills.
pub(crate) struct Destination<H: Hypervisor> {
    peer: H::Peer,
    /// Those that are kept mapped, if the frontend can have some.
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

    /// The buffers, to be filled in a batch.
    #[inline]
    pub(crate) fn buffers<'a>(&'a self, pages: Option<&'a Pages<'_, H>>) -> Buffers<'a, H> {
        let mapped = pages.map(|pages| {
            (&pages.0.index, MappedGrants { peer: &self.peer, pages: pages.mapped() })
        });
        Buffers { to: self, mapped, hits: Cell::new(0), misses: Cell::new(0) }
    }
}

/// Where the buffers of an RX queue lie, for one batch.
pub(crate) struct Buffers<'a, H: Hypervisor> {
    to: &'a Destination<H>,
    /// Those that are mapped, and how to find them.
    mapped: Option<(&'a Index, MappedGrants<'a, H::Peer>)>,
    hits: Cell<u64>,
    misses: Cell<u64>,
}

/// A buffer: a page to be written to.
#[derive(Debug)]
pub(crate) enum Buffer<'a, P> {
    Granted { peer: &'a P, gref: GrantRef },
    Mapped { pages: &'a MappedGrants<'a, P>, place: u16 },
}

impl<H: Hypervisor> Buffers<'_, H> {
    /// The buffer that a request grants. One that is mapped to be read only is reached by its
    /// grant, which will refuse.
    #[inline]
    pub(crate) fn find(&self, gref: GrantRef) -> Buffer<'_, H::Peer> {
        if let Some((index, pages)) = &self.mapped
            && let Some(Found { place, writable: true }) = index.find(gref)
        {
            self.hits.set(self.hits.get() + 1);
            return Buffer::Mapped { pages, place };
        }
        self.misses.set(self.misses.get() + 1);
        Buffer::Granted { peer: &self.to.peer, gref }
    }

    /// Books what was found, of a frontend that could have had it mapped.
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
        }
    }
}
