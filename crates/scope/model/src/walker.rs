//! What walks the page tables.

use std::collections::HashMap;
use std::ops::Range;

use crate::config::LINE;
use crate::model::Flush;
use crate::paging::{PageSize, Paging, PhysicalMemory, Translation, is_uniform, walk};
use crate::policy::Policy;
use crate::tlb::Mask;

/// Linux's map of all memory, without KASLR (`Documentation/arch/x86/x86_64/mm.rst`).
const LINEAR_MAP: Range<u64> = 0xffff_8880_0000_0000..0xffff_c880_0000_0000;
/// No page: addresses have fewer bits.
const NONE: u64 = u64::MAX;
/// How often, in writes of CR3, it is looked whether a block of pages could be one.
const UNIFORM_FOR: u64 = 64;
/// Pages of a side whose mappings are known, each in the one place where it can be: neighbours have
/// different ones.
pub const KNOWN: usize = 1024;
const _: () = assert!(KNOWN.is_power_of_two(), "a place is the lower bits of a page's number");

/// Numbers for lines of pages that nothing maps, or that are a device's: of 128 MiB.
const BEYOND: u64 = 1 << 21;

/// What a page is used for: the ITLB's side, or the DTLB's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Instructions.
    Code,
    /// Data.
    Data,
}

/// The place of a page among those that are known.
#[inline]
fn place(page: u64) -> usize {
    usize::try_from(page % KNOWN as u64).unwrap_or(0)
}

/// Where a page of 4 KiB lies, and how it is mapped: what a [`Model`](crate::Model) has to know of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The physical number of its first line.
    pub frame: u64,
    /// The size of the page that it is part of; none where no page table maps it.
    pub size: Option<PageSize>,
    /// Whether that page is global.
    pub global: bool,
    /// The policies under which it is part of a large page.
    pub large: Mask,
}

/// The numbers of [`Mapping::large`] in a word.
const LARGE: [Mask; 4] = [
    Mask::NONE,
    Mask::of(Policy::Superpages),
    Mask::of(Policy::GroupedSuperpages),
    Mask::of(Policy::Superpages).and(Mask::of(Policy::GroupedSuperpages)),
];

impl Mapping {
    /// Where lines have 48 bits: 16 PiB.
    const FRAME_BITS: u32 = 48;

    /// In 64 bits.
    #[must_use]
    pub fn to_word(self) -> u64 {
        let size = self.size.map_or(3, |size| size as u64);
        let large = LARGE.iter().position(|large| *large == self.large).unwrap_or(0) as u64;
        self.frame | (size | u64::from(self.global) << 2 | large << 3) << Self::FRAME_BITS
    }

    /// From those.
    #[must_use]
    pub fn from_word(word: u64) -> Self {
        let flags = word >> Self::FRAME_BITS;
        let size = [Some(PageSize::Small), Some(PageSize::Large), Some(PageSize::Huge), None];
        Self {
            frame: word & ((1 << Self::FRAME_BITS) - 1),
            size: size[(flags & 3) as usize],
            global: flags & 4 != 0,
            large: LARGE[(flags >> 3 & 3) as usize],
        }
    }
}

/// Pages that were told of, by their [places](place).
#[derive(Debug)]
struct Known {
    pages: Box<[u64; KNOWN]>,
    global: Box<[bool; KNOWN]>,
}

impl Known {
    fn new() -> Self {
        Self { pages: Box::new([NONE; KNOWN]), global: Box::new([false; KNOWN]) }
    }

    fn forget(&mut self, globals: bool) {
        for (page, global) in self.pages.iter_mut().zip(self.global.iter()) {
            if globals || !global {
                *page = NONE;
            }
        }
    }
}

/// What walks the page tables of the guest at the time of an access: a model that comes later would find
/// others. It tells of a page once, and again when that may have changed.
#[derive(Debug)]
pub struct Walker<M> {
    memory: M,
    paging: Paging,
    /// The pages that were told of, of each side.
    known: [Known; 2],
    /// Whether more than the processor's own policy is modelled.
    policies: bool,
    /// Counts changes of the address space.
    epoch: u64,
    uniform: HashMap<u64, (u64, bool)>,
    untranslated: u64,
}

impl<M: PhysicalMemory> Walker<M> {
    /// One that knows nothing.
    pub fn new(memory: M, paging: Paging, single: bool) -> Self {
        Self {
            memory,
            paging,
            known: [Known::new(), Known::new()],
            policies: !single,
            epoch: 0,
            uniform: HashMap::new(),
            untranslated: 0,
        }
    }

    /// Whether a page was told of, and nothing has happened since that could have changed it.
    #[inline]
    #[must_use]
    pub fn knows(&self, side: Side, page: u64) -> bool {
        self.known[side as usize].pages[place(page)] == page
    }

    /// Where a page lies that is accessed now. It is known from here on.
    pub fn walk(&mut self, side: Side, page: u64) -> Mapping {
        let address = page << 12;
        let translation = walk(&self.memory, self.paging, address);
        let global = translation.is_some_and(|translation| translation.global);
        let known = &mut self.known[side as usize];
        (known.pages[place(page)], known.global[place(page)]) = (page, global);
        let large = translation.as_ref().map_or(Mask::NONE, |own| self.large(address, own));
        let size = translation.map(|translation| translation.size);
        let frame = self.frame(translation.as_ref(), page);
        Mapping { frame, size, global, large }
    }

    /// The physical number of a page's first line.
    fn frame(&mut self, translation: Option<&Translation>, page: u64) -> u64 {
        let address = page << 12;
        let line = |physical: u64| physical / LINE as u64;
        match translation {
            Some(translation) => self.within(line(translation.physical(address))),
            // A few instructions take a physical address (AMD's VMLOAD, with which Xen loads segments).
            None if self.memory.read(address).is_some() => line(address),
            None => {
                self.untranslated += 1;
                self.first_beyond() + line(address) % BEYOND
            }
        }
    }

    /// A line of memory, or, of a device's, one beyond.
    fn within(&self, line: u64) -> u64 {
        let beyond = self.first_beyond();
        if line < beyond { line } else { beyond + line % BEYOND }
    }

    /// The number of the first line that no memory has, at a page's beginning.
    fn first_beyond(&self) -> u64 {
        self.memory.end().div_ceil(4096) * 4096 / LINE as u64
    }

    /// How many numbers lines can have.
    pub fn lines(&self) -> u64 {
        self.first_beyond() + BEYOND
    }

    /// How often a page was told of that nothing maps; its lines are taken for others than all of memory's.
    pub fn untranslated(&self) -> u64 {
        self.untranslated
    }

    /// Under which policies a small page of the linear map would be part of a large one.
    fn large(&mut self, address: u64, translation: &Translation) -> Mask {
        let small = translation.size == PageSize::Small;
        if !self.policies || !small || !LINEAR_MAP.contains(&address) {
            return Mask::NONE;
        }
        let now = self.epoch / UNIFORM_FOR;
        let uniform = match self.uniform.get(&translation.table) {
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
        alone.and(grouped)
    }

    /// Takes notice of what may change mappings.
    pub fn flush(&mut self, what: Flush) {
        let globals = self.paging.write(what);
        self.epoch += 1;
        // One address can be in a large page, of which many parts are known.
        let all = globals || matches!(what, Flush::Page(_) | Flush::Pcid(0, ..));
        self.known.iter_mut().for_each(|known| known.forget(all));
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
}
