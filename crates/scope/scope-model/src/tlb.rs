//! Many fully associative TLBs at once: every size under every policy.
//!
//! All of them see the same pages in the same order, so one LRU list of pages serves them all. Each page has one bit for
//! every TLB that it is resident in. A TLB's victim is the last page of the list with the TLB's bit. This is exact for any
//! flush, since a flush clears bits and keeps the order. (Stack distances would not be: an entry flushed from a large TLB
//! frees no entry of a small one.)
//!
//! A page in use can be pinned: it is then in no list, and its owner knows the order of uses. When it is unpinned it becomes
//! the newest of the list.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::config::{TLB_SIZES, TLBS, TlbSet};

/// The index of a page's entry, which stays the same while it is [pinned](Tlb::pin).
pub type Entry = u32;
const NOWHERE: Entry = Entry::MAX;
/// The key of no page: keys have fewer bits.
const NO_KEY: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Page {
    key: u64,
    /// Its neighbours in the list.
    newer: Entry,
    older: Entry,
    /// The TLBs that it is resident in.
    resident: u64,
    /// The TLBs whose next victim it is.
    victim: u64,
    /// How often it is pinned.
    pins: u32,
}

/// Fully associative LRU TLBs of every size under every policy.
#[derive(Debug)]
pub struct Tlb {
    pages: Vec<Page>,
    free: Vec<Entry>,
    by_key: HashMap<u64, Entry, BuildHasherDefault<Fold>>,
    newest: Entry,
    /// The TLBs that are modelled.
    all: u64,
    capacity: [u16; TLBS],
    count: [u16; TLBS],
    victim: [Entry; TLBS],
    /// TLBs without a victim: all their entries are pinned.
    no_victim: u64,
}

impl Tlb {
    /// Empty TLBs of these sizes under each policy; only those of `all` are modelled.
    #[must_use]
    pub fn new(entries: [u16; TLB_SIZES], all: TlbSet) -> Self {
        Self {
            pages: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::default(),
            newest: NOWHERE,
            all: all.0,
            capacity: std::array::from_fn(|tlb| entries[tlb % TLB_SIZES]),
            count: [0; TLBS],
            victim: [NOWHERE; TLBS],
            no_victim: u64::MAX,
        }
    }

    /// Looks a page up in the TLBs of `tlbs`, which depend on the page alone. Returns those that missed. The page is
    /// resident in all of `tlbs` afterwards.
    pub fn access(&mut self, key: u64, tlbs: TlbSet) -> TlbSet {
        let (page, missed) = self.pin(key, tlbs, None);
        page.inspect(|page| self.unpin(*page));
        missed
    }

    /// As [`access`](Self::access), and pins the page's entry: while it is pinned it is newer than all that are not. At most
    /// as many entries may be pinned as the smallest TLB has. Returns no entry if none of `tlbs` is modelled. `hint` is the
    /// entry that the page had before; if it still is the page's, this saves a search.
    pub fn pin(&mut self, key: u64, tlbs: TlbSet, hint: Option<Entry>) -> (Option<Entry>, TlbSet) {
        let tlbs = tlbs.0 & self.all;
        let known = hint.filter(|page| self.is(*page, key));
        let page = match known.or_else(|| self.by_key.get(&key).copied()) {
            Some(page) => page,
            None if tlbs == 0 => return (None, TlbSet::NONE),
            None => self.insert(key),
        };
        let entry = &mut self.pages[page as usize];
        entry.pins += 1;
        let is_linked = entry.pins == 1 && entry.resident != 0;
        let missed = TlbSet(tlbs & !entry.resident);
        entry.resident |= tlbs;
        if is_linked {
            self.remove_from_list(page);
        }
        for tlb in missed.numbers() {
            self.count[tlb] += 1;
            // There is no victim if all are pinned, as when a page became global without a flush.
            if self.count[tlb] > self.capacity[tlb] && self.victim[tlb] != NOWHERE {
                self.remove(self.victim[tlb], 1 << tlb);
            }
        }
        (Some(page), missed)
    }

    fn is(&self, page: Entry, key: u64) -> bool {
        self.pages.get(page as usize).is_some_and(|page| page.key == key)
    }

    /// Unpins an entry. Unless it is pinned another time, it becomes the newest of those that are not.
    pub fn unpin(&mut self, page: Entry) {
        let entry = &mut self.pages[page as usize];
        entry.pins -= 1;
        if entry.pins > 0 {
            return;
        }
        let first_of = entry.resident & self.no_victim;
        entry.victim = first_of;
        self.no_victim &= !first_of;
        for tlb in TlbSet(first_of).numbers() {
            self.victim[tlb] = page;
        }
        self.link(page);
    }

    /// Removes an entry from the list, but from no TLB.
    fn remove_from_list(&mut self, page: Entry) {
        for tlb in TlbSet(self.pages[page as usize].victim).numbers() {
            self.replace_victim(tlb, page);
        }
        self.unlink(page);
    }

    /// Removes a page from the TLBs of `tlbs`. No entry is pinned.
    pub fn invalidate(&mut self, key: u64, tlbs: TlbSet) {
        if let Some(page) = self.by_key.get(&key).copied() {
            self.remove(page, tlbs.0 & self.pages[page as usize].resident);
        }
    }

    /// Removes each page from the TLBs that `removed` returns for its key. No entry is pinned.
    pub fn flush(&mut self, mut removed: impl FnMut(u64) -> TlbSet) {
        let (mut page, mut oldest, mut lost) = (self.newest, NOWHERE, 0);
        while page != NOWHERE {
            let entry = &mut self.pages[page as usize];
            let (this, older) = (page, entry.older);
            let gone = removed(entry.key).0 & entry.resident;
            entry.resident &= !gone;
            lost |= entry.victim & gone;
            entry.victim &= !gone;
            let is_empty = entry.resident == 0;
            for tlb in TlbSet(gone).numbers() {
                self.count[tlb] -= 1;
            }
            if is_empty {
                self.unlink(this);
                self.drop_page(this);
            } else {
                oldest = this;
            }
            page = older;
        }
        self.find_victims(oldest, lost);
    }

    /// Makes the oldest resident entries, from `oldest` on, the victims of TLBs that have lost theirs.
    fn find_victims(&mut self, oldest: Entry, lost: u64) {
        for tlb in TlbSet(lost).numbers() {
            self.victim[tlb] = NOWHERE;
        }
        let (mut page, mut left) = (oldest, lost);
        while page != NOWHERE && left != 0 {
            let entry = &mut self.pages[page as usize];
            let first_of = entry.resident & left;
            entry.victim |= first_of;
            left &= !first_of;
            let newer = entry.newer;
            for tlb in TlbSet(first_of).numbers() {
                self.victim[tlb] = page;
            }
            page = newer;
        }
        self.no_victim |= left;
    }

    /// The TLBs that a page is resident in.
    #[must_use]
    pub fn resident(&self, key: u64) -> TlbSet {
        self.by_key
            .get(&key)
            .map_or(TlbSet::NONE, |page| TlbSet(self.pages[*page as usize].resident))
    }

    /// Removes an entry from TLBs that it is resident in.
    fn remove(&mut self, page: Entry, from: u64) {
        for tlb in TlbSet(from).numbers() {
            self.count[tlb] -= 1;
            if self.pages[page as usize].victim & (1 << tlb) != 0 {
                self.replace_victim(tlb, page);
            }
        }
        let entry = &mut self.pages[page as usize];
        entry.resident &= !from;
        if entry.resident == 0 {
            self.unlink(page);
            self.drop_page(page);
        }
    }

    /// Makes the next newer resident entry a TLB's victim instead of this one.
    fn replace_victim(&mut self, tlb: usize, page: Entry) {
        self.pages[page as usize].victim &= !(1 << tlb);
        let mut next = self.pages[page as usize].newer;
        while next != NOWHERE && self.pages[next as usize].resident & (1 << tlb) == 0 {
            next = self.pages[next as usize].newer;
        }
        self.victim[tlb] = next;
        if next == NOWHERE {
            self.no_victim |= 1 << tlb;
        } else {
            self.pages[next as usize].victim |= 1 << tlb;
        }
    }

    /// Makes an entry, in no list.
    fn insert(&mut self, key: u64) -> Entry {
        let page = Page { key, newer: NOWHERE, older: NOWHERE, resident: 0, victim: 0, pins: 0 };
        let index = match self.free.pop() {
            Some(index) => {
                self.pages[index as usize] = page;
                index
            }
            None => {
                self.pages.push(page);
                Entry::try_from(self.pages.len() - 1).unwrap_or(NOWHERE)
            }
        };
        self.by_key.insert(key, index);
        index
    }

    fn link(&mut self, page: Entry) {
        let older = std::mem::replace(&mut self.newest, page);
        let entry = &mut self.pages[page as usize];
        (entry.newer, entry.older) = (NOWHERE, older);
        if older != NOWHERE {
            self.pages[older as usize].newer = page;
        }
    }

    fn unlink(&mut self, page: Entry) {
        let Page { newer, older, .. } = self.pages[page as usize];
        match newer {
            NOWHERE => self.newest = older,
            newer => self.pages[newer as usize].older = older,
        }
        if older != NOWHERE {
            self.pages[older as usize].newer = newer;
        }
    }

    fn drop_page(&mut self, page: Entry) {
        let key = std::mem::replace(&mut self.pages[page as usize].key, NO_KEY);
        self.by_key.remove(&key);
        self.free.push(page);
    }
}

/// A hash of one number. Keys differ in their lower bits mostly.
#[derive(Default)]
struct Fold(u64);

impl Hasher for Fold {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    #[inline]
    fn write_u64(&mut self, number: u64) {
        // The hash table uses both the upper and the lower bits.
        let product = u128::from(number) * 0x9e37_79b9_7f4a_7c15;
        #[expect(clippy::cast_possible_truncation, reason = "both halves are used")]
        let folded = (product >> 64) as u64 ^ product as u64;
        self.0 = folded;
    }
}
