//! Apertures: places where the driver domain maps pages of a guest, for one packet or until the
//! guest wants them unmapped.
//!
//! The original netback mapped and unmapped every page of every packet. The header channel avoids
//! this, because each change of the address space is costly, and each unmapping also flushes other
//! cores' TLBs. Persistent grants pay this once.
//!
//! **Mappings.** The kernel merges neighbouring places into one mapping if both are empty, or if
//! their pages follow each other in the guest's memory. A guest that scatters its pages, or has
//! every second one unmapped, takes a mapping per place. A process has 65530 of them for all of its
//! guests, so each guest has a share, and no page is mapped or unmapped beyond it.

use std::collections::VecDeque;
use std::ops::{Deref, Range};
use std::sync::Arc;

use hypervisor::{Error, FrameNumber, GrantMap, GrantRef, MapStatus, PAGE_SIZE};
use shm::Reserved;

use crate::domain::{DRIVER_DOMAIN, Domain};
use crate::grant_table::Access;

/// How many of the stuck ranges of places each operation tries to unmap again.
const STUCK_TRIES: usize = 4;

/// Places for pages of one guest.
pub struct Aperture {
    domain: Arc<Domain>,
    reserved: Reserved,
    /// The page at each place.
    taken: Box<[Option<Page>]>,
    /// The mappings that all places take together.
    mappings: usize,
    /// Places that could not be unmapped yet. Their pages stay mapped and pinned.
    stuck: VecDeque<Range<u32>>,
}

/// A page that is mapped.
struct Page {
    gref: GrantRef,
    /// Its first byte in the guest's memory.
    start: usize,
    writable: bool,
    pinned: bool,
}

impl Page {
    /// Whether the kernel needs two mappings for these neighbouring places.
    fn differ(left: Option<&Self>, right: Option<&Self>) -> bool {
        match (left, right) {
            (None, None) => false,
            (Some(left), Some(right)) => {
                left.writable != right.writable || left.start + PAGE_SIZE != right.start
            }
            _ => true,
        }
    }
}

impl Aperture {
    pub(crate) fn new(domain: &Arc<Domain>, places: u32) -> Result<Self, Error> {
        domain.check_ready()?;
        let reserved = Reserved::new(places as usize, PAGE_SIZE)
            .map_err(Error::os("address space for granted pages"))?;
        if !domain.mappings().change(1) {
            return Err(Error::Exhausted("mappings of the guest's share"));
        }
        let taken = (0..places).map(|_| None).collect();
        Ok(Self { domain: domain.clone(), reserved, taken, mappings: 1, stuck: VecDeque::new() })
    }

    /// Maps one page. A pinned page is pinned before it is mapped and unpinned after it is unmapped,
    /// so that its owner sees when it must not take the page back.
    pub(crate) fn map(&mut self, op: &mut GrantMap) -> MapStatus {
        self.unmap_stuck();
        let place = op.place as usize;
        let is_free = match self.taken.get(place) {
            Some(None) => true,
            Some(Some(old)) => !old.pinned && !op.pinned,
            None => false,
        };
        if !is_free {
            return MapStatus::BadGrant;
        }
        let access = if op.writable { Access::Write } else { Access::Read };
        let granted = match op.pinned {
            true => self.domain.pin(DRIVER_DOMAIN, op.gref, access),
            false => self.domain.check(DRIVER_DOMAIN, op.gref, access),
        };
        let Ok(start) = granted else { return MapStatus::BadGrant };
        let page = Page { gref: op.gref, start, writable: op.writable, pinned: op.pinned };
        if !self.fill(place, page) {
            if op.pinned {
                self.domain.unpin(op.gref);
            }
            return MapStatus::BadGrant;
        }
        op.frame = frame_at(start);
        MapStatus::Okay
    }

    /// Maps a page at an empty place, or in place of an unpinned one, if the guest's share and the
    /// system permit it.
    fn fill(&mut self, place: usize, page: Page) -> bool {
        let before = self.boundaries(place..place + 1);
        let (start, writable) = (page.start, page.writable);
        let old = self.taken[place].replace(page);
        let more = self.boundaries(place..place + 1).cast_signed() - before.cast_signed();
        if !self.charge(more) {
            self.taken[place] = old;
            return false;
        }
        let mapped = match writable {
            false => self.reserved.map(place, self.domain.fd(), start as u64),
            true => self.reserved.alias(place, self.domain.memory(), start),
        };
        if mapped.is_ok() {
            return true;
        }
        // The system is out of mappings, and the place is empty, whatever was there.
        let filled = self.boundaries(place..place + 1);
        self.taken[place] = None;
        self.charge(self.boundaries(place..place + 1).cast_signed() - filled.cast_signed());
        false
    }

    /// Unmaps these places in one change of the address space. Places that the guest's share or the
    /// system does not permit to unmap now are unmapped later.
    pub(crate) fn unmap(&mut self, places: Range<u32>) {
        self.unmap_stuck();
        if !self.empty(places.clone()) {
            self.stuck.push_back(places);
        }
    }

    /// Tries again to unmap some places. If it tried all, a guest could make every operation slow.
    fn unmap_stuck(&mut self) {
        for _ in 0..self.stuck.len().min(STUCK_TRIES) {
            let Some(places) = self.stuck.pop_front() else { return };
            if !self.empty(places.clone()) {
                self.stuck.push_back(places);
            }
        }
    }

    /// Empties places; returns false if that is not possible now.
    fn empty(&mut self, places: Range<u32>) -> bool {
        let range = places.start as usize..places.end as usize;
        let Some(taken) = self.taken.get(range.clone()) else { return true };
        if taken.iter().all(Option::is_none) {
            return true;
        }
        let outer = [range.start.checked_sub(1), Some(range.end)];
        let neighbours = outer.map(|place| place.and_then(|place| self.taken.get(place)?.as_ref()));
        let after = neighbours.iter().flatten().count();
        let more = after.cast_signed() - self.boundaries(range.clone()).cast_signed();
        if !self.charge(more) {
            return false;
        }
        if self.reserved.unmap(range.clone()).is_err() {
            // The system is out of mappings.
            self.charge(-more);
            return false;
        }
        self.release(range);
        true
    }

    /// Forgets pages that are unmapped, and unpins them.
    fn release(&mut self, places: Range<usize>) {
        for page in self.taken[places].iter_mut().filter_map(Option::take) {
            if page.pinned {
                self.domain.unpin(page.gref);
            }
        }
    }

    /// How often the mapping changes between places in `range`, and at its two ends.
    fn boundaries(&self, range: Range<usize>) -> usize {
        let page = |place: usize| self.taken[place].as_ref();
        let firsts = range.start.max(1)..(range.end + 1).min(self.taken.len());
        firsts.filter(|place| Page::differ(page(place - 1), page(*place))).count()
    }

    /// Counts mappings against the guest's share.
    fn charge(&mut self, more: isize) -> bool {
        let charged = self.domain.mappings().change(more);
        if charged {
            self.mappings = self.mappings.saturating_add_signed(more);
        }
        charged
    }
}

/// The page that begins at a byte of its domain's memory.
pub(crate) fn frame_at(start: usize) -> FrameNumber {
    // Grant entries have 32 bits for it.
    FrameNumber(u32::try_from(start / PAGE_SIZE).unwrap_or(u32::MAX))
}

impl Deref for Aperture {
    type Target = shm::Region;

    fn deref(&self) -> &shm::Region {
        &self.reserved
    }
}

impl Drop for Aperture {
    fn drop(&mut self) {
        // Place numbers have 32 bits.
        self.empty(0..u32::try_from(self.taken.len()).unwrap_or(u32::MAX));
        // Pages that are left are unmapped with the reserved addresses; nothing uses them any more.
        self.release(0..self.taken.len());
        self.domain.mappings().change(-self.mappings.cast_signed());
    }
}

#[cfg(test)]
mod tests;
