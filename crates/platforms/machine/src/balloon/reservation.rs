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

    /// The domain gives up ordinary pages: all of them, or on an error none. The memory behind
    /// them is the host's from then on, and no grant of them is honoured.
    ///
    /// Its grant table stays. A page that is granted is the domain's to keep: what a copy that
    /// is under way leaves on one only makes the domain hold more than it is counted.
    pub(crate) fn decrease_reservation(&self, pages: Range<usize>) -> Result<(), Error> {
        let _changing = self.balloon().changing();
        self.check_all(pages.clone(), false)?;
        self.balloon().mark(pages.clone());
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
