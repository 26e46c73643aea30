//! A domain that keeps its pages.

use std::ops::Range;
use std::sync::Weak;

use hypervisor::{DomId, PageOwner, PageReferences, PageUser};

/// A domain with consecutive machine pages, none of which it gives up.
pub struct Owner {
    id: DomId,
    pages: Range<u64>,
    references: PageReferences,
}

impl Owner {
    /// A domain with so many pages from machine page `first` on.
    pub fn new(id: DomId, first: u64, pages: usize) -> Self {
        let references = PageReferences::new(pages);
        Self { id, pages: first..first + pages as u64, references }
    }
}

impl PageOwner for Owner {
    fn id(&self) -> DomId {
        self.id
    }

    fn machine_pages(&self) -> Range<u64> {
        self.pages.clone()
    }

    fn is_alive(&self) -> bool {
        true
    }

    fn owns(&self, page: usize) -> bool {
        (page as u64) < self.pages.end - self.pages.start
    }

    fn references(&self) -> &PageReferences {
        &self.references
    }

    fn attach(&self, _: Weak<dyn PageUser>) {}
}
