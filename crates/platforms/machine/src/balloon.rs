//! The pages that a domain has given up, as the hypervisor counts them.
//!
//! Such pages are "out": they have no memory and cannot be granted. A worker that wrote to one
//! would allocate it again, uncounted.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::memory::MemorySize;

mod reservation;

/// Which of a domain's ordinary pages are out.
pub(crate) struct Balloon {
    /// How many. While there are none, the bits are not read.
    out: AtomicUsize,
    /// A bit for each page.
    pages: Box<[AtomicU64]>,
    /// Held while they change.
    changing: Mutex<()>,
}

impl Balloon {
    /// With nothing out.
    pub(crate) fn new(size: MemorySize) -> Self {
        let pages = (0..size.pages.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { out: AtomicUsize::new(0), pages, changing: Mutex::new(()) }
    }

    /// Whether a page is out. Its number is below the domain's pages.
    #[inline]
    pub(crate) fn is_out(&self, page: usize) -> bool {
        // Acquire: a thread that sees the count sees the bits.
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
