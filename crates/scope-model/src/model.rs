//! The processor.

use std::collections::HashMap;
use std::ops::Range;

use crate::cache::{Cache, WAYS};
use crate::config::{Config, LINE, TLB_ENTRIES, TLB_SIZES};
use crate::keys::{self, GLOBAL, Tags};
use crate::paging::{PageSize, Paging};
use crate::policy::Policy;
use crate::recent::{Held, Recent};
use crate::tlb::{Mask, Tlb};
use crate::walker::{KNOWN, Mapping, Side, place};

/// Xen's own part of every address space (`xen/arch/x86/include/asm/config.h`).
const HYPERVISOR: Range<u64> = 0xffff_8000_0000_0000..0xffff_8800_0000_0000;

/// What came of the use of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The TLBs that did not have its page.
    pub pages: Mask,
    /// Its physical number.
    pub line: u64,
    /// Whether L1 did not have it, so that the [L2s](crate::Second) are to be asked.
    pub missed: bool,
}

/// Why TLBs are emptied, of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flush {
    /// CR3 was written: this is its new value.
    Cr3(u64),
    /// CR4 was written: this is its new value.
    Cr4(u64),
    /// INVLPG of this address.
    Page(u64),
    /// INVPCID: its type, the PCID, the address.
    Pcid(u64, u16, u64),
}

/// No line: addresses have fewer bits.
const NONE: u64 = u64::MAX;
/// What is known of a page that nobody has told of.
const NOWHERE: Mapping = Mapping { frame: 0, size: None, global: false, large: Mask::NONE };

/// The TLBs of one kind of access.
#[derive(Debug)]
struct Bank {
    /// What was told of pages, by their places.
    mappings: Box<[(u64, Mapping)]>,
    recent: Recent,
    small: Tlb,
    large: Tlb,
}

impl Bank {
    fn new(all: Mask) -> Self {
        let half = TLB_ENTRIES.map(|entries| entries / 2);
        let (small, large) = (Tlb::new(TLB_ENTRIES, all), Tlb::new(half, all));
        Self { mappings: vec![(NONE, NOWHERE); KNOWN].into(), recent: Recent::new(), small, large }
    }

    fn of(&mut self, is_large: bool) -> &mut Tlb {
        if is_large { &mut self.large } else { &mut self.small }
    }

    fn both(&mut self) -> [&mut Tlb; 2] {
        [&mut self.small, &mut self.large]
    }

    fn mapping(&self, page: u64) -> Option<Mapping> {
        let (known, mapping) = self.mappings[place(page)];
        (known == page).then_some(mapping)
    }

    /// Uses a page that is none of the recent ones. Answers which TLBs missed.
    #[cold]
    fn turn(&mut self, page: u64, space: u16) -> Mask {
        // Whoever uses a page has told of it.
        let mapping = self.mapping(page).unwrap_or(NOWHERE);
        self.enter(page, &mapping, space)
    }

    fn enter(&mut self, page: u64, mapping: &Mapping, space: u16) -> Mask {
        for held in self.recent.make_room().into_iter().flatten() {
            self.release(held);
        }
        let Some(size) = mapping.size else {
            self.recent.put(page, mapping.frame, [None; 3]);
            return Mask::NONE;
        };
        let (address, global) = (page << 12, mapping.global);
        let tag = if global { GLOBAL } else { space };
        let mut own = Mask::ALL.without(mapping.large);
        let (mut held, mut missed) = ([None; 3], Mask::NONE);
        let mut hold = |slot: usize, size, tag, global, mask| {
            let is_large = size != PageSize::Small;
            let tlb = if is_large { &mut self.large } else { &mut self.small };
            let (page, these) = tlb.hold(keys::key(address, size, tag), global, mask);
            held[slot] = page.map(|page| (is_large, page));
            missed = missed.and(these);
        };
        if mapping.large != Mask::NONE {
            hold(0, PageSize::Large, tag, global, mapping.large);
        }
        if !global && HYPERVISOR.contains(&address) {
            let policy = Mask::of(Policy::GlobalHypervisor);
            own = own.without(policy);
            hold(1, size, GLOBAL, true, policy);
        }
        hold(2, size, tag, global, own);
        self.recent.put(page, mapping.frame, held);
        missed
    }

    fn release(&mut self, (is_large, page): Held) {
        self.of(is_large).release(page);
    }

    /// Lets all pages go, so that the TLBs know the order of their uses.
    fn settle(&mut self) {
        for held in self.recent.take_all() {
            self.release(held);
        }
    }
}

/// The L1s of a processor, and its TLBs in all sizes and under all policies.
#[derive(Debug)]
pub struct Model {
    config: Config,
    paging: Paging,
    tags: Tags,
    tag: u16,
    l1i: Cache,
    l1d: Cache,
    itlb: Bank,
    dtlb: Bank,
    /// The last line of code and that of data, virtual.
    code: u64,
    data: u64,
    /// What the TLB of a real processor of the largest size would hold, to be compared with the
    /// truth.
    shadow: Option<HashMap<u64, u64>>,
}

impl Model {
    /// A processor whose L1s and TLBs are empty. The numbers of all physical lines are below `lines`:
    /// [`Walker::lines`](crate::Walker::lines).
    #[must_use]
    pub fn new(config: Config, paging: Paging, lines: u64) -> Self {
        let all = if config.single { config.counted() } else { Mask::ALL };
        let mut tags = Tags::default();
        let (tag, _) = tags.of(paging);
        Self {
            config,
            paging,
            tags,
            tag,
            l1i: Cache::new(config.l1_bytes, lines),
            l1d: Cache::new(config.l1_bytes, lines),
            itlb: Bank::new(all),
            dtlb: Bank::new(all),
            code: NONE,
            data: NONE,
            shadow: None,
        }
    }

    /// What it is.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Has hits of the DTLB remember what they hit, for [`claimed`](Self::claimed).
    pub fn remember_hits(&mut self) {
        self.shadow = Some(HashMap::new());
    }

    /// Tells where a page lies, before it is used: what a [`Walker`](crate::Walker) finds.
    pub fn map(&mut self, side: Side, page: u64, mapping: Mapping) {
        let bank = if side == Side::Code { &mut self.itlb } else { &mut self.dtlb };
        bank.mappings[place(page)] = (page, mapping);
    }

    /// Fetches a line of code, by its virtual number.
    #[inline]
    pub fn fetch(&mut self, line: u64) -> Use {
        self.code = line;
        let page = line >> PAGE_LINE_BITS;
        let in_tlbs = self.itlb.recent.turn(page);
        let pages = if in_tlbs { Mask::NONE } else { self.itlb.turn(page, self.tag) };
        let physical = self.itlb.recent.latest_frame() + (line & LINES_OF_PAGE);
        Use { pages, line: physical, missed: self.l1i.access(physical) == WAYS }
    }

    /// Whether code is in the line that code was in before, so that nothing changes.
    #[inline]
    #[must_use]
    pub fn is_same_code(&self, line: u64) -> bool {
        line == self.code
    }

    /// Whether data is in the line that data was in before, so that nothing changes.
    #[inline]
    #[must_use]
    pub fn is_same_data(&self, line: u64) -> bool {
        line == self.data
    }

    /// Reads or writes a line of data, by its virtual number.
    #[inline]
    pub fn data(&mut self, line: u64) -> Use {
        self.data = line;
        let page = line >> PAGE_LINE_BITS;
        let in_tlbs = self.dtlb.recent.turn(page);
        let pages = if in_tlbs { Mask::NONE } else { self.turn_data_page(page) };
        let physical = self.dtlb.recent.latest_frame() + (line & LINES_OF_PAGE);
        Use { pages, line: physical, missed: self.l1d.access(physical) == WAYS }
    }

    #[cold]
    fn turn_data_page(&mut self, page: u64) -> Mask {
        let missed = self.dtlb.turn(page, self.tag);
        if self.shadow.is_some()
            && let Some(mapping) = self.dtlb.mapping(page)
        {
            self.remember(page, &mapping, missed);
        }
        missed
    }

    /// What the largest of the processor's TLBs holds since its miss is what its hits are taken for, if
    /// hits are [remembered](Self::remember_hits).
    fn remember(&mut self, page: u64, mapping: &Mapping, missed: Mask) {
        let (Some(shadow), Some(size)) = (&mut self.shadow, mapping.size) else { return };
        let tag = if mapping.global { GLOBAL } else { self.tag };
        let key = keys::key(page << 12, size, tag);
        // The page's first line, if it began where this part of it does.
        let part = (page << PAGE_LINE_BITS) & ((1 << (size.bits() - LINE.ilog2())) - 1);
        let base = mapping.frame.wrapping_sub(part);
        let largest = Mask::one(Policy::Real, TLB_SIZES - 1);
        let single = self.config.single.then_some(self.config.counted());
        if missed.meets(single.unwrap_or(largest)) {
            shadow.insert(key, base);
        } else if let Some(held) = shadow.get(&key) {
            self.dtlb.recent.set_frame(held.wrapping_add(part));
        }
    }

    /// Where the model takes the last data to be, physically, to be compared with where it is.
    pub fn claimed(&self, address: u64) -> u64 {
        self.dtlb.recent.latest_frame() * LINE as u64 + address % 4096
    }

    /// Takes notice of what empties TLBs.
    pub fn flush(&mut self, what: Flush) {
        self.itlb.settle();
        self.dtlb.settle();
        (self.code, self.data) = (NONE, NONE);
        let globals = self.paging.write(what);
        match what {
            Flush::Cr3(value) => self.switch_space(value >> 63 != 0),
            Flush::Cr4(_) if globals => self.forget(true, None),
            Flush::Cr4(_) => {}
            Flush::Page(address) | Flush::Pcid(0, _, address) => self.invalidate(address),
            Flush::Pcid(1, pcid, _) => self.forget(false, Some(pcid)),
            Flush::Pcid(..) => self.forget(globals, None),
        }
    }

    /// A new address space; with PCIDs it may keep what it had.
    fn switch_space(&mut self, keeps: bool) {
        let Paging { pcid, tagged, .. } = self.paging;
        let (tag, reused) = self.tags.of(self.paging);
        self.tag = tag;
        if reused {
            self.flush_banks(Mask::ALL, |key, _| keys::tag(key) == tag);
        }
        if keeps && tagged {
            return;
        }
        let (mut banks, tags) = ([&mut self.itlb, &mut self.dtlb], &self.tags);
        let of_this =
            |key| !tagged || tags.space(keys::tag(key)).is_some_and(|(_, own)| own == pcid);
        for tlb in banks.iter_mut().flat_map(|bank| bank.both()) {
            tlb.flush(FOLLOW_CR3, |key, global| !global && of_this(key));
            tlb.flush(Mask::of(Policy::NoGlobal), |key, global| global || of_this(key));
        }
    }

    /// Empties all TLBs but of global pages, or of them too; of one PCID, or of all.
    fn forget(&mut self, globals: bool, pcid: Option<u16>) {
        let tags = &self.tags;
        let of_it = |key| match pcid {
            Some(pcid) => tags.space(keys::tag(key)).is_some_and(|(_, own)| own == pcid),
            None => true,
        };
        let mut banks = [&mut self.itlb, &mut self.dtlb];
        for tlb in banks.iter_mut().flat_map(|bank| bank.both()) {
            tlb.flush(Mask::ALL, |key, global| (globals || !global) && of_it(key));
        }
    }

    fn flush_banks(&mut self, mask: Mask, goes: impl Fn(u64, bool) -> bool) {
        let mut banks = [&mut self.itlb, &mut self.dtlb];
        for tlb in banks.iter_mut().flat_map(|bank| bank.both()) {
            tlb.flush(mask, &goes);
        }
    }

    /// One page, whatever its size; global or of this address space.
    fn invalidate(&mut self, address: u64) {
        for tag in [self.tag, GLOBAL] {
            for size in [PageSize::Small, PageSize::Large, PageSize::Huge] {
                let key = keys::key(address, size, tag);
                let is_large = size != PageSize::Small;
                self.itlb.of(is_large).invalidate(key, Mask::ALL);
                self.dtlb.of(is_large).invalidate(key, Mask::ALL);
            }
        }
    }
}

/// The policies that a new CR3 empties, but of what is global.
const FOLLOW_CR3: Mask = Mask::of(Policy::Real)
    .and(Mask::of(Policy::GlobalHypervisor))
    .and(Mask::of(Policy::Superpages))
    .and(Mask::of(Policy::GroupedSuperpages));

const PAGE_LINE_BITS: u32 = 6;
const LINES_OF_PAGE: u64 = (1 << PAGE_LINE_BITS) - 1;
