//! What a domain has given up of its memory, as the hypervisor counts it.
//!
//! Pages that are out have no memory behind them and can not be granted: a worker that writes to
//! one would take it back behind everybody's back.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::MemorySize;

mod reservation;

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
