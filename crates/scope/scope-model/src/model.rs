//! The processor.

use std::collections::HashMap;

use crate::cache::{Cache, Lines, WAYS};
use crate::config::{Config, LINE, Policy, TLB_SIZES, TlbSet};
use crate::hot_pages::{HotPages, NO_PINS, Pins, SLOTS};
use crate::keys::{self, GLOBAL, Tags};
use crate::line_id::LineId;
use crate::mapping::{Mapping, PAGE_SLOTS, Side};
use crate::paging::{Flush, FlushSite, Paging};
use crate::tlbs::Tlbs;

/// The outcome of an access to a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The TLBs that missed its page.
    pub tlb_misses: TlbSet,
    /// Its physical number.
    pub line: u64,
    /// Whether L1 missed it, so that the [L2s](crate::L2Bank) see it.
    pub l1_miss: bool,
}

/// A page that the model has a mapping of.
#[derive(Clone, Copy, Debug)]
struct MappedPage {
    page: u64,
    mapping: Mapping,
    /// The TLB entries of the page that was last used in this slot: pinned if the page is hot, else hints, which may belong
    /// to another page by now.
    pins: Pins,
}

/// The L1s of a processor, and its TLBs in all sizes and under all policies.
#[derive(Debug)]
pub struct Model {
    config: Config,
    paging: Paging,
    tags: Tags,
    tag: u16,
    /// L1I and L1D.
    l1: [Cache; 2],
    /// ITLBs and DTLBs.
    tlbs: [Tlbs; 2],
    /// The mapped pages of both sides, by slot.
    pages: Box<[MappedPage]>,
    hot_pages: HotPages,
    /// The translations that a real DTLB of the largest size would hold, to be compared with the page tables: the physical
    /// number of a page's first line, by the page's key.
    cached: Option<HashMap<u64, u64>>,
}

impl Model {
    /// A processor whose L1s and TLBs are empty. All physical lines have numbers below `lines`
    /// ([`Walker::lines`](crate::Walker::lines)).
    #[must_use]
    pub fn new(config: Config, paging: Paging, lines: u64) -> Self {
        let modelled = config.modelled();
        let mut tags = Tags::default();
        let (tag, _) = tags.of(paging);
        let unmapped = MappedPage { page: 0, mapping: Mapping::UNMAPPED, pins: NO_PINS };
        Self {
            config,
            paging,
            tags,
            tag,
            l1: [(); 2].map(|()| Cache::new(config.l1_bytes, lines)),
            tlbs: [(); 2].map(|()| Tlbs::new(modelled)),
            pages: vec![unmapped; SLOTS].into(),
            hot_pages: HotPages::new(),
            cached: None,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Makes the DTLB keep translations, for [`cached_address`](Self::cached_address).
    pub fn keep_translations(&mut self) {
        self.cached = Some(HashMap::new());
    }

    /// Sets the mapping of a page, which a [`Walker`](crate::Walker) found, before the page is used.
    pub fn map(&mut self, side: Side, page: u64, mapping: Mapping) {
        let slot = LineId::of(side, page << 12).slot();
        // Hot pages are identified by their slot, which belongs to another page from here on.
        if self.hot_pages.contains(slot) {
            self.unpin_all(side);
        }
        let mapped = &mut self.pages[slot];
        (mapped.page, mapped.mapping) = (page, mapping);
    }

    /// Fetches, reads or writes a line of a mapped page.
    #[inline]
    pub fn access(&mut self, line: LineId) -> Outcome {
        let (tlb_misses, number) = self.translate(line);
        let l1_miss = self.l1[line.side() % 2].access(number) == WAYS;
        Outcome { tlb_misses, line: number, l1_miss }
    }

    /// [Accesses](Self::access) lines of mapped pages in their order; `line` tells the line of a use, and `seen` gets the
    /// outcome.
    pub fn access_all<Use: Copy>(
        &mut self,
        uses: &[Use],
        line: impl Fn(Use) -> LineId,
        seen: impl FnMut(Use, Outcome),
    ) {
        // One loop for each kind of tags.
        let mut l1 = std::mem::take(&mut self.l1);
        match &mut l1 {
            [Cache::Short(code), Cache::Short(data)] => {
                self.access_in((code, data), uses, line, seen);
            }
            [Cache::Long(code), Cache::Long(data)] => {
                self.access_in((code, data), uses, line, seen);
            }
            _ => unreachable!("both L1s have as many lines"),
        }
        self.l1 = l1;
    }

    #[inline(always)]
    fn access_in<L1: Lines, Use: Copy>(
        &mut self,
        (code, data): (&mut L1, &mut L1),
        uses: &[Use],
        line: impl Fn(Use) -> LineId,
        mut seen: impl FnMut(Use, Outcome),
    ) {
        let l1 = [code, data];
        for used in uses.iter().copied() {
            let line = line(used);
            let (tlb_misses, number) = self.translate(line);
            let l1_miss = l1[line.side() % 2].access(number) == WAYS;
            seen(used, Outcome { tlb_misses, line: number, l1_miss });
        }
    }

    /// Uses the page of a line. Returns the TLBs that missed, and the line's physical number.
    #[inline(always)]
    fn translate(&mut self, line: LineId) -> (TlbSet, u64) {
        let slot = line.slot();
        let tlb_misses =
            if self.hot_pages.use_again(slot) { TlbSet::NONE } else { self.use_cold_page(slot) };
        (tlb_misses, self.hot_pages.frame(slot).wrapping_add(line.in_page()))
    }

    /// Uses a page that is not hot, and makes it hot. Returns the TLBs that missed.
    #[inline(never)]
    fn use_cold_page(&mut self, slot: usize) -> TlbSet {
        let side = if slot < PAGE_SLOTS { Side::Code } else { Side::Data };
        let tlbs = &mut self.tlbs[side as usize];
        let MappedPage { page, mapping, .. } = self.pages[slot % SLOTS];
        if let Some(replaced) = self.hot_pages.insert(side, slot, mapping.frame) {
            unpin(tlbs, &self.pages[replaced % SLOTS].pins);
        }
        // The pins are changed in place: reading them as a whole would stall until they have left the store buffer.
        let missed = tlbs.pin(page, mapping, self.tag, &mut self.pages[slot % SLOTS].pins);
        if side == Side::Data && self.cached.is_some() {
            self.keep_translation(slot, missed);
        }
        missed
    }

    /// Unpins the entries of all hot pages of a side, so that the TLBs know the order of their uses.
    fn unpin_all(&mut self, side: Side) {
        for slot in self.hot_pages.take_all(side) {
            unpin(&mut self.tlbs[side as usize], &self.pages[slot % SLOTS].pins);
        }
    }

    /// On a miss of the processor's largest DTLB, stores the page's translation, if translations are
    /// [kept](Self::keep_translations); on a hit, uses the stored one.
    fn keep_translation(&mut self, slot: usize, missed: TlbSet) {
        let MappedPage { page, mapping, .. } = self.pages[slot];
        let (Some(cached), Some(size)) = (&mut self.cached, mapping.size) else { return };
        let tag = if mapping.global { GLOBAL } else { self.tag };
        let key = keys::key(page << 12, size, tag);
        // The first line of the whole page, which these 4 KiB may be only a part of.
        let part = (page << LineId::IN_PAGE) & ((1 << (size.bits() - LINE.ilog2())) - 1);
        let base = mapping.frame.wrapping_sub(part);
        let largest = TlbSet::one(Policy::Real, TLB_SIZES - 1);
        let single = self.config.single.then_some(self.config.walking());
        if missed.intersects(single.unwrap_or(largest)) {
            cached.insert(key, base);
        } else if let Some(base) = cached.get(&key) {
            self.hot_pages.set_frame(slot, base.wrapping_add(part));
        }
    }

    /// The physical address of data in a hot page, according to the DTLB: it is stale if a flush was missed.
    pub fn cached_address(&self, address: u64) -> u64 {
        let frame = self.hot_pages.frame(LineId::of(Side::Data, address).slot());
        frame.wrapping_mul(LINE as u64) + address % 4096
    }

    /// Applies an instruction that empties TLBs, in the hypervisor's function for a new address space or anywhere else.
    ///
    /// That function clears CR4.PGE to get rid of global pages. Policies that keep some pages then would not do that: for them
    /// only its write of CR3 counts.
    pub fn flush(&mut self, what: Flush, site: FlushSite) {
        self.unpin_everything();
        let globals = self.paging.apply(what);
        let all = match site {
            FlushSite::NewSpace => AS_THE_PROCESSOR,
            FlushSite::Elsewhere => TlbSet::ALL,
        };
        match what {
            Flush::Cr3(value) => self.switch_space(value >> 63 != 0, site),
            Flush::Cr4(_) if globals => self.flush_all(all, true, None),
            Flush::Cr4(_) => {}
            Flush::Page(address) => self.invalidate(address, &[self.tag, GLOBAL]),
            Flush::Pcid(0, pcid, address) => {
                let tags: Vec<u16> = self.tags_of(pcid).collect();
                self.invalidate(address, &tags);
            }
            Flush::Pcid(1, pcid, _) => self.flush_all(all, false, Some(pcid)),
            Flush::Pcid(..) => self.flush_all(all, globals, None),
        }
    }

    /// Another domain runs than before; the idle domain does not count.
    pub fn switch_domain(&mut self) {
        self.unpin_everything();
        self.flush_all(GUEST_GLOBAL, true, None);
    }

    fn unpin_everything(&mut self) {
        [Side::Code, Side::Data].into_iter().for_each(|side| self.unpin_all(side));
    }

    /// Changes the address space. `keeps` is the flag in CR3 that preserves the new PCID's entries.
    fn switch_space(&mut self, keeps: bool, site: FlushSite) {
        let Paging { pcid, tagged, .. } = self.paging;
        let (tag, reused) = self.tags.of(self.paging);
        self.tag = tag;
        if reused {
            for tlbs in &mut self.tlbs {
                tlbs.flush(|key| TlbSet::ALL.only_if(keys::tag(key) == tag));
            }
        }
        if keeps && tagged {
            return;
        }
        let (all_tlbs, tags) = (&mut self.tlbs, &self.tags);
        let of_this =
            |key| !tagged || tags.space(keys::tag(key)).is_some_and(|(_, own)| own == pcid);
        // Programs of one kernel share no page, whatever the hypervisor marks.
        let is_other_program = |key| site == FlushSite::NewSpace && keys::is_user(key);
        for tlbs in all_tlbs {
            tlbs.flush(|key| match keys::tag(key) {
                GLOBAL => NO_GLOBAL.union(GUEST_GLOBAL.only_if(is_other_program(key))),
                _ => FLUSHED_BY_CR3.only_if(of_this(key)),
            });
        }
    }

    /// Removes the entries of one PCID, or of all if there is none, from the TLBs of `from`; global ones too if `globals`.
    fn flush_all(&mut self, from: TlbSet, globals: bool, pcid: Option<u16>) {
        let tags = &self.tags;
        let selected = |key| match (keys::tag(key), pcid) {
            (GLOBAL, _) if globals => from,
            (GLOBAL, _) => NO_GLOBAL.without(NO_GLOBAL.without(from)),
            (_, None) => from,
            (tag, Some(pcid)) => from.only_if(tags.space(tag).is_some_and(|(_, own)| own == pcid)),
        };
        self.tlbs.iter_mut().for_each(|tlbs| tlbs.flush(selected));
    }

    /// The tags of the address spaces with this PCID: without PCIDs the present one.
    fn tags_of(&self, pcid: u16) -> impl Iterator<Item = u16> {
        let Paging { tagged, .. } = self.paging;
        let all = self.tags.all().filter(move |(_, own)| tagged && *own == pcid);
        let present = (!tagged && pcid == 0).then_some(self.tag);
        all.map(|(tag, _)| tag).chain(present)
    }

    /// Removes the page of an address with these tags from all TLBs.
    fn invalidate(&mut self, address: u64, tags: &[u16]) {
        for tlbs in &mut self.tlbs {
            tlbs.invalidate(address, tags);
        }
    }
}

fn unpin(tlbs: &mut Tlbs, pins: &Pins) {
    pins.iter().flatten().for_each(|pin| tlbs.unpin(*pin));
}

const NO_GLOBAL: TlbSet = TlbSet::of(Policy::NoGlobal);
/// The policies under which global pages are flushed when another domain runs.
const GUEST_GLOBAL: TlbSet =
    TlbSet::of(Policy::GuestGlobal).union(TlbSet::of(Policy::GuestGlobalSuperpages));
/// The policies under which the hypervisor's function for a new address space flushes as it does on the processor.
const AS_THE_PROCESSOR: TlbSet = TlbSet::of(Policy::Real)
    .union(NO_GLOBAL)
    .union(TlbSet::of(Policy::Superpages))
    .union(TlbSet::of(Policy::GroupedSuperpages));
/// The policies under which a new CR3 flushes everything but global pages.
const FLUSHED_BY_CR3: TlbSet = TlbSet::ALL.without(TlbSet::of(Policy::Tagged));
