//! Walks the guest's page tables.

use std::collections::HashMap;
use std::ops::Range;

use crate::config::{Config, LINE, TlbSet};
use crate::mapping::{Mapping, PAGE_SLOTS, Side};
use crate::paging::{Flush, PageSize, Paging, PhysicalMemory, Translation, is_uniform, walk};

/// Linux's map of all memory, without KASLR (`Documentation/arch/x86/x86_64/mm.rst`).
const LINEAR_MAP: Range<u64> = 0xffff_8880_0000_0000..0xffff_c880_0000_0000;
/// All addresses of a kernel, those of a paravirtual guest too: Xen's lie below.
const KERNEL: Range<u64> = LINEAR_MAP.start..u64::MAX;
/// The number of no page: page numbers have fewer bits.
const NONE: u64 = u64::MAX;
/// For how many flushes it stays known whether a block of pages could be one large page.
const UNIFORM_FOR: u64 = 64;

/// Line numbers beyond memory, for pages that nothing maps and for devices: 128 MiB of them.
const BEYOND: u64 = 1 << 21;

/// The slot of a page among the current ones.
#[inline]
fn slot(page: u64) -> usize {
    usize::try_from(page % PAGE_SLOTS as u64).unwrap_or(0)
}

/// The pages whose mappings the model has and that have not changed since, by [slot].
#[derive(Debug)]
struct CurrentPages {
    pages: Box<[u64; PAGE_SLOTS]>,
    global: Box<[bool; PAGE_SLOTS]>,
}

impl CurrentPages {
    fn new() -> Self {
        Self { pages: Box::new([NONE; PAGE_SLOTS]), global: Box::new([false; PAGE_SLOTS]) }
    }

    fn forget(&mut self, globals: bool) {
        for (page, global) in self.pages.iter_mut().zip(self.global.iter()) {
            if globals || !global {
                *page = NONE;
            }
        }
    }
}

/// Walks the guest's page tables at the time of an access: when the model sees the access they may be different. It walks once
/// for each page, and again when the mapping may have changed.
#[derive(Debug)]
pub struct Walker<M> {
    memory: M,
    paging: Paging,
    /// The current pages of each side.
    current: [CurrentPages; 2],
    /// Whether policies other than the processor's own are modelled.
    policies: bool,
    /// The addresses that superpages may cover under such policies.
    superpages: Range<u64>,
    /// Counts flushes.
    epoch: u64,
    uniform: HashMap<u64, (u64, bool)>,
    untranslated: u64,
}

impl<M: PhysicalMemory> Walker<M> {
    /// A walker without current pages.
    pub fn new(memory: M, paging: Paging, config: &Config) -> Self {
        Self {
            memory,
            paging,
            current: [CurrentPages::new(), CurrentPages::new()],
            policies: !config.single,
            superpages: if config.kernel_superpages { KERNEL } else { LINEAR_MAP },
            epoch: 0,
            uniform: HashMap::new(),
            untranslated: 0,
        }
    }

    /// Whether a page was walked for, and nothing has happened since that could have changed its mapping.
    #[inline]
    #[must_use]
    pub fn is_current(&self, side: Side, page: u64) -> bool {
        self.current[side as usize].pages[slot(page)] == page
    }

    /// The mapping of a page that is accessed now. The page is current from here on.
    pub fn walk(&mut self, side: Side, page: u64) -> Mapping {
        let address = page << 12;
        let translation = walk(&self.memory, self.paging, address);
        let global = translation.is_some_and(|translation| translation.global);
        let current = &mut self.current[side as usize];
        (current.pages[slot(page)], current.global[slot(page)]) = (page, global);
        let large = translation.as_ref().map_or(TlbSet::NONE, |found| self.large(address, found));
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
            // A few instructions take a physical address, as AMD's VMLOAD, with which Xen loads segments.
            None if self.memory.read(address).is_some() => line(address),
            None => {
                self.untranslated += 1;
                self.first_beyond() + line(address) % BEYOND
            }
        }
    }

    /// The number of a line of memory; for a device's line, one beyond memory.
    fn within(&self, line: u64) -> u64 {
        let beyond = self.first_beyond();
        if line < beyond { line } else { beyond + line % BEYOND }
    }

    /// The number of the first line beyond memory, at the start of a page.
    fn first_beyond(&self) -> u64 {
        self.memory.end().div_ceil(4096) * 4096 / LINE as u64
    }

    /// All physical lines have numbers below this.
    pub fn lines(&self) -> u64 {
        self.first_beyond() + BEYOND
    }

    /// How many walks found nothing mapped. The lines of such pages are beyond memory.
    pub fn untranslated(&self) -> u64 {
        self.untranslated
    }

    /// Under which policies a small page would be part of a large one.
    fn large(&mut self, address: u64, translation: &Translation) -> TlbSet {
        let small = translation.size == PageSize::Small;
        if !self.policies || !small || !self.superpages.contains(&address) {
            return TlbSet::NONE;
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
        // Read-only pages break blocks up: page tables and granted pages.
        Mapping::large(uniform, translation.writable || uniform)
    }

    /// Applies an instruction after which mappings may have changed.
    pub fn flush(&mut self, what: Flush) {
        let globals = self.paging.apply(what);
        self.epoch += 1;
        // An address may lie in a large page, of which many 4 KiB parts are current.
        let all = globals || matches!(what, Flush::Page(_) | Flush::Pcid(0, ..));
        self.current.iter_mut().for_each(|current| current.forget(all));
    }

    /// The physical address of a virtual one. This makes no page current.
    pub fn physical(&self, address: u64) -> Option<u64> {
        walk(&self.memory, self.paging, address).map(|page| page.physical(address))
    }

    /// The guest's memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The state of paging.
    pub fn paging(&self) -> Paging {
        self.paging
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Preset;

    struct Words(HashMap<u64, u64>);

    impl PhysicalMemory for Words {
        fn read(&self, address: u64) -> Option<u64> {
            Some(self.0.get(&address).copied().unwrap_or(0))
        }

        fn end(&self) -> u64 {
            1 << 30
        }
    }

    #[test]
    fn superpages_cover_a_kernels_image_only_if_they_cover_all_of_it() {
        const IMAGE: u64 = 0xffff_ffff_8100_0000;
        // A table of each level, and a page that is writable.
        let tables: [(u64, u32); 4] = [(0x1000, 39), (0x2000, 30), (0x3000, 21), (0x4000, 12)];
        let entry =
            |(table, shift): (u64, u32)| (table + (IMAGE >> shift & 0x1ff) * 8, table + 0x1000 + 3);
        for kernel_superpages in [false, true] {
            let config = Config { kernel_superpages, ..Preset::Of2007.config() };
            let memory = Words(tables.into_iter().map(entry).collect());
            let paging = Paging { root: 0x1000, ..Paging::default() };
            let mapping = Walker::new(memory, paging, &config).walk(Side::Data, IMAGE >> 12);
            assert_eq!(mapping.size, Some(PageSize::Small));
            assert_eq!(mapping.large, Mapping::large(false, kernel_superpages));
        }
    }
}
