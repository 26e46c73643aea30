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
//!                      TX: fragments of packets    RX: buffers      (read, once per batch)
//! ```
//!
//! **Locking.** Nobody waits for the table's lock. A batch that uses mapped pages holds it for
//! reading. While pages are mapped or unmapped, a batch uses grant copies, which are always
//! possible. Who wants to map or unmap pages during a batch tries again later; until then, new
//! batches use grant copies too, or a busy guest's pages could never change. So no copy loses its
//! mapping while it runs, and no worker waits for another.
//!
//! **Pages in use.** A page is not unmapped while a packet in hand has unread bytes in it. Each
//! place has a count of the fragments there. Only the TX queue of the table changes it, so plain loads and
//! stores suffice, without a locked instruction per packet. The count protects the frontend, which
//! must not get a page back too early; the backend's safety does not depend on it. Buffers on the
//! RX ring are taken and answered within one batch, under the lock.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use frame::{Fragment, Place, Window};
use hypervisor::{
    Counted, GrantMap, GrantRef, Granted, Hypervisor, MapStatus, MappedAt, MappedPages,
};
use wire::netif::GrefMapping;
use wire::netif::ctrl::status;

use crate::grant_use::GrantUse;
use crate::index::{Found, Index};

/// The pages of one queue that stay mapped: at most as many as were offered.
pub struct PersistentGrants<H: Hypervisor> {
    hypervisor: H,
    table: RwLock<Table<H>>,
    /// Whether a change waits for the batches that hold the lock. No other batch then takes it.
    wanted: AtomicBool,
    /// For each place, how many fragments of packets in hand lie there.
    users: Box<[AtomicU16]>,
    usage: Arc<GrantUse>,
}

struct Table<H: Hypervisor> {
    aperture: H::Aperture,
    /// What is mapped at each place.
    grefs: Box<[Option<GrantRef>]>,
    /// The places of mapped pages, by reference.
    index: Index,
    free: Vec<u16>,
    /// How many pages are mapped to be written to: buffers.
    writable: usize,
}

/// The right to map and unmap pages. While this lives, batches use grant copies.
pub(crate) struct TableChange<'a, H: Hypervisor> {
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
            writable: 0,
        };
        let users = (0..bound).map(|_| AtomicU16::new(0)).collect();
        let (table, wanted) = (RwLock::new(table), AtomicBool::new(false));
        let usage = Arc::new(GrantUse::new(bound.into()));
        Ok(Self { hypervisor: hypervisor.clone(), table, wanted, users, usage })
    }

    /// Its counts.
    pub(crate) fn usage(&self) -> &Arc<GrantUse> {
        &self.usage
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
    pub(crate) fn change(&self) -> Option<TableChange<'_, H>> {
        let table = match self.table.try_write() {
            Ok(table) => Some(table),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        self.wanted.store(table.is_none(), Ordering::Relaxed);
        table.map(|table| TableChange { grants: self, table })
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

impl<H: Hypervisor> TableChange<'_, H> {
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

impl<H: Hypervisor> Drop for TableChange<'_, H> {
    fn drop(&mut self) {
        let Table { free, writable, .. } = &*self.table;
        let mapped = self.grants.bound() - free.len();
        let usage = &self.grants.usage;
        usage.tx.mapped.store(mapped - writable, Ordering::Relaxed);
        usage.rx.mapped.store(*writable, Ordering::Relaxed);
    }
}

impl<H: Hypervisor> Table<H> {
    /// Notes a page that was mapped.
    fn insert(&mut self, op: &GrantMap) {
        // Free places have 16 bits.
        let place = u16::try_from(op.place).unwrap_or(u16::MAX);
        self.grefs[usize::from(place)] = Some(op.gref);
        self.index.insert(op.gref, Found { place, writable: op.writable });
        self.writable += usize::from(op.writable);
    }

    /// Unmaps a page, if it is mapped.
    fn remove(&mut self, hypervisor: &H, gref: GrantRef) {
        let Some(Found { place, writable }) = self.index.remove(gref) else { return };
        self.writable -= usize::from(writable);
        // Removed from both before it is unmapped, so that every page found is mapped.
        self.grefs[usize::from(place)] = None;
        let at = u32::from(place);
        hypervisor.unmap(&mut self.aperture, at..at + 1);
        self.free.push(place);
    }
}

impl<H: Hypervisor> Pages<'_, H> {
    #[inline]
    pub(crate) fn mapped(&self) -> MappedPages<'_> {
        MappedPages { region: &self.0.aperture, grefs: &self.0.grefs, frames: None }
    }

    /// Their places, by reference.
    #[inline]
    pub(crate) fn index(&self) -> &Index {
        &self.0.index
    }
}

/// The pages that packets in hand refer to, of a TX queue with persistent grants.
pub(crate) struct FragmentsInUse<H: Hypervisor> {
    grants: Arc<PersistentGrants<H>>,
    /// How many fragments of packets lie in pages that are mapped.
    fragments: usize,
}

impl<H: Hypervisor> FragmentsInUse<H> {
    pub(crate) fn new(grants: Arc<PersistentGrants<H>>) -> Self {
        Self { grants, fragments: 0 }
    }

    /// The counts of the pages' table.
    pub(crate) fn usage(&self) -> &Arc<GrantUse> {
        self.grants.usage()
    }

    /// The pages, for one batch; none while they change, or if no packet in hand uses one.
    #[inline]
    pub(crate) fn pages(&self) -> Option<Pages<'_, H>> {
        if self.fragments > 0 { self.grants.pages() } else { None }
    }

    /// Finds the pages of the packets in `fresh` and marks them as in use.
    #[inline]
    pub(crate) fn take(&mut self, window: &mut Window, fresh: u64) {
        // Frames that are all header have no fragments, so they need no lock.
        let mut pages = None;
        let (mut hits, mut misses) = (0, 0);
        for (_, frame) in window.in_slots(fresh) {
            for fragment in &mut frame.fragments {
                let Place::Grant(Granted { gref, mapped, .. }) = &mut fragment.place else {
                    continue;
                };
                let pages = pages.get_or_insert_with(|| self.grants.pages());
                match pages.as_ref().and_then(|pages| pages.0.index.find(*gref)) {
                    Some(Found { place, .. }) => {
                        hits += 1;
                        *mapped = MappedAt::new(place);
                        self.grants.count(place, |users| users.saturating_add(1));
                    }
                    None => misses += 1,
                }
            }
        }
        self.fragments += hits;
        note(&self.grants.hypervisor, hits as u64, misses);
        self.grants.usage.tx.add(hits as u64, misses, 0);
    }

    /// Marks fragments as not in use: they were copied, or their packet is about to be answered.
    #[inline]
    pub(crate) fn release(&mut self, fragments: impl IntoIterator<Item = Fragment>) {
        for fragment in fragments {
            if let Place::Grant(Granted { mapped: Some(mapped), .. }) = fragment.place {
                self.grants.count(mapped.get(), |users| users.saturating_sub(1));
                self.fragments -= 1;
            }
        }
    }
}

/// Counts lookups, for the meter.
pub(crate) fn note<H: Hypervisor>(hypervisor: &H, hits: u64, misses: u64) {
    hypervisor.note(Counted::GrantHits, hits);
    hypervisor.note(Counted::GrantMisses, misses);
}
