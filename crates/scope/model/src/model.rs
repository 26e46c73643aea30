//! The processor.

use std::collections::HashMap;

use crate::cache::{Cache, WAYS};
use crate::config::Config;
use crate::flush::Flush;
use crate::geometry::{LINE, TLB_SIZES};
use crate::hot_pages::{HotPages, Pin, SLOTS};
use crate::keys::{self, GLOBAL, Tags};
use crate::line_id::LineId;
use crate::mapping::{Mapping, PAGE_SLOTS, Side};
use crate::paging::Paging;
use crate::policy::Policy;
use crate::tlb_set::TlbSet;
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
    /// The TLB entries of the page that was last used in this slot: hints, as they may be of another page by now.
    pins: [Option<Pin>; 3],
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
        let modelled = if config.single { config.counted() } else { TlbSet::ALL };
        let mut tags = Tags::default();
        let (tag, _) = tags.of(paging);
        let unmapped = MappedPage { page: 0, mapping: Mapping::UNMAPPED, pins: [None; 3] };
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
        let slot = line.slot();
        let tlb_misses =
            if self.hot_pages.use_again(slot) { TlbSet::NONE } else { self.use_cold_page(slot) };
        let number = self.hot_pages.frame(slot).wrapping_add(line.in_page());
        let l1_miss = self.l1[line.side() % 2].access(number) == WAYS;
        Outcome { tlb_misses, line: number, l1_miss }
    }

    /// Uses a page that is not hot, and makes it hot. Returns the TLBs that missed.
    #[cold]
    fn use_cold_page(&mut self, slot: usize) -> TlbSet {
        let side = if slot < PAGE_SLOTS { Side::Code } else { Side::Data };
        let (mapped, tlbs) = (&mut self.pages[slot % SLOTS], &mut self.tlbs[side as usize]);
        let MappedPage { page, mapping, pins: hints } = *mapped;
        let (replaced, pins) = self.hot_pages.insert(side, slot, mapping.frame);
        replaced.into_iter().flatten().for_each(|pin| tlbs.unpin(pin));
        let missed = tlbs.pin(page, mapping, self.tag, hints, pins);
        mapped.pins = *pins;
        if side == Side::Data && self.cached.is_some() {
            self.keep_translation(slot, missed);
        }
        missed
    }

    /// Unpins the entries of all hot pages of a side, so that the TLBs know the order of their uses.
    fn unpin_all(&mut self, side: Side) {
        for pin in self.hot_pages.take_all(side) {
            self.tlbs[side as usize].unpin(pin);
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
        let single = self.config.single.then_some(self.config.counted());
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

    /// Applies an instruction that empties TLBs.
    pub fn flush(&mut self, what: Flush) {
        [Side::Code, Side::Data].into_iter().for_each(|side| self.unpin_all(side));
        let globals = self.paging.apply(what);
        match what {
            Flush::Cr3(value) => self.switch_space(value >> 63 != 0),
            Flush::Cr4(_) if globals => self.flush_all(true, None),
            Flush::Cr4(_) => {}
            Flush::Page(address) | Flush::Pcid(0, _, address) => self.invalidate(address),
            Flush::Pcid(1, pcid, _) => self.flush_all(false, Some(pcid)),
            Flush::Pcid(..) => self.flush_all(globals, None),
        }
    }

    /// Changes the address space. `keeps` is the flag in CR3 that preserves the new PCID's entries.
    fn switch_space(&mut self, keeps: bool) {
        let Paging { pcid, tagged, .. } = self.paging;
        let (tag, reused) = self.tags.of(self.paging);
        self.tag = tag;
        if reused {
            for tlbs in &mut self.tlbs {
                tlbs.flush(TlbSet::ALL, |key, _| keys::tag(key) == tag);
            }
        }
        if keeps && tagged {
            return;
        }
        let (all_tlbs, tags) = (&mut self.tlbs, &self.tags);
        let of_this =
            |key| !tagged || tags.space(keys::tag(key)).is_some_and(|(_, own)| own == pcid);
        for tlbs in all_tlbs {
            tlbs.flush(FLUSHED_BY_CR3, |key, global| !global && of_this(key));
            tlbs.flush(TlbSet::of(Policy::NoGlobal), |key, global| global || of_this(key));
        }
    }

    /// Empties all TLBs, of global pages too if `globals`; of one PCID only, if there is one.
    fn flush_all(&mut self, globals: bool, pcid: Option<u16>) {
        let tags = &self.tags;
        let selected = |key| match pcid {
            Some(pcid) => tags.space(keys::tag(key)).is_some_and(|(_, own)| own == pcid),
            None => true,
        };
        for tlbs in &mut self.tlbs {
            tlbs.flush(TlbSet::ALL, |key, global| (globals || !global) && selected(key));
        }
    }

    /// Removes the page of an address from all TLBs.
    fn invalidate(&mut self, address: u64) {
        for tlbs in &mut self.tlbs {
            tlbs.invalidate(address, self.tag);
        }
    }
}

/// The policies under which a new CR3 flushes everything but global pages.
const FLUSHED_BY_CR3: TlbSet = TlbSet::of(Policy::Real)
    .union(TlbSet::of(Policy::GlobalHypervisor))
    .union(TlbSet::of(Policy::Superpages))
    .union(TlbSet::of(Policy::GroupedSuperpages));
