//! Many fully associative TLBs at once: every size under every policy.
//!
//! All of them see the same pages in the same order, so one list of pages, the most recently used
//! first, serves them all; each page has a bit for every TLB that it is resident in. A TLB's
//! victim is the last page of the list with its bit. That is exact for any flush, since a
//! flush clears bits and leaves the order (a stack distance would not: what is flushed from a
//! large TLB leaves no room in a small one).
//!
//! Pages that are used now can be held: they are in no list, and whoever holds them knows their order. When one is
//! let go it is the newest of the list.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::config::TLB_SIZES;
use crate::policy::{POLICIES, Policy};

/// TLBs, a bit each: those of a policy are neighbours, the smallest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mask(pub u64);

const COUNT: usize = TLB_SIZES * POLICIES.len();

impl Mask {
    /// None.
    pub const NONE: Self = Self(0);
    /// All.
    pub const ALL: Self = Self((1 << COUNT) - 1);

    /// All sizes of one policy.
    #[must_use]
    pub const fn of(policy: Policy) -> Self {
        Self(((1 << TLB_SIZES) - 1) << (policy as usize * TLB_SIZES))
    }

    /// One TLB.
    #[must_use]
    pub const fn one(policy: Policy, size: usize) -> Self {
        Self(1 << (policy as usize * TLB_SIZES + size))
    }

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// These without those.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether this has any of those.
    #[must_use]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The numbers of its TLBs.
    fn numbers(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            (left != 0).then(|| {
                let number = left.trailing_zeros() as usize;
                left &= left - 1;
                number
            })
        })
    }
}

/// A page that is [held](Tlb::hold).
pub type Index = u32;
const NOWHERE: Index = Index::MAX;
/// No page's name: they have fewer bits.
const NO_KEY: u64 = u64::MAX;

#[derive(Clone, Copy, Debug)]
struct Page {
    key: u64,
    /// Whether a flush that spares global pages spares it.
    global: bool,
    /// Nearer to the front, and to the back.
    newer: Index,
    older: Index,
    /// Where it is resident.
    resident: u64,
    /// Whose next victim it is.
    victim: u64,
    /// How often it is held.
    holds: u32,
}

/// The TLBs.
#[derive(Debug)]
pub struct Tlb {
    pages: Vec<Page>,
    free: Vec<Index>,
    by_key: HashMap<u64, Index, BuildHasherDefault<Fold>>,
    newest: Index,
    /// Those that are simulated at all.
    all: u64,
    capacity: [u16; COUNT],
    count: [u16; COUNT],
    victim: [Index; COUNT],
    /// Those that have no victim: all their pages are held.
    no_victim: u64,
}

impl Tlb {
    /// Empty TLBs, of these sizes under each policy; only those of `all` are simulated.
    #[must_use]
    pub fn new(entries: [u16; TLB_SIZES], all: Mask) -> Self {
        Self {
            pages: Vec::new(),
            free: Vec::new(),
            by_key: HashMap::default(),
            newest: NOWHERE,
            all: all.0,
            capacity: std::array::from_fn(|tlb| entries[tlb % TLB_SIZES]),
            count: [0; COUNT],
            victim: [NOWHERE; COUNT],
            no_victim: u64::MAX,
        }
    }

    /// Uses a page in the TLBs of `mask`, which depends on the page alone. Answers those that missed; it
    /// is resident in all of `mask` now.
    pub fn access(&mut self, key: u64, global: bool, mask: Mask) -> Mask {
        let (page, missed) = self.hold(key, global, mask, None);
        page.inspect(|page| self.release(*page));
        missed
    }

    /// The same, and holds the page: as long as it is, it is newer than all that are not. No more may be held than
    /// the smallest TLB has entries. There is no page where the TLBs are not simulated. `hint` is what the page was when
    /// it was held before: where that is so still, it has not to be looked for.
    pub fn hold(
        &mut self,
        key: u64,
        global: bool,
        mask: Mask,
        hint: Option<Index>,
    ) -> (Option<Index>, Mask) {
        let mask = mask.0 & self.all;
        let known = hint.filter(|page| self.is(*page, key));
        let page = match known.or_else(|| self.by_key.get(&key).copied()) {
            Some(page) => page,
            None if mask == 0 => return (None, Mask::NONE),
            None => self.insert(key),
        };
        let entry = &mut self.pages[page as usize];
        entry.global = global;
        entry.holds += 1;
        let is_linked = entry.holds == 1 && entry.resident != 0;
        let missed = Mask(mask & !entry.resident);
        entry.resident |= mask;
        if is_linked {
            self.take_out(page);
        }
        for tlb in missed.numbers() {
            self.count[tlb] += 1;
            // All may be held where a page became global without a flush: there is no victim then.
            if self.count[tlb] > self.capacity[tlb] && self.victim[tlb] != NOWHERE {
                self.remove(self.victim[tlb], 1 << tlb);
            }
        }
        (Some(page), missed)
    }

    fn is(&self, page: Index, key: u64) -> bool {
        self.pages.get(page as usize).is_some_and(|page| page.key == key)
    }

    /// Lets a page go: unless it is held another time, it is the newest of those that are not.
    pub fn release(&mut self, page: Index) {
        let entry = &mut self.pages[page as usize];
        entry.holds -= 1;
        if entry.holds > 0 {
            return;
        }
        let first_of = entry.resident & self.no_victim;
        entry.victim = first_of;
        self.no_victim &= !first_of;
        for tlb in Mask(first_of).numbers() {
            self.victim[tlb] = page;
        }
        self.link(page);
    }

    /// Takes a page out of the list, but out of no TLB.
    fn take_out(&mut self, page: Index) {
        for tlb in Mask(self.pages[page as usize].victim).numbers() {
            self.pass_on(tlb, page);
        }
        self.unlink(page);
    }

    /// Takes a page out of the TLBs of `mask`. None is held.
    pub fn invalidate(&mut self, key: u64, mask: Mask) {
        if let Some(page) = self.by_key.get(&key).copied() {
            self.remove(page, mask.0 & self.pages[page as usize].resident);
        }
    }

    /// Empties the TLBs of `mask`, of the pages that `goes` says; it is told a page's key and whether
    /// it is global.
    pub fn flush(&mut self, mask: Mask, mut goes: impl FnMut(u64, bool) -> bool) {
        for tlb in Mask(mask.0 & self.all).numbers() {
            self.count[tlb] = 0;
            self.victim[tlb] = NOWHERE;
            self.no_victim |= 1 << tlb;
        }
        let mut page = self.newest;
        while page != NOWHERE {
            let entry = &mut self.pages[page as usize];
            let (this, older) = (page, entry.older);
            entry.victim &= !mask.0;
            if goes(entry.key, entry.global) {
                entry.resident &= !mask.0;
            }
            for tlb in Mask(entry.resident & mask.0).numbers() {
                self.count[tlb] += 1;
                // The last that is seen stays.
                self.victim[tlb] = this;
            }
            if self.pages[this as usize].resident == 0 {
                self.unlink(this);
                self.drop_page(this);
            }
            page = older;
        }
        for tlb in Mask(mask.0 & self.all).numbers() {
            if self.victim[tlb] != NOWHERE {
                self.pages[self.victim[tlb] as usize].victim |= 1 << tlb;
                self.no_victim &= !(1 << tlb);
            }
        }
    }

    /// Where a page is resident.
    #[must_use]
    pub fn resident(&self, key: u64) -> Mask {
        self.by_key.get(&key).map_or(Mask::NONE, |page| Mask(self.pages[*page as usize].resident))
    }

    /// Takes a page out of TLBs that it is resident in.
    fn remove(&mut self, page: Index, from: u64) {
        for tlb in Mask(from).numbers() {
            self.count[tlb] -= 1;
            if self.pages[page as usize].victim & (1 << tlb) != 0 {
                self.pass_on(tlb, page);
            }
        }
        let entry = &mut self.pages[page as usize];
        entry.resident &= !from;
        if entry.resident == 0 {
            self.unlink(page);
            self.drop_page(page);
        }
    }

    /// Makes the next newer resident page a TLB's victim in the place of this one.
    fn pass_on(&mut self, tlb: usize, page: Index) {
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

    /// A page in no list.
    fn insert(&mut self, key: u64) -> Index {
        let page = Page {
            key,
            global: false,
            newer: NOWHERE,
            older: NOWHERE,
            resident: 0,
            victim: 0,
            holds: 0,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.pages[index as usize] = page;
                index
            }
            None => {
                self.pages.push(page);
                Index::try_from(self.pages.len() - 1).unwrap_or(NOWHERE)
            }
        };
        self.by_key.insert(key, index);
        index
    }

    fn link(&mut self, page: Index) {
        let older = std::mem::replace(&mut self.newest, page);
        let entry = &mut self.pages[page as usize];
        (entry.newer, entry.older) = (NOWHERE, older);
        if older != NOWHERE {
            self.pages[older as usize].newer = page;
        }
    }

    fn unlink(&mut self, page: Index) {
        let Page { newer, older, .. } = self.pages[page as usize];
        match newer {
            NOWHERE => self.newest = older,
            newer => self.pages[newer as usize].older = older,
        }
        if older != NOWHERE {
            self.pages[older as usize].newer = newer;
        }
    }

    fn drop_page(&mut self, page: Index) {
        let key = std::mem::replace(&mut self.pages[page as usize].key, NO_KEY);
        self.by_key.remove(&key);
        self.free.push(page);
    }
}

/// A hash of one number: the keys are pages', whose lower bits differ.
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
        // The table takes the upper bits for one thing and the lower for another.
        let product = u128::from(number) * 0x9e37_79b9_7f4a_7c15;
        #[expect(clippy::cast_possible_truncation, reason = "both halves are taken")]
        let folded = (product >> 64) as u64 ^ product as u64;
        self.0 = folded;
    }
}
