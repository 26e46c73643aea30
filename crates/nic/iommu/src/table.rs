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

/// Bytes of the region of a table for `pages` pages, rounded up to whole pages.
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

/// Machine pages that an entry can name: addresses have 64 bits.
pub const MACHINE_PAGES: u64 = 1 << 52;

/// What the card does with a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// It reads: transmission.
    Read,
    /// It writes: reception.
    Write,
}

/// What the card may do with a mapped page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Only read.
    Read,
    /// Only write.
    Write,
    /// Both.
    ReadWrite,
}

impl Permission {
    const fn bits(self) -> u64 {
        match self {
            Self::Read => Entry::READ,
            Self::Write => Entry::WRITE,
            Self::ReadWrite => Entry::READ | Entry::WRITE,
        }
    }
}

/// The entry of one page, as its word in the table: the machine page in bits 12 to 63, flags below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entry(u64);

impl Entry {
    const VALID: u64 = 1;
    const READ: u64 = 1 << 1;
    const WRITE: u64 = 1 << 2;
    /// Unmapped, and not yet given back. The card does not look at this bit.
    const PENDING: u64 = 1 << 3;
    const PAGE_SHIFT: u32 = 12;

    /// No page.
    pub const EMPTY: Self = Self(0);

    /// A mapping of a machine page. None if the page's number is not below [`MACHINE_PAGES`].
    #[must_use]
    pub const fn new(machine_page: u64, permission: Permission) -> Option<Self> {
        if machine_page < MACHINE_PAGES {
            Some(Self(machine_page << Self::PAGE_SHIFT | permission.bits() | Self::VALID))
        } else {
            None
        }
    }

    /// The entry of a word.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self(word)
    }

    /// Its word.
    #[inline]
    #[must_use]
    pub const fn word(self) -> u64 {
        self.0
    }

    /// The machine page. Only meaningful if the entry is valid or pending.
    #[inline]
    #[must_use]
    pub const fn machine_page(self) -> u64 {
        self.0 >> Self::PAGE_SHIFT
    }

    /// Whether the card may use it.
    #[inline]
    #[must_use]
    pub const fn is_valid(self) -> bool {
        self.0 & Self::VALID != 0
    }

    /// Whether its page was unmapped and is not yet given back.
    #[must_use]
    pub const fn is_pending(self) -> bool {
        self.0 & Self::PENDING != 0
    }

    /// Whether the card may use it for this access.
    #[inline]
    #[must_use]
    pub const fn permits(self, access: Access) -> bool {
        let needed = match access {
            Access::Read => Self::VALID | Self::READ,
            Access::Write => Self::VALID | Self::WRITE,
        };
        self.0 & needed == needed
    }

    /// The same page, unmapped.
    #[must_use]
    pub(crate) const fn unmapped(self) -> Self {
        Self(self.0 & !Self::VALID | Self::PENDING)
    }

    /// The entry before it was [unmapped](Self::unmapped).
    #[must_use]
    pub(crate) const fn mapped_again(self) -> Self {
        Self(self.0 & !Self::PENDING | Self::VALID)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

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

    #[test]
    fn an_entry_permits_what_it_says() {
        let read = Entry::new(7, Permission::Read).unwrap();
        assert!(read.permits(Access::Read) && !read.permits(Access::Write));
        let write = Entry::new(7, Permission::Write).unwrap();
        assert!(write.permits(Access::Write) && !write.permits(Access::Read));
        assert_eq!(write.machine_page(), 7);
        let last = Entry::new(MACHINE_PAGES - 1, Permission::ReadWrite).unwrap();
        assert_eq!(last.machine_page(), MACHINE_PAGES - 1);
        assert!(Entry::new(MACHINE_PAGES, Permission::Read).is_none());
    }

    #[test]
    fn an_unmapped_entry_permits_nothing_and_keeps_its_page() {
        let mapped = Entry::new(9, Permission::ReadWrite).unwrap();
        let entry = mapped.unmapped();
        assert_eq!(entry.mapped_again(), mapped);
        assert!(!entry.is_valid() && entry.is_pending());
        assert!(!entry.permits(Access::Read) && !entry.permits(Access::Write));
        assert_eq!(entry.machine_page(), 9);
        assert!(!Entry::EMPTY.is_valid() && !Entry::EMPTY.is_pending());
    }
}
