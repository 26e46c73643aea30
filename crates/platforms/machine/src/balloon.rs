//! What a domain has given up of its memory, as the hypervisor counts it.
//!
//! Pages that are out have no memory behind them and can not be granted: a worker that writes to
//! one would take it back behind everybody's back.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use hypervisor::{Error, PAGE_SIZE};
use rustix::fs::{FallocateFlags, fallocate};

use crate::domain::{BLOCK_PAGES, Domain, MemorySize, repopulate};

/// Which of a domain's ordinary pages are out.
pub(crate) struct Balloon {
    /// How many. While there are none, nobody looks further.
    out: AtomicUsize,
    /// A bit for each page.
    pages: Box<[AtomicU64]>,
    /// Held by whoever changes them.
    changing: Mutex<()>,
}

impl Balloon {
    /// With nothing out.
    pub(crate) fn new(size: MemorySize) -> Self {
        let pages = (0..size.pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { out: AtomicUsize::new(0), pages, changing: Mutex::new(()) }
    }

    /// Whether a page, of a number below the domain's pages, is out.
    #[inline]
    pub(crate) fn is_out(&self, page: usize) -> bool {
        // Acquire: who sees that pages are out sees which.
        self.out.load(Ordering::Acquire) > 0 && self.bit(page)
    }

    #[cold]
    fn bit(&self, page: usize) -> bool {
        self.pages[page / 64].load(Ordering::Acquire) >> (page % 64) & 1 == 1
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mark(&self, pages: Range<usize>) {
        for page in pages.clone() {
            self.pages[page / 64].fetch_or(1 << (page % 64), Ordering::AcqRel);
        }
        self.out.fetch_add(pages.len(), Ordering::AcqRel);
    }

    fn clear(&self, pages: Range<usize>) {
        for page in pages.clone() {
            self.pages[page / 64].fetch_and(!(1 << (page % 64)), Ordering::AcqRel);
        }
        self.out.fetch_sub(pages.len(), Ordering::AcqRel);
    }
}

impl Domain {
    /// Pages of 4 KiB that it has given up.
    #[must_use]
    pub fn pages_out(&self) -> usize {
        self.balloon().out.load(Ordering::Relaxed)
    }

    /// The domain gives up ordinary pages: all of them, or on an error none. The memory behind
    /// them is the host's from then on, and no grant of them is honoured.
    ///
    /// Its grant table stays. A page that is granted is the domain's to keep: what a copy that
    /// is under way leaves on one only makes the domain hold more than it is counted.
    pub(crate) fn decrease_reservation(&self, pages: Range<usize>) -> Result<(), Error> {
        let _changing = self.balloon().changing();
        self.check_all(pages.clone(), false)?;
        self.balloon().mark(pages.clone());
        // From here on no grant of these pages is honoured, so that no further device reads them.
        if !self.holds().wait() {
            self.balloon().clear(pages);
            return Err(Error::Busy(self.id()));
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (start, len) = (pages.start * PAGE_SIZE, pages.len() * PAGE_SIZE);
        fallocate(self.fd(), punch, start as u64, len as u64).map_err(|error| {
            self.balloon().clear(pages);
            Error::os("give up pages")(error)
        })
    }

    /// The domain takes pages back that it gave up: all of them, or on an error none. They are
    /// zeroed. Blocks that are whole again get their large mapping back.
    pub(crate) fn increase_reservation(&self, pages: Range<usize>) -> Result<(), Error> {
        let _changing = self.balloon().changing();
        self.check_all(pages.clone(), true)?;
        self.balloon().clear(pages.clone());
        for block in pages.start / BLOCK_PAGES..pages.end.div_ceil(BLOCK_PAGES) {
            let block = block * BLOCK_PAGES..(block + 1) * BLOCK_PAGES;
            let within = block.end <= self.size().pages;
            if within && !block.clone().any(|page| self.balloon().is_out(page)) {
                repopulate(self.size(), self.memory(), block);
            }
        }
        Ok(())
    }

    /// Whether there are `pages`, all of them ordinary ones, and out or not as they should be.
    fn check_all(&self, mut pages: Range<usize>, out: bool) -> Result<(), Error> {
        let MemorySize { grant_pages, pages: end, .. } = self.size();
        let sound = |page: usize| (grant_pages..end).contains(&page);
        // A run of none would have the host work for nothing.
        let none = pages.is_empty().then_some(pages.start);
        match none
            .or_else(|| pages.find(|page| !sound(*page) || self.balloon().is_out(*page) != out))
        {
            Some(page) => {
                let frame = u32::try_from(page).unwrap_or(u32::MAX);
                Err(Error::NotOwner { dom: self.id(), frame })
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
