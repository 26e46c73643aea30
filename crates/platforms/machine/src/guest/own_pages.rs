//! Pages that a guest grants to nobody: a card reaches them through the guest's context.

use std::ops::Deref;
use std::sync::Arc;

use hypervisor::{Error, PAGE_SIZE};
use shm::Region;

use super::MachineGuest;
use super::state::Inner;

/// Consecutive pages of a guest's own memory. Dropping them frees them.
pub struct OwnPages {
    region: Region,
    guest: Arc<Inner>,
    first: usize,
}

impl MachineGuest {
    /// Takes `pages` consecutive pages, zeroed.
    ///
    /// # Errors
    /// There is no such run of free pages.
    pub fn take_pages(&self, pages: usize) -> Result<OwnPages, Error> {
        let exhausted = Error::Exhausted("pages");
        let first = self.inner.free().frames.take_run(pages);
        let Some(first) = first else { return Err(exhausted) };
        let range = first * PAGE_SIZE..(first + pages) * PAGE_SIZE;
        let region = self.inner.memory.slice(range).map_err(|_| Error::Exhausted("pages"))?;
        region.zero(0, region.len()).map_err(|_| exhausted)?;
        Ok(OwnPages { region, guest: self.inner.clone(), first })
    }
}

impl OwnPages {
    /// The number of the first page in the domain's memory.
    #[must_use]
    pub fn first(&self) -> usize {
        self.first
    }

    /// The pages as a region with a lifetime of its own. It must not be used after this is dropped.
    ///
    /// # Errors
    /// Never for pages that exist.
    pub fn region(&self) -> Result<Region, Error> {
        let range = self.first * PAGE_SIZE..self.first * PAGE_SIZE + self.region.len();
        self.guest.memory.slice(range).map_err(|_| Error::Exhausted("pages"))
    }
}

impl Deref for OwnPages {
    type Target = Region;

    fn deref(&self) -> &Region {
        &self.region
    }
}

impl Drop for OwnPages {
    fn drop(&mut self) {
        let mut free = self.guest.free();
        for page in 0..self.region.len() / PAGE_SIZE {
            free.frames.put_back(self.first + page);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Machine, MachineGuest, MemorySize};

    #[test]
    fn pages_are_taken_zeroed_and_come_back() {
        let machine = Machine::new();
        let size = MemorySize { pages: 64, grant_pages: 1, ..MemorySize::default() };
        let domain = machine.create(size).unwrap();
        let guest = MachineGuest::inside(&machine, &domain).unwrap();
        let pages = guest.take_pages(40).unwrap();
        assert!(guest.take_pages(40).is_err());
        pages.write(39 * 4096, 7u8).unwrap();
        let at = (pages.first() + 39) * 4096;
        assert_eq!(guest.region().read(at), Ok(7u8));
        assert_eq!(pages.region().unwrap().read(39 * 4096), Ok(7u8));
        drop(pages);
        assert_eq!(guest.take_pages(40).unwrap().read(39 * 4096), Ok(0u8));
    }
}
