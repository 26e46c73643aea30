//! How a domain's reservation changes: it gives up pages, and takes some back.

use std::ops::Range;
use std::sync::atomic::Ordering;

use hypervisor::{Error, PAGE_SIZE};
use rustix::fs::{FallocateFlags, fallocate};

use crate::domain::Domain;
use crate::memory::{BLOCK_PAGES, MemorySize, repopulate};

impl Domain {
    /// Pages of 4 KiB that it has given up.
    #[must_use]
    pub fn pages_out(&self) -> usize {
        self.balloon().out.load(Ordering::Relaxed)
    }

    /// Gives up ordinary pages of the domain: all of them, or on an error none. The host gets their
    /// memory, and grants of them are refused from then on.
    ///
    /// The grant table cannot be given up. A domain should keep pages that it grants: a copy that
    /// is under way allocates the page again, so the domain holds more than is counted.
    pub(crate) fn decrease_reservation(&self, pages: Range<usize>) -> Result<(), Error> {
        let _changing = self.balloon().changing();
        self.check_all(pages.clone(), false)?;
        self.balloon().mark(pages.clone());
        // From here on no grant of these pages is honoured and no reference to them is taken, so no further
        // device reaches them.
        if !self.holds().wait() || !self.dma_pages().reclaim(self.id(), &pages) {
            self.keep(&pages);
            return Err(Error::Busy(self.id()));
        }
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (start, len) = (pages.start * PAGE_SIZE, pages.len() * PAGE_SIZE);
        fallocate(self.fd(), punch, start as u64, len as u64).map_err(|error| {
            self.keep(&pages);
            Error::os("give up pages")(error)
        })
    }

    /// Unmarks pages that were marked as out, and tells their users.
    fn keep(&self, pages: &Range<usize>) {
        self.balloon().clear(pages.clone());
        self.dma_pages().restore(self.id(), pages);
    }

    /// Takes pages back that the domain gave up: all of them, or on an error none. They are zeroed.
    /// Blocks that are whole again get their large mapping back.
    pub(crate) fn increase_reservation(&self, pages: Range<usize>) -> Result<(), Error> {
        let _changing = self.balloon().changing();
        self.check_all(pages.clone(), true)?;
        self.keep(&pages);
        for block in pages.start / BLOCK_PAGES..pages.end.div_ceil(BLOCK_PAGES) {
            let block = block * BLOCK_PAGES..(block + 1) * BLOCK_PAGES;
            let within = block.end <= self.size().pages;
            if within && !block.clone().any(|page| self.balloon().is_out(page)) {
                repopulate(self.size(), self.memory(), block);
            }
        }
        Ok(())
    }

    /// Checks that all `pages` exist, are ordinary pages, and are out or not as `out` says.
    fn check_all(&self, mut pages: Range<usize>, out: bool) -> Result<(), Error> {
        let MemorySize { grant_pages, pages: end, .. } = self.size();
        let sound = |page: usize| (grant_pages..end).contains(&page);
        // An empty run is refused, as it would cost the host work for nothing.
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
