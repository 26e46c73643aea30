//! A domain's pages in the machine's address space, as cards reach them.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use hypervisor::{DomId, PageReferences, PageUser};

use super::{CHECK_INTERVAL, GRACE};
use crate::memory::{BLOCK_PAGES, MemorySize};

/// The longest pause between two checks for references.
const PAUSE_MAX: Duration = Duration::from_millis(10);

/// Gives each domain its machine pages. No page is given twice: an address of a domain that ended stays invalid.
#[derive(Debug)]
pub(crate) struct MachinePages {
    next: u64,
}

impl Default for MachinePages {
    /// Block 0 is reserved, so address 0 is invalid.
    fn default() -> Self {
        Self { next: BLOCK_PAGES as u64 }
    }
}

impl MachinePages {
    /// The first page of a domain of this size. It begins at a multiple of 2 MiB.
    pub(crate) fn allot(&mut self, size: MemorySize) -> u64 {
        let pages = size.pages.saturating_add(size.exchange_pages);
        let first = self.next;
        self.next += pages.next_multiple_of(BLOCK_PAGES) as u64;
        first
    }
}

/// Where a domain's pages lie, who uses them, and the references to them.
#[derive(Debug)]
pub(crate) struct DmaPages {
    first: u64,
    /// Made when a card first asks for them: most domains have no context.
    references: OnceLock<PageReferences>,
    users: Mutex<Vec<Weak<dyn PageUser>>>,
}

impl DmaPages {
    /// Pages from `first` on, without references.
    pub(crate) fn new(first: u64) -> Self {
        Self { first, references: OnceLock::new(), users: Mutex::default() }
    }

    pub(crate) fn first(&self) -> u64 {
        self.first
    }

    /// The references to the domain's pages, which number `pages`.
    #[inline]
    pub(crate) fn references(&self, pages: usize) -> &PageReferences {
        self.references.get_or_init(|| PageReferences::new(pages))
    }

    /// Adds a user, which is asked to drop references to pages that are given up.
    pub(crate) fn attach(&self, user: Weak<dyn PageUser>, pages: usize) {
        let mut users = self.lock();
        // Made while the list is locked: whoever finds a user in the list finds the references too.
        self.references(pages);
        users.retain(|other| other.strong_count() > 0 && !Weak::ptr_eq(other, &user));
        users.push(user);
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn PageUser>>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn users(&self) -> Vec<Arc<dyn PageUser>> {
        self.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Waits until there are no references to pages that are marked as out. Returns whether they
    /// ended in time.
    pub(crate) fn reclaim(&self, domain: DomId, pages: &Range<usize>) -> bool {
        // A card that is attached after this sees the mark: both lock the list.
        let users = self.users();
        let Some(references) = self.references.get() else { return true };
        let deadline = Instant::now() + GRACE;
        let mut pause = CHECK_INTERVAL;
        loop {
            users.iter().for_each(|user| user.reclaim(domain, pages.clone()));
            if !references.any(pages.clone()) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            // The pause grows: a guest can ask for this at any rate, and each check takes the lock of every context.
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }

    /// Tells the users that the domain has these pages again, or keeps them.
    pub(crate) fn restore(&self, domain: DomId, pages: &Range<usize>) {
        self.users().iter().for_each(|user| user.restore(domain, pages.clone()));
    }
}

#[cfg(test)]
mod tests;
