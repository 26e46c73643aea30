//! References to a domain's pages, as long as a card may reach them by DMA.
//!
//! A transfer of a card can last for hours: a receive buffer waits for its frame. So the count is of
//! each page, and only the pages that are taken away wait for theirs to be 0; a
//! [hold](crate::DmaHold) is of the whole domain, and short.
//!
//! Who takes references locks them, takes them, and asks whether the pages are still the domain's. Who takes pages
//! away marks them first and then looks for references, which takes the same lock. So one of the two sees the
//! other. The lock is taken once per batch: an atomic count per page would cost more than all the rest of an enqueue.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::id::DomId;

/// A count for each page of a domain.
#[derive(Debug)]
pub struct PageReferences {
    counts: Mutex<Box<[u32]>>,
}

impl PageReferences {
    /// None of any page.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        Self { counts: Mutex::new(vec![0; pages].into()) }
    }

    /// Locks the counts for a batch of changes.
    #[inline]
    pub fn lock(&self) -> LockedReferences<'_> {
        LockedReferences(self.counts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// References to a page.
    #[must_use]
    pub fn count(&self, page: usize) -> u32 {
        self.lock().0.get(page).copied().unwrap_or_default()
    }

    /// Whether there are references to any of some pages. To be asked after they were marked as
    /// taken away.
    #[must_use]
    pub fn any(&self, pages: Range<usize>) -> bool {
        self.lock().0.get(pages).unwrap_or_default().iter().any(|count| *count > 0)
    }

    /// Pages with references.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.lock().0.iter().filter(|count| **count > 0).count()
    }
}

/// The counts of a domain, for one batch of changes.
#[derive(Debug)]
pub struct LockedReferences<'a>(MutexGuard<'a, Box<[u32]>>);

impl LockedReferences<'_> {
    /// Takes a reference to each of some pages; none if one of them does not exist.
    #[inline]
    pub fn take(&mut self, pages: Range<usize>) {
        for count in self.0.get_mut(pages).unwrap_or_default() {
            *count += 1;
        }
    }

    /// Drops a reference to each of some pages: what the card did with them is done.
    #[inline]
    pub fn release(&mut self, pages: Range<usize>) {
        for count in self.0.get_mut(pages).unwrap_or_default() {
            debug_assert!(*count > 0, "a reference that was never taken");
            *count = count.saturating_sub(1);
        }
    }
}

/// A domain whose pages a card may reach.
pub trait PageOwner: Send + Sync {
    /// Its number.
    fn id(&self) -> DomId;

    /// The machine pages of its memory. They never change.
    fn machine_pages(&self) -> Range<u64>;

    /// Whether it has not ended.
    fn is_alive(&self) -> bool;

    /// Whether a page, counted from its first, is its own now: it exists, was not given up, and cannot be transferred.
    fn owns(&self, page: usize) -> bool;

    /// The references to its pages, counted from its first.
    fn references(&self) -> &PageReferences;

    /// From now on `user` is asked for references to pages that the domain gives up. It is called before
    /// `user` takes any.
    fn attach(&self, user: Weak<dyn PageUser>);
}

/// Who takes references, as a domain sees it.
pub trait PageUser: Send + Sync {
    /// A domain gives up some pages. Drops the references to them that are not needed any more.
    /// It is called again until there are none, or until the domain must keep the pages.
    fn reclaim(&self, domain: DomId, pages: Range<usize>);

    /// The domain has the pages again, or keeps them.
    fn restore(&self, domain: DomId, pages: Range<usize>);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_after_its_last_reference() {
        let references = PageReferences::new(8);
        references.lock().take(2..4);
        references.lock().take(3..4);
        assert!(!references.any(0..2) && references.any(0..8) && references.any(3..4));
        assert_eq!((references.count(3), references.pages()), (2, 2));
        references.lock().release(2..4);
        assert!(!references.any(0..3) && references.any(3..4));
        references.lock().release(3..4);
        assert!(!references.any(0..8));
    }

    #[test]
    fn pages_that_do_not_exist_have_no_references() {
        let references = PageReferences::new(2);
        references.lock().take(1..3);
        assert_eq!((references.count(1), references.count(2)), (0, 0));
        references.lock().release(1..3);
        assert!(!references.any(0..9));
    }
}
