//! References to a domain's pages, as long as a card may reach them by DMA.
//!
//! A card's transfer can last for hours: a receive buffer waits for its frame. So each page has its
//! own count, and taking pages away waits only for their counts to be 0. A [hold](crate::DmaHold)
//! covers the whole domain, and is short.
//!
//! A user of pages locks the counts, takes its references, and then checks that the pages are still the domain's. Whoever
//! takes pages away marks them first and then looks for references under the same lock, so one of the two sees the other.
//! The lock is taken once per batch: an atomic count per page would cost more than all the rest of an enqueue.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use crate::id::DomId;

/// A count for each page of a domain.
#[derive(Debug)]
pub struct PageReferences {
    counts: Mutex<Box<[u32]>>,
}

impl PageReferences {
    /// All counts are 0.
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

    /// Whether any of these pages has references. Ask after the pages were marked as taken away.
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

    /// Drops a reference to each of some pages, which the card has finished with.
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

    /// Registers `user`, which is asked from now on to drop references to pages that the domain gives
    /// up. Call it before `user` takes any.
    fn attach(&self, user: Weak<dyn PageUser>);
}

/// A user of a domain's pages, as the domain sees it.
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
