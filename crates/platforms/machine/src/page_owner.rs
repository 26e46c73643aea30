//! A domain as the owner of pages that cards reach.

use std::ops::Range;
use std::sync::Weak;

use hypervisor::{DomId, PageOwner, PageReferences, PageUser};

use crate::domain::Domain;
use crate::memory::MemorySize;

impl PageOwner for Domain {
    fn id(&self) -> DomId {
        Domain::id(self)
    }

    fn machine_pages(&self) -> Range<u64> {
        let MemorySize { pages, exchange_pages, .. } = self.size();
        let first = self.dma_pages().first();
        first..first + (pages + exchange_pages) as u64
    }

    fn is_alive(&self) -> bool {
        Domain::is_alive(self)
    }

    /// Its ordinary pages that are not out. Pages of the exchange area change hands by flips, without a look at
    /// references, so no card reaches them.
    #[inline]
    fn owns(&self, page: usize) -> bool {
        page < self.size().pages && !self.balloon().is_out(page)
    }

    #[inline]
    fn references(&self) -> &PageReferences {
        self.dma_pages().references(self.size().pages)
    }

    fn attach(&self, user: Weak<dyn PageUser>) {
        self.dma_pages().attach(user, self.size().pages);
    }
}
