//! Grant reuse on demand: pages that the backend keeps mapped without asking their owner.
//!
//! This is the cache of Santos et al. (2008, §4.4): is the page of this reference mapped? Otherwise
//! map it, and do not unmap it after use. The frontend need not know, so it works with every
//! frontend.
//!
//! **Safety.** A frontend that does not know ends a grant as soon as it has its answer, and grants
//! another page by the same reference. So a mapping here is [unpinned](GrantMap::unpinned): it does not
//! keep the guest from that. It is used only while the grant still names the same page and permits
//! the access. This is checked when the page is looked up, and by the hypervisor again at each copy. A
//! copy whose page has changed meanwhile goes by the grant, so its result is that of a grant copy in
//! every case.
//!
//! A platform that pins what it maps, such as Xen, cannot have this cache: see
//! docs/decisions/0024-grant-reuse-on-demand.md.
//!
//! **Bounds.** A cache has a fixed number of places. A new page takes the place that was not used for
//! the longest time. A guest that uses new references all the time must not cost its neighbours a
//! system call per page: each lookup earns [a share of a mapping](MAPPING_COST), and without
//! credit the page is reached by its grant.
//!
//! **Threads.** Each queue has its own cache in each direction. The worker that serves the queue is the
//! only one that uses it, so there is no lock.

mod recency;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrayvec::ArrayVec;
use frame::{FRAGMENTS_MAX, Place, Window};
use hypervisor::{
    Counted, FrameNumber, GrantMap, GrantRef, Hypervisor, MapStatus, MappedAt, MappedGrants,
    MappedPages,
};

use crate::grant_use::{DirectionUse, GrantUse};
use crate::index::{Found, Index};
use crate::remap::copy_header;
use recency::Recency;

/// How many lookups pay for one mapping. A mapping takes some microseconds, so this bounds what a
/// guest that never reuses a page costs to less than twice the price of its grant copies.
const MAPPING_COST: u32 = 32;
/// Most pages that are mapped at once: those of a frame.
const BATCH: usize = FRAGMENTS_MAX;

/// Whether the pages of a direction are written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Tx,
    Rx,
}

/// The pages of one direction of a queue that stay mapped.
pub(crate) struct GrantCache<H: Hypervisor> {
    hypervisor: H,
    peer: H::Peer,
    aperture: H::Aperture,
    direction: Direction,
    /// What is mapped at each place.
    grefs: Box<[Option<GrantRef>]>,
    frames: Box<[FrameNumber]>,
    /// The places of mapped pages, by reference.
    index: Index,
    recency: Recency,
    /// How many pages are mapped.
    mapped: usize,
    /// What lookups have earned; a mapping costs [`MAPPING_COST`].
    credit: u32,
    usage: Arc<GrantUse>,
    batch: Counts,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    hits: u64,
    misses: u64,
    stale: u64,
    evictions: u64,
}

impl<H: Hypervisor> GrantCache<H> {
    /// Reserves address space for `places` pages of `peer`, one at least.
    pub(crate) fn new(
        hypervisor: &H,
        peer: &H::Peer,
        direction: Direction,
        places: u16,
    ) -> Result<Self, hypervisor::Error> {
        let bound = usize::from(places);
        Ok(Self {
            hypervisor: hypervisor.clone(),
            peer: peer.clone(),
            aperture: hypervisor.aperture(peer, places.into())?,
            direction,
            grefs: vec![None; bound].into(),
            frames: vec![FrameNumber::default(); bound].into(),
            index: Index::new(places),
            recency: Recency::new(places),
            mapped: 0,
            credit: u32::from(places) * MAPPING_COST,
            usage: Arc::new(GrantUse::new(bound)),
            batch: Counts::default(),
        })
    }

    /// Its counts.
    pub(crate) fn usage(&self) -> &Arc<GrantUse> {
        &self.usage
    }

    #[inline]
    pub(crate) fn pages(&self) -> MappedPages<'_> {
        MappedPages { region: &self.aperture, grefs: &self.grefs, frames: Some(&self.frames) }
    }

    /// The pages that are mapped, for a batch of copies to them.
    #[inline]
    pub(crate) fn grants(&self) -> (&Index, MappedGrants<'_, H::Peer>) {
        (&self.index, MappedGrants { peer: &self.peer, pages: self.pages() })
    }

    /// Finds the pages of the packets in `fresh`, and maps those that are missing, as long as the
    /// guest has credit for it.
    #[inline]
    pub(crate) fn take(&mut self, window: &mut Window, fresh: u64) {
        for (_, frame) in window.in_slots(fresh) {
            self.find_fragments(&mut frame.fragments, Self::may_map);
        }
        self.end_batch();
    }

    /// Finds or maps all pages of the packets in `fresh`, also without credit, and copies their
    /// headers from there. Returns the slots of packets whose memory cannot be read.
    pub(crate) fn map_all(&mut self, window: &mut Window, fresh: u64) -> u64 {
        let mut unreadable = 0;
        for (slot, frame) in window.in_slots(fresh) {
            let mapped = self.find_fragments(&mut frame.fragments, |_| true);
            let copied = mapped && copy_header(&self.aperture, frame);
            unreadable |= u64::from(!copied) << slot;
        }
        self.end_batch();
        unreadable
    }

    fn find_fragments(
        &mut self,
        fragments: &mut [frame::Fragment],
        may_map: impl Fn(&Self) -> bool,
    ) -> bool {
        let mut missing = ArrayVec::<GrantMap, BATCH>::new();
        for fragment in &mut *fragments {
            let Place::Grant(granted) = &mut fragment.place else { continue };
            granted.mapped = self.lookup(granted.gref).and_then(MappedAt::new);
            if granted.mapped.is_none() && may_map(self) {
                self.reserve(granted.gref, &mut missing);
            }
        }
        if missing.is_empty() {
            return fragments.iter().all(is_mapped);
        }
        self.map(&mut missing);
        for fragment in &mut *fragments {
            let Place::Grant(granted) = &mut fragment.place else { continue };
            if granted.mapped.is_none() {
                let found = self.index.find(granted.gref);
                granted.mapped = found.and_then(|found| MappedAt::new(found.place));
            }
        }
        fragments.iter().all(is_mapped)
    }

    /// Finds the buffers that a batch will use, and maps those that are missing, as long as the guest
    /// has credit for it. What the frontend changes after this is noticed at the copy.
    pub(crate) fn prepare(&mut self, buffers: impl Iterator<Item = GrantRef>) {
        let mut missing = ArrayVec::<GrantMap, BATCH>::new();
        for gref in buffers {
            if self.lookup(gref).is_none() && self.may_map() {
                self.reserve(gref, &mut missing);
            }
            if missing.is_full() {
                self.map(&mut missing);
                missing.clear();
            }
        }
        self.map(&mut missing);
        self.end_batch();
    }

    fn may_map(&self) -> bool {
        self.credit >= MAPPING_COST
    }

    /// The place of a page that is mapped and still granted.
    #[inline]
    fn lookup(&mut self, gref: GrantRef) -> Option<u16> {
        let full = u32::try_from(self.grefs.len()).unwrap_or(u32::MAX) * MAPPING_COST;
        self.credit = full.min(self.credit + 1);
        let Some(Found { place, writable }) = self.index.find(gref) else {
            self.batch.misses += 1;
            return None;
        };
        let frame = self.frames[usize::from(place)];
        if !self.hypervisor.is_current(&self.peer, gref, frame, writable) {
            self.forget(place);
            self.recency.retire(place);
            self.batch.misses += 1;
            self.batch.stale += 1;
            return None;
        }
        self.recency.touch(place);
        self.batch.hits += 1;
        Some(place)
    }

    /// Adds a page to those that will be mapped, at the place that was not used for the longest time.
    fn reserve(&mut self, gref: GrantRef, missing: &mut ArrayVec<GrantMap, BATCH>) {
        // A frame can have several fragments of one page.
        if missing.is_full() || missing.iter().any(|op| op.gref == gref) {
            return;
        }
        let place = self.recency.oldest();
        if missing.iter().any(|op| op.place == u32::from(place)) {
            // A cache smaller than a frame.
            return;
        }
        if self.forget(place) {
            self.batch.evictions += 1;
        }
        self.recency.touch(place);
        self.credit = self.credit.saturating_sub(MAPPING_COST);
        missing.push(GrantMap::unpinned(place.into(), gref, self.direction == Direction::Rx));
    }

    /// Forgets what is mapped at a place, which stays mapped until another page takes the place.
    /// Returns whether there was something.
    fn forget(&mut self, place: u16) -> bool {
        let Some(gref) = self.grefs[usize::from(place)].take() else { return false };
        self.index.remove(gref);
        self.mapped -= 1;
        true
    }

    /// Maps pages at their places. Those whose grants do not permit it are not mapped.
    fn map(&mut self, ops: &mut [GrantMap]) {
        if ops.is_empty() {
            return;
        }
        self.hypervisor.map_at(&mut self.aperture, ops);
        for op in ops {
            // Places have 16 bits.
            let place = u16::try_from(op.place).unwrap_or(u16::MAX);
            if op.status == MapStatus::Okay {
                self.grefs[usize::from(place)] = Some(op.gref);
                self.frames[usize::from(place)] = op.frame;
                self.index.insert(op.gref, Found { place, writable: op.writable });
                self.mapped += 1;
            } else {
                self.recency.retire(place);
            }
        }
    }

    /// Adds the counts of a batch to what an operator sees.
    #[inline]
    pub(crate) fn end_batch(&mut self) {
        let Counts { hits, misses, stale, evictions } = std::mem::take(&mut self.batch);
        for (what, n) in [
            (Counted::GrantHits, hits),
            (Counted::GrantMisses, misses),
            (Counted::GrantStale, stale),
            (Counted::GrantEvictions, evictions),
        ] {
            self.hypervisor.note(what, n);
        }
        let direction: &DirectionUse = match self.direction {
            Direction::Tx => &self.usage.tx,
            Direction::Rx => &self.usage.rx,
        };
        direction.add(hits, misses, evictions);
        direction.mapped.store(self.mapped, Ordering::Relaxed);
    }
}

fn is_mapped(fragment: &frame::Fragment) -> bool {
    matches!(&fragment.place, Place::Grant(granted) if granted.mapped.is_some())
}
