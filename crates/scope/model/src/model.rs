//! The processor.

use std::collections::HashMap;
use std::ops::Range;

use crate::cache::{Cache, WAYS};
use crate::config::{Config, LINE, TLB_ENTRIES, TLB_SIZES};
use crate::keys::{self, GLOBAL, Tags};
use crate::paging::{PageSize, Paging};
use crate::policy::Policy;
use crate::recent::{Held, PLACES, Recent};
use crate::tlb::{Mask, Tlb};
use crate::walker::{KNOWN, Mapping, Side};

/// Xen's own part of every address space (`xen/arch/x86/include/asm/config.h`).
const HYPERVISOR: Range<u64> = 0xffff_8000_0000_0000..0xffff_8800_0000_0000;

/// What came of the use of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The TLBs that did not have its page.
    pub pages: Mask,
    /// Its physical number.
    pub line: u64,
    /// Whether L1 did not have it, so that the [L2s](crate::Second) are to be asked.
    pub missed: bool,
}

/// A line of a page that was told of, named by the page's place and its own in the page: by its side and the lower
/// bits of its virtual number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line(u32);

impl Line {
    /// The bits of a line's number in its page.
    const OF_PAGE: u32 = 6;
    /// Those of its name but for the side.
    const LOWER: u32 = Self::OF_PAGE + KNOWN.ilog2();
    /// Those of its name.
    pub const BITS: u32 = Self::LOWER + 1;
    /// Those of an address that a name is made of.
    pub const ADDRESS_BITS: u32 = Self::LOWER + LINE.ilog2();

    /// The line of an address, of which the [lower bits](Self::ADDRESS_BITS) suffice.
    #[inline]
    #[must_use]
    pub fn of(side: Side, address: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "these bits")]
        let lower = (address / LINE as u64) as u32 & ((1 << Self::LOWER) - 1);
        Self(lower | (side as u32) << Self::LOWER)
    }

    /// The one so many lines further on, whatever page that is in.
    #[inline]
    #[must_use]
    pub fn after(self, lines: u16) -> Self {
        let lower = (1 << Self::LOWER) - 1;
        Self(self.0 & !lower | self.0.wrapping_add(lines.into()) & lower)
    }

    /// The name, in [so many bits](Self::BITS).
    #[inline]
    #[must_use]
    pub fn name(self) -> u32 {
        self.0
    }

    /// The line of a name.
    #[inline]
    #[must_use]
    pub fn named(name: u32) -> Self {
        Self(name & ((1 << Self::BITS) - 1))
    }

    /// Whether it is of data, else of code.
    #[inline]
    #[must_use]
    pub fn is_data(self) -> bool {
        self.side() == Side::Data as usize
    }

    /// The number of its [`Side`].
    #[inline]
    fn side(self) -> usize {
        (self.0 >> Self::LOWER) as usize
    }

    #[inline]
    fn place(self) -> usize {
        (self.0 >> Self::OF_PAGE) as usize
    }

    #[inline]
    fn of_page(self) -> u64 {
        u64::from(self.0 & ((1 << Self::OF_PAGE) - 1))
    }
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

/// What is known of a page that nobody has told of.
const NOWHERE: Mapping = Mapping { frame: 0, size: None, global: false, large: Mask::NONE };

/// The TLBs of one kind of access.
#[derive(Debug)]
struct Bank {
    small: Tlb,
    large: Tlb,
}

/// What is known of a page.
#[derive(Clone, Copy, Debug)]
struct Known {
    page: u64,
    mapping: Mapping,
    /// What the page here was in TLBs when it was used last: this one may still be it.
    held: [Option<Held>; 3],
}

impl Bank {
    fn new(all: Mask) -> Self {
        let half = TLB_ENTRIES.map(|entries| entries / 2);
        let (small, large) = (Tlb::new(TLB_ENTRIES, all), Tlb::new(half, all));
        Self { small, large }
    }

    fn of(&mut self, is_large: bool) -> &mut Tlb {
        if is_large { &mut self.large } else { &mut self.small }
    }

    fn both(&mut self) -> [&mut Tlb; 2] {
        [&mut self.small, &mut self.large]
    }

    /// Uses a page, and holds it: what it is in TLBs goes to `held`. Answers which of them missed.
    fn hold(&mut self, known: &Known, space: u16, held: &mut [Option<Held>; 3]) -> Mask {
        let Known { page, mapping, held: before } = *known;
        let Some(size) = mapping.size else { return Mask::NONE };
        let (address, global) = (page << 12, mapping.global);
        let tag = if global { GLOBAL } else { space };
        let (mut own, mut missed) = (Mask::ALL.without(mapping.large), Mask::NONE);
        let mut hold = |slot: usize, size, tag, global, mask| {
            let is_large = size != PageSize::Small;
            let hint = before[slot].map(|(_, page)| page);
            let key = keys::key(address, size, tag);
            let (page, these) = self.of(is_large).hold(key, global, mask, hint);
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
        missed
    }

    fn release(&mut self, (is_large, page): Held) {
        self.of(is_large).release(page);
    }
}

/// The L1s of a processor, and its TLBs in all sizes and under all policies.
#[derive(Debug)]
pub struct Model {
    config: Config,
    paging: Paging,
    tags: Tags,
    tag: u16,
    /// Of each side.
    l1: [Cache; 2],
    banks: [Bank; 2],
    /// What was told of pages, by their places.
    known: Box<[Known]>,
    recent: Recent,
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
            l1: [(); 2].map(|()| Cache::new(config.l1_bytes, lines)),
            banks: [(); 2].map(|()| Bank::new(all)),
            known: vec![Known { page: 0, mapping: NOWHERE, held: [None; 3] }; PLACES].into(),
            recent: Recent::new(),
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
        let place = Line::of(side, page << 12).place();
        // What is recent is named by its place, which is another's from here on.
        if self.recent.has(place) {
            self.settle(side);
        }
        let known = &mut self.known[place];
        (known.page, known.mapping) = (page, mapping);
    }

    /// Uses a line of a page that was told of: fetches code, or reads or writes data.
    #[inline]
    pub fn access(&mut self, line: Line) -> Outcome {
        let place = line.place();
        let pages = if self.recent.use_again(place) { Mask::NONE } else { self.use_other(place) };
        let number = self.recent.frame(place).wrapping_add(line.of_page());
        Outcome { pages, line: number, missed: self.l1[line.side() % 2].access(number) == WAYS }
    }

    /// Uses a page that is none of the recent ones. Answers which TLBs missed.
    #[cold]
    fn use_other(&mut self, place: usize) -> Mask {
        let side = if place < KNOWN { Side::Code } else { Side::Data };
        let (known, bank) = (&mut self.known[place % PLACES], &mut self.banks[side as usize]);
        let (before, held) = self.recent.put(side, place, known.mapping.frame);
        before.into_iter().flatten().for_each(|held| bank.release(held));
        let missed = bank.hold(known, self.tag, held);
        known.held = *held;
        if side == Side::Data && self.shadow.is_some() {
            self.remember(place, missed);
        }
        missed
    }

    /// Lets all recent pages go, so that the TLBs know the order of their uses.
    fn settle(&mut self, side: Side) {
        for held in self.recent.take_all(side) {
            self.banks[side as usize].release(held);
        }
    }

    /// What the largest of the processor's TLBs holds since its miss is what its hits are taken for, if
    /// hits are [remembered](Self::remember_hits).
    fn remember(&mut self, place: usize, missed: Mask) {
        let Known { page, mapping, .. } = self.known[place];
        let (Some(shadow), Some(size)) = (&mut self.shadow, mapping.size) else { return };
        let tag = if mapping.global { GLOBAL } else { self.tag };
        let key = keys::key(page << 12, size, tag);
        // The page's first line, if it began where this part of it does.
        let part = (page << Line::OF_PAGE) & ((1 << (size.bits() - LINE.ilog2())) - 1);
        let base = mapping.frame.wrapping_sub(part);
        let largest = Mask::one(Policy::Real, TLB_SIZES - 1);
        let single = self.config.single.then_some(self.config.counted());
        if missed.meets(single.unwrap_or(largest)) {
            shadow.insert(key, base);
        } else if let Some(held) = shadow.get(&key) {
            self.recent.set_frame(place, held.wrapping_add(part));
        }
    }

    /// Where the model takes data of a recent page to be, physically, to be compared with where it is.
    pub fn claimed(&self, address: u64) -> u64 {
        let frame = self.recent.frame(Line::of(Side::Data, address).place());
        frame.wrapping_mul(LINE as u64) + address % 4096
    }

    /// Takes notice of what empties TLBs.
    pub fn flush(&mut self, what: Flush) {
        [Side::Code, Side::Data].into_iter().for_each(|side| self.settle(side));
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
        let (banks, tags) = (&mut self.banks, &self.tags);
        let of_this =
            |key| !tagged || tags.space(keys::tag(key)).is_some_and(|(_, own)| own == pcid);
        for tlb in banks.iter_mut().flat_map(Bank::both) {
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
        for tlb in self.banks.iter_mut().flat_map(Bank::both) {
            tlb.flush(Mask::ALL, |key, global| (globals || !global) && of_it(key));
        }
    }

    fn flush_banks(&mut self, mask: Mask, goes: impl Fn(u64, bool) -> bool) {
        for tlb in self.banks.iter_mut().flat_map(Bank::both) {
            tlb.flush(mask, &goes);
        }
    }

    /// One page, whatever its size; global or of this address space.
    fn invalidate(&mut self, address: u64) {
        for tag in [self.tag, GLOBAL] {
            for size in [PageSize::Small, PageSize::Large, PageSize::Huge] {
                let key = keys::key(address, size, tag);
                let is_large = size != PageSize::Small;
                for bank in &mut self.banks {
                    bank.of(is_large).invalidate(key, Mask::ALL);
                }
            }
        }
    }
}

/// The policies that a new CR3 empties, but of what is global.
const FOLLOW_CR3: Mask = Mask::of(Policy::Real)
    .and(Mask::of(Policy::GlobalHypervisor))
    .and(Mask::of(Policy::Superpages))
    .and(Mask::of(Policy::GroupedSuperpages));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_s_name_is_its_side_s_and_goes_on_in_the_next_page() {
        let (code, data) = (Line::of(Side::Code, 0x1040), Line::of(Side::Data, 0x1040));
        assert_ne!(code, data);
        assert!(data.is_data() && !code.is_data());
        assert_eq!((code.place(), code.of_page()), (1, 1));
        assert_eq!((data.place(), data.of_page()), (KNOWN + 1, 1));
        for line in [code, data] {
            assert_eq!(Line::named(line.name()), line);
            assert_eq!(line.after(63).place(), line.place() + 1);
        }
        // The page after the last place is in the first, of the same side.
        let last = Line::of(Side::Code, u64::MAX);
        assert_eq!(last.after(1), Line::of(Side::Code, 0));
        assert_eq!(Line::of(Side::Data, u64::MAX).after(1), Line::of(Side::Data, 0));
    }
}
