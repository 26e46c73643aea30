//! A context's translation table, in memory that the daemon writes and the card reads.
//!
//! ```text
//!    0  requested, and from 64 on the requests: see `invalidation`
//!    8  the I/O virtual page of the first entry, a u64
//!   16  how many entries, a u32
//! 4096  the entries, a u64 each
//! ```

use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use shm::{OutOfBounds, Region};

use crate::entry::Entry;

const FIRST: usize = 8;
const PAGES: usize = 16;
const ENTRIES: usize = 4096;
const WORD_LEN: usize = size_of::<u64>();

/// A table as the card sees it.
pub trait ReadTable {
    /// The I/O virtual page of its first entry.
    fn first(&self) -> u64;
    /// How many pages it has entries for.
    fn pages(&self) -> u32;
    /// The entry of a page below [`pages`](Self::pages), in one read (acquire).
    fn load(&self, page: u32) -> Entry;
}

/// A table as the daemon sees it.
pub trait WriteTable: ReadTable {
    /// Changes the entry of a page below [`pages`](ReadTable::pages), in one write (release).
    fn store(&self, page: u32, entry: Entry);
}

/// Bytes of the region of a table for so many pages: whole pages.
#[must_use]
pub fn table_len(pages: u32) -> usize {
    ENTRIES + (pages as usize * WORD_LEN).next_multiple_of(ENTRIES)
}

/// A table in a region. The card may map the region read-only.
#[derive(Debug)]
pub struct RegionTable<R> {
    region: R,
    first: u64,
    pages: u32,
}

impl<R: Deref<Target = Region>> RegionTable<R> {
    /// The daemon's side of a fresh region, all zero, of at least [`table_len`] bytes.
    pub fn create(region: R, first: u64, pages: u32) -> Result<Self, OutOfBounds> {
        region.write(FIRST, first)?;
        region.write(PAGES, pages)?;
        Self::open(region)
    }

    /// The card's side.
    pub fn open(region: R) -> Result<Self, OutOfBounds> {
        let (first, pages) = (region.read(FIRST)?, region.read(PAGES)?);
        // Checked once here, so that no access below can fail.
        let (len, size) = (table_len(pages), region.len());
        match size.checked_sub(len) {
            Some(_) => Ok(Self { region, first, pages }),
            None => Err(OutOfBounds { offset: 0, len, size }),
        }
    }

    #[inline]
    #[expect(clippy::expect_used, reason = "open() checked that all words lie in the region")]
    fn word(&self, page: u32) -> &AtomicU64 {
        self.region.atomic_u64(ENTRIES + page as usize * WORD_LEN).expect("a page of this table")
    }
}

impl<R: Deref<Target = Region>> ReadTable for RegionTable<R> {
    fn first(&self) -> u64 {
        self.first
    }

    #[inline]
    fn pages(&self) -> u32 {
        self.pages
    }

    #[inline]
    fn load(&self, page: u32) -> Entry {
        Entry::from_word(self.word(page).load(Ordering::Acquire))
    }
}

impl<R: Deref<Target = Region>> WriteTable for RegionTable<R> {
    fn store(&self, page: u32, entry: Entry) {
        self.word(page).store(entry.word(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::entry::Permission;

    #[test]
    fn the_card_finds_what_the_daemon_made() {
        let region = Arc::new(Region::anonymous(table_len(513)).unwrap());
        assert_eq!(region.len(), 3 * 4096);
        assert!(RegionTable::create(region.clone(), 7, 1025).is_err());
        let table = RegionTable::create(region.clone(), 7, 513).unwrap();
        let card = RegionTable::open(region).unwrap();
        assert_eq!((card.first(), card.pages()), (7, 513));
        let entry = Entry::new(3, Permission::Read).unwrap();
        table.store(512, entry);
        assert_eq!((card.load(512), card.load(511)), (entry, Entry::EMPTY));
    }
}
