//! The processor.

use std::collections::HashMap;
use std::ops::Range;

use crate::cache::Cache;
use crate::config::{Config, L2_BYTES, LINE, TLB_ENTRIES, TLB_SIZES};
use crate::counters::{Counters, Sweep};
use crate::keys::{self, GLOBAL, Tags};
use crate::paging::{PageSize, Paging, PhysicalMemory, Translation, is_uniform, walk};
use crate::policy::Policy;
use crate::tlb::{Mask, Tlb};

/// Xen's own part of every address space (`xen/arch/x86/include/asm/config.h`).
const HYPERVISOR: Range<u64> = 0xffff_8000_0000_0000..0xffff_8800_0000_0000;
/// Linux's map of all memory, without KASLR (`Documentation/arch/x86/x86_64/mm.rst`).
const LINEAR_MAP: Range<u64> = 0xffff_8880_0000_0000..0xffff_c880_0000_0000;

/// Whom something is counted for.
#[derive(Debug)]
pub struct Access<'a> {
    /// The place in the code.
    pub site: &'a mut Counters,
    /// Its domain.
    pub sweep: &'a mut Sweep,
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

/// No page, no line: addresses have fewer bits.
const NONE: u64 = u64::MAX;
/// How often, in writes of CR3, it is looked whether a block of pages could be one.
const UNIFORM_FOR: u64 = 64;
/// Translations that are remembered.
const MEMO: usize = 4096;

/// The last page of one kind of access.
#[derive(Clone, Copy, Debug)]
struct Last {
    /// A line's number, virtual.
    line: u64,
    /// The number of its page of 4 KiB.
    page: u64,
    /// The physical number of that page's first line.
    frame: u64,
}

impl Last {
    const NOTHING: Self = Self { line: NONE, page: NONE, frame: 0 };
}

/// The last two lines of data, one that was read and one that was written: copies alternate between
/// them. What is used of them is made known to the cache and the TLBs only when another comes, which is
/// exact: until then nobody else was used.
#[derive(Clone, Copy, Debug)]
struct Recent {
    /// Lines' numbers, virtual.
    line: [u64; 2],
    /// The numbers of their pages of 4 KiB.
    page: [u64; 2],
    /// The physical numbers of those pages' first lines.
    frame: [u64; 2],
    /// Whether they were used since the cache was told.
    line_used: [bool; 2],
    /// Whether their pages were used since the TLBs were told, but for what `line_used` says.
    page_used: [bool; 2],
    /// Which was used last.
    latest: usize,
}

impl Recent {
    const NOTHING: Self = Self {
        line: [NONE; 2],
        page: [NONE; 2],
        frame: [0; 2],
        line_used: [false; 2],
        page_used: [false; 2],
        latest: 0,
    };

    /// Uses a line if it is one of the two, the likelier of which is in `slot`.
    #[inline]
    fn reuse(&mut self, line: u64, slot: usize) -> bool {
        let found = if line == self.line[slot] {
            slot
        } else if line == self.line[1 - slot] {
            1 - slot
        } else {
            return false;
        };
        self.latest = found;
        self.line_used[found] = true;
        true
    }

    /// Whether a line was used since this was asked; its page was, then.
    fn take_line_used(&mut self, slot: usize) -> bool {
        let used = std::mem::take(&mut self.line_used[slot]);
        self.page_used[slot] |= used;
        used
    }

    /// The one that was used before the other, first.
    fn in_order(&self) -> [usize; 2] {
        [1 - self.latest, self.latest]
    }
}

/// A translation that was walked for.
#[derive(Clone, Copy, Debug)]
struct Memo {
    page: u64,
    /// When: it holds for this epoch, or, of a global page, for this global one.
    epoch: u64,
    translation: Option<Translation>,
}

/// The TLBs of one kind of access.
#[derive(Debug)]
struct Bank {
    small: Tlb,
    large: Tlb,
}

impl Bank {
    fn new(all: Mask) -> Self {
        let half = TLB_ENTRIES.map(|entries| entries / 2);
        Self { small: Tlb::new(TLB_ENTRIES, all), large: Tlb::new(half, all) }
    }

    fn of(&mut self, size: PageSize) -> &mut Tlb {
        if size == PageSize::Small { &mut self.small } else { &mut self.large }
    }

    fn both(&mut self) -> [&mut Tlb; 2] {
        [&mut self.small, &mut self.large]
    }
}

/// The caches and TLBs of a processor, in all sizes and under all policies.
#[derive(Debug)]
pub struct Model<M> {
    memory: M,
    config: Config,
    /// The TLB whose misses are counted for each place in the code.
    counted: Mask,
    paging: Paging,
    tags: Tags,
    tag: u16,
    l1i: Cache,
    l1d: Cache,
    l2: Vec<Cache>,
    /// Which of `l2` is counted for each place in the code.
    l2_counted: usize,
    itlb: Bank,
    dtlb: Bank,
    code: Last,
    data: Recent,
    memo: Box<[Memo]>,
    /// Counts what makes translations outdated, of all pages and of global ones.
    epoch: u64,
    global_epoch: u64,
    uniform: HashMap<u64, (u64, bool)>,
    untranslated: u64,
    /// What the TLB of a real processor of the largest size would hold, to be compared with the
    /// truth.
    shadow: Option<HashMap<u64, u64>>,
}

impl<M: PhysicalMemory> Model<M> {
    /// A processor whose caches and TLBs are empty.
    #[must_use]
    pub fn new(memory: M, config: Config, paging: Paging) -> Self {
        let counted = Mask::one(Policy::Real, config.tlb);
        let all = if config.single { counted } else { Mask::ALL };
        let sizes = if config.single { &L2_BYTES[config.l2..=config.l2] } else { &L2_BYTES[..] };
        let mut tags = Tags::default();
        let (tag, _) = tags.of(paging);
        let nothing = Memo { page: NONE, epoch: 0, translation: None };
        Self {
            memory,
            config,
            counted,
            paging,
            tags,
            tag,
            l1i: Cache::new(config.l1_bytes, config.l1_ways),
            l1d: Cache::new(config.l1_bytes, config.l1_ways),
            l2: sizes.iter().map(|bytes| Cache::new(*bytes, config.l2_ways)).collect(),
            l2_counted: if config.single { 0 } else { config.l2 },
            itlb: Bank::new(all),
            dtlb: Bank::new(all),
            code: Last::NOTHING,
            data: Recent::NOTHING,
            memo: vec![nothing; MEMO].into(),
            epoch: 1,
            global_epoch: 1,
            uniform: HashMap::new(),
            untranslated: 0,
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

    /// Accesses whose page tables could not be read; their lines are taken for others than all of memory's.
    pub fn untranslated(&self) -> u64 {
        self.untranslated
    }

    /// Fetches a line of code, by its virtual number.
    #[inline]
    pub fn fetch(&mut self, line: u64, to: &mut Access<'_>) {
        to.site.l1i += 1;
        if line == self.code.line {
            return;
        }
        self.code.line = line;
        let page = line >> PAGE_LINE_BITS;
        if page != self.code.page {
            self.turn_code_page(page, to);
        }
        let physical = self.code.frame + (line & LINES_OF_PAGE);
        if !self.l1i.access(line, physical) {
            to.site.l1i_misses += 1;
            let counted = self.miss_l1(physical, |sweep| &mut sweep.l2i, to.sweep);
            to.site.l2i_misses += u64::from(counted);
        }
    }

    /// Whether code is in the line that code was in before, so that nothing changes but a count.
    #[inline]
    pub fn is_same_code(&self, line: u64) -> bool {
        line == self.code.line
    }

    /// Uses data of the last line read or the last line written again, if these bytes are there: nothing
    /// changes but a count.
    #[inline]
    pub fn reuse(&mut self, address: u64, bytes: u64, write: bool) -> bool {
        let (first, last) = (address / LINE as u64, address.wrapping_add(bytes - 1) / LINE as u64);
        first == last && self.data.reuse(first, usize::from(write))
    }

    /// Reads or writes bytes of data at a virtual address.
    #[inline]
    pub fn data(&mut self, address: u64, bytes: u64, write: bool, to: &mut Access<'_>) {
        let (first, last) = (address / LINE as u64, address.wrapping_add(bytes - 1) / LINE as u64);
        self.line(first, write, to);
        if last != first {
            self.line(last, write, to);
        }
    }

    #[inline]
    fn line(&mut self, line: u64, write: bool, to: &mut Access<'_>) {
        *(if write { &mut to.site.writes } else { &mut to.site.reads }) += 1;
        if !self.data.reuse(line, usize::from(write)) {
            self.turn_data_line(line, write, to);
        }
    }

    fn turn_data_line(&mut self, line: u64, write: bool, to: &mut Access<'_>) {
        self.tell_cache();
        let (slot, page) = (usize::from(write), line >> PAGE_LINE_BITS);
        self.data.line[slot] = line;
        if page == self.data.page[slot] {
            self.data.page_used[slot] = true;
        } else {
            self.turn_data_page(page, slot, to);
        }
        self.data.latest = slot;
        let physical = self.data.frame[slot] + (line & LINES_OF_PAGE);
        if !self.l1d.access(line, physical) {
            *(if write { &mut to.site.write_misses } else { &mut to.site.read_misses }) += 1;
            let counted = self.miss_l1(physical, |sweep| &mut sweep.l2d, to.sweep);
            to.site.l2d_misses += u64::from(counted);
        }
    }

    /// Looks a line up in every L2. Answers whether the one that is counted misses it.
    fn miss_l1(
        &mut self,
        physical: u64,
        misses: impl Fn(&mut Sweep) -> &mut [u64; L2_BYTES.len()],
        sweep: &mut Sweep,
    ) -> bool {
        let mut counted = false;
        let first = if self.config.single { self.config.l2 } else { 0 };
        for (number, cache) in self.l2.iter_mut().enumerate() {
            if !cache.access(physical, physical) {
                misses(sweep)[first + number] += 1;
                counted |= number == self.l2_counted;
            }
        }
        counted
    }

    fn turn_code_page(&mut self, page: u64, to: &mut Access<'_>) {
        let translation = self.translate(page);
        self.code.page = page;
        self.code.frame = self.frame(translation.as_ref(), page);
        let Some(translation) = translation else { return };
        let address = page << 12;
        let missed = touch(&mut self.itlb, self.tag, address, &translation, None);
        let translation = self.walk_again(page, missed).unwrap_or(translation);
        self.code.frame = self.frame(Some(&translation), page);
        count(missed, &mut to.sweep.itlb);
        to.site.itlb_misses += u64::from(missed.meets(self.counted));
    }

    /// Puts another page into a slot. The TLBs learn of what is used meanwhile first.
    fn turn_data_page(&mut self, page: u64, slot: usize, to: &mut Access<'_>) {
        self.tell_tlbs();
        let other = 1 - slot;
        self.data.page[slot] = page;
        if page == self.data.page[other] {
            self.data.frame[slot] = self.data.frame[other];
            self.data.page_used[slot] = true;
            return;
        }
        let translation = self.translate(page);
        self.data.frame[slot] = self.frame(translation.as_ref(), page);
        let Some(translation) = translation else { return };
        let missed = self.touch_data(page, &translation);
        let translation = self.walk_again(page, missed).unwrap_or(translation);
        self.data.frame[slot] = self.frame(Some(&translation), page);
        count(missed, &mut to.sweep.dtlb);
        to.site.dtlb_misses += u64::from(missed.meets(self.counted));
        self.remember(page << 12, &translation, missed, slot);
    }

    fn touch_data(&mut self, page: u64, translation: &Translation) -> Mask {
        let address = page << 12;
        let block = self.block(address, translation);
        touch(&mut self.dtlb, self.tag, address, translation, block)
    }

    /// What the largest of the processor's TLBs holds since its miss is what its hits are taken for, if
    /// hits are [remembered](Self::remember_hits).
    fn remember(&mut self, address: u64, translation: &Translation, missed: Mask, slot: usize) {
        let Some(shadow) = &mut self.shadow else { return };
        let key = keys::key(address, translation.size, keys::tag_of(translation, self.tag));
        let largest = TLB_SIZES - 1;
        let single = self.config.single.then_some(self.counted);
        if missed.meets(single.unwrap_or(Mask::one(Policy::Real, largest))) {
            shadow.insert(key, translation.base);
        } else if let Some(held) = shadow.get(&key) {
            let lines = |base: u64| base / LINE as u64;
            let frame = &mut self.data.frame[slot];
            *frame = *frame - lines(translation.base) + lines(*held);
        }
    }

    /// Where the model takes the last data to be, physically, to be compared with where it is.
    pub fn claimed(&self, address: u64) -> u64 {
        self.data.frame[self.data.latest] * LINE as u64 + address % 4096
    }

    /// Where an address lies, physically, without any notice taken of it.
    pub fn physical(&self, address: u64) -> Option<u64> {
        walk(&self.memory, self.paging, address).map(|page| page.physical(address))
    }

    /// The memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The address space.
    pub fn paging(&self) -> Paging {
        self.paging
    }

    /// Walks the page tables, or remembers.
    fn translate(&mut self, page: u64) -> Option<Translation> {
        let slot = usize::try_from(page).unwrap_or(0) % MEMO;
        let Memo { page: known, epoch, translation } = self.memo[slot];
        let global = translation.is_some_and(|translation| translation.global);
        if known == page && epoch == if global { self.global_epoch } else { self.epoch } {
            return translation;
        }
        let translation = walk(&self.memory, self.paging, page << 12);
        let global = translation.is_some_and(|translation| translation.global);
        let epoch = if global { self.global_epoch } else { self.epoch };
        self.memo[slot] = Memo { page, epoch, translation };
        translation
    }

    /// The physical number of a page's first line.
    fn frame(&mut self, translation: Option<&Translation>, page: u64) -> u64 {
        let lines = page << PAGE_LINE_BITS;
        if let Some(translation) = translation {
            return translation.physical(page << 12) / LINE as u64;
        }
        // A few instructions take a physical address (AMD's VMLOAD, with which Xen loads segments).
        if self.memory.read(page << 12).is_some() {
            return lines;
        }
        self.untranslated += 1;
        // One that no memory has, of no more than 128 GiB.
        1 << 31 | (lines & ((1 << 31) - 1))
    }

    /// What is remembered is what a TLB of the processor's holds, no more: where one has missed, page
    /// tables may have been changed since without a word.
    fn walk_again(&mut self, page: u64, missed: Mask) -> Option<Translation> {
        if !missed.meets(Mask::of(Policy::Real)) {
            return None;
        }
        self.memo[usize::try_from(page).unwrap_or(0) % MEMO].page = NONE;
        self.translate(page)
    }

    /// Whether a small page of the linear map would be part of a large one: under which policies.
    fn block(&mut self, address: u64, translation: &Translation) -> Option<Block> {
        if self.config.single
            || translation.size != PageSize::Small
            || !LINEAR_MAP.contains(&address)
        {
            return None;
        }
        let now = self.epoch / UNIFORM_FOR;
        let known = self.uniform.get(&translation.table);
        let uniform = match known {
            Some((when, uniform)) if *when == now => *uniform,
            _ => {
                let uniform = is_uniform(&self.memory, translation.table);
                self.uniform.insert(translation.table, (now, uniform));
                uniform
            }
        };
        let alone = if uniform { Mask::of(Policy::Superpages) } else { Mask::NONE };
        // What must not be written to is what breaks blocks up: page tables, pages that are granted.
        let grouped = translation.writable || uniform;
        let grouped = if grouped { Mask::of(Policy::GroupedSuperpages) } else { Mask::NONE };
        Some(Block(alone.and(grouped)))
    }

    /// Tells the cache which lines were used last.
    fn tell_cache(&mut self) {
        for slot in self.data.in_order() {
            if self.data.take_line_used(slot) {
                let (line, frame) = (self.data.line[slot], self.data.frame[slot]);
                self.l1d.access(line, frame + (line & LINES_OF_PAGE));
            }
        }
    }

    /// Tells the TLBs which pages were used last.
    fn tell_tlbs(&mut self) {
        for slot in self.data.in_order() {
            if std::mem::take(&mut self.data.page_used[slot]) {
                let page = self.data.page[slot];
                if let Some(translation) = self.translate(page) {
                    self.touch_data(page, &translation);
                }
            }
        }
    }

    /// Takes notice of what empties TLBs.
    pub fn flush(&mut self, what: Flush) {
        self.tell_cache();
        self.tell_tlbs();
        (self.code, self.data) = (Last::NOTHING, Recent::NOTHING);
        match what {
            Flush::Cr3(value) => self.write_cr3(value),
            Flush::Cr4(value) => self.write_cr4(value),
            Flush::Page(address) => self.invalidate(address),
            Flush::Pcid(0, _, address) => self.invalidate(address),
            Flush::Pcid(1, pcid, _) => self.forget(false, Some(pcid)),
            Flush::Pcid(2, ..) => self.forget(true, None),
            Flush::Pcid(..) => self.forget(false, None),
        }
    }

    fn write_cr3(&mut self, value: u64) {
        let keeps = self.paging.tagged && value >> 63 != 0;
        self.paging.root = value & !(1 << 63) & !0xfff;
        let pcid = if self.paging.tagged { (value & 0xfff) as u16 } else { 0 };
        self.paging.pcid = pcid;
        let (tag, reused) = self.tags.of(self.paging);
        self.tag = tag;
        self.epoch += 1;
        if reused {
            self.flush_banks(Mask::ALL, |key, _| keys::tag(key) == tag);
        }
        if keeps {
            return;
        }
        let tagged = self.paging.tagged;
        let (mut banks, tags) = ([&mut self.itlb, &mut self.dtlb], &self.tags);
        let of_this =
            |key| !tagged || tags.space(keys::tag(key)).is_some_and(|(_, own)| own == pcid);
        for tlb in banks.iter_mut().flat_map(|bank| bank.both()) {
            tlb.flush(FOLLOW_CR3, |key, global| !global && of_this(key));
            tlb.flush(Mask::of(Policy::NoGlobal), |key, global| global || of_this(key));
        }
    }

    fn write_cr4(&mut self, value: u64) {
        let Paging { global, tagged, .. } = self.paging;
        self.paging.global = value & 1 << 7 != 0;
        self.paging.tagged = value & 1 << 17 != 0;
        if (global, tagged) != (self.paging.global, self.paging.tagged) {
            self.forget(true, None);
        }
    }

    /// Empties all TLBs but of global pages, or of them too; of one PCID, or of all.
    fn forget(&mut self, globals: bool, pcid: Option<u16>) {
        self.epoch += 1;
        self.global_epoch += u64::from(globals);
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
        let slot = usize::try_from(address >> 12).unwrap_or(0) % MEMO;
        self.memo[slot].page = NONE;
        for tag in [self.tag, GLOBAL] {
            for size in [PageSize::Small, PageSize::Large, PageSize::Huge] {
                let key = keys::key(address, size, tag);
                self.itlb.of(size).invalidate(key, Mask::ALL);
                self.dtlb.of(size).invalidate(key, Mask::ALL);
            }
        }
    }
}

/// The policies under which a small page is part of a large one.
#[derive(Clone, Copy)]
struct Block(Mask);

/// The policies that a new CR3 empties, but of what is global.
const FOLLOW_CR3: Mask = Mask::of(Policy::Real)
    .and(Mask::of(Policy::GlobalHypervisor))
    .and(Mask::of(Policy::Superpages))
    .and(Mask::of(Policy::GroupedSuperpages));

const PAGE_LINE_BITS: u32 = 6;
const LINES_OF_PAGE: u64 = (1 << PAGE_LINE_BITS) - 1;

/// Uses a page in all TLBs of a kind. Answers those that missed.
fn touch(
    bank: &mut Bank,
    space: u16,
    address: u64,
    translation: &Translation,
    block: Option<Block>,
) -> Mask {
    let Translation { size, global, .. } = *translation;
    let tag = keys::tag_of(translation, space);
    let mut own = Mask::ALL;
    let mut missed = Mask::NONE;
    if let Some(Block(large)) = block {
        own = own.without(large);
        let key = keys::key(address, PageSize::Large, tag);
        missed = bank.large.access(key, global, large);
    }
    if !global && HYPERVISOR.contains(&address) {
        let policy = Mask::of(Policy::GlobalHypervisor);
        own = own.without(policy);
        let key = keys::key(address, size, GLOBAL);
        missed = missed.and(bank.of(size).access(key, true, policy));
    }
    missed.and(bank.of(size).access(keys::key(address, size, tag), global, own))
}

fn count(missed: Mask, sweep: &mut [[u64; TLB_SIZES]]) {
    if missed == Mask::NONE {
        return;
    }
    let mut left = missed.0;
    while left != 0 {
        let number = left.trailing_zeros() as usize;
        left &= left - 1;
        sweep[number / TLB_SIZES][number % TLB_SIZES] += 1;
    }
}
