//! A machine with its own page tables, and a processor that runs a program.

use scope_model::{
    Config, Flush, FlushSite, L2Bank, Lookup, PageSize, Paging, PhysicalMemory, Processor,
};

pub const PAGE: u64 = 4096;
const TABLES: u64 = 0x10_0000;
pub const END: u64 = 1 << 33;

/// Memory that contains only page tables.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub words: std::collections::HashMap<u64, u64>,
    tables: u64,
}

impl PhysicalMemory for Memory {
    fn read(&self, address: u64) -> Option<u64> {
        (address < END).then(|| self.words.get(&address).copied().unwrap_or(0))
    }

    fn end(&self) -> u64 {
        END
    }
}

impl Memory {
    fn table(&mut self) -> u64 {
        self.tables += 1;
        TABLES + self.tables * PAGE
    }

    /// Maps a page of this size. `entry` is its physical address, and flags.
    pub fn map(&mut self, root: u64, address: u64, entry: u64, size: PageSize) {
        let mut table = root;
        for shift in [39, 30, 21, 12] {
            let slot = table + ((address >> shift) & 511) * 8;
            if shift == size.bits() {
                let large = if shift == 12 { 0 } else { 1 << 7 };
                self.words.insert(slot, entry | 3 | large);
                return;
            }
            let next = self.words.get(&slot).copied().unwrap_or(0) & !0xfff;
            table = if next == 0 { self.table() } else { next };
            self.words.insert(slot, table | 3);
        }
    }
}

/// A processor that runs a program.
pub type World = Processor<Memory>;

pub const ROOT: u64 = 0x1000;
pub const OTHER: u64 = 0x2000;
pub const GLOBAL: u64 = 1 << 8;

pub fn world(memory: Memory, config: Config) -> World {
    World::new(memory, Paging { root: ROOT, global: true, ..Paging::default() }, config)
}

pub fn read(world: &mut World, address: u64) {
    world.data(address, 8, false);
}

/// An instruction outside the hypervisor's switch of address spaces.
pub fn flush(world: &mut World, what: Flush) {
    world.flush(what, FlushSite::Elsewhere);
}

/// Which L2s missed each of these lines.
pub fn missed(l2: &mut L2Bank, lines: &[u64]) -> Vec<u8> {
    let mut lookups: Vec<Lookup> =
        lines.iter().enumerate().map(|(place, line)| Lookup::new(*line, place)).collect();
    let mut missed = vec![0; lines.len()];
    l2.access_all(&mut lookups, &mut missed);
    missed
}

/// `count` consecutive pages, mapped one to one.
pub fn pages(count: u64, first: u64, flags: u64) -> Memory {
    let mut memory = Memory::default();
    for page in 0..count {
        let address = first + page * PAGE;
        for root in [ROOT, OTHER] {
            memory.map(root, address, (0x4000_0000 + page * PAGE) | flags, PageSize::Small);
        }
    }
    memory
}
