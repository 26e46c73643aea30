//! A machine with its own page tables, and a processor that runs a program.

use scope_model::{
    Config, Counters, Flush, FlushSite, L2Bank, LINE, LineId, Lookup, Model, Outcome, PageSize,
    Paging, PhysicalMemory, Side, Sweep, Walker,
};

pub const PAGE: u64 = 4096;
const TABLES: u64 = 0x10_0000;
/// The end of memory.
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

    pub fn map(&mut self, root: u64, address: u64, physical: u64, size: PageSize, flags: u64) {
        let mut table = root;
        for shift in [39, 30, 21, 12] {
            let slot = table + ((address >> shift) & 511) * 8;
            if shift == size.bits() {
                let large = if shift == 12 { 0 } else { 1 << 7 };
                self.words.insert(slot, physical | 3 | large | flags);
                return;
            }
            let next = self.words.get(&slot).copied().unwrap_or(0) & !0xfff;
            table = if next == 0 { self.table() } else { next };
            self.words.insert(slot, table | 3);
        }
    }
}

/// A processor that runs a program, whose counts are all of one site.
pub struct World {
    pub walker: Walker<Memory>,
    pub model: Model,
    l2: L2Bank,
    pub site: Counters,
    pub sweep: Sweep,
}

/// Which L2s missed each of these lines.
pub fn missed(l2: &mut L2Bank, lines: &[u64]) -> Vec<u8> {
    let mut lookups: Vec<Lookup> =
        lines.iter().enumerate().map(|(place, line)| Lookup::new(*line, place)).collect();
    let mut missed = vec![0; lines.len()];
    l2.access_all(&mut lookups, &mut missed);
    missed
}

pub const ROOT: u64 = 0x1000;
pub const OTHER: u64 = 0x2000;
pub const GLOBAL: u64 = 1 << 8;

impl World {
    pub fn new(memory: Memory, config: Config) -> Self {
        let paging = Paging { root: ROOT, global: true, ..Paging::default() };
        let walker = Walker::new(memory, paging, config.single);
        let model = Model::new(config, paging, walker.lines());
        let l2 = L2Bank::new(config, walker.lines());
        Self { walker, model, l2, site: Counters::default(), sweep: Sweep::default() }
    }

    fn map(&mut self, side: Side, address: u64) {
        let page = address / PAGE;
        if !self.walker.is_current(side, page) {
            self.model.map(side, page, self.walker.walk(side, page));
        }
    }

    pub fn read(&mut self, address: u64) {
        self.data(address, false);
    }

    pub fn data(&mut self, address: u64, write: bool) {
        self.map(Side::Data, address);
        self.map(Side::Data, address + 7);
        let (first, last) = (address / LINE as u64, (address + 7) / LINE as u64);
        for line in first..=last {
            let used = self.model.access(LineId::of(Side::Data, line * LINE as u64));
            self.count(used, Some(write));
        }
    }

    pub fn fetch(&mut self, address: u64) {
        self.map(Side::Code, address);
        let used = self.model.access(LineId::of(Side::Code, address));
        self.count(used, None);
    }

    fn count(&mut self, used: Outcome, write: Option<bool>) {
        let is_code = write.is_none();
        let second = if used.l1_miss { missed(&mut self.l2, &[used.line])[0] } else { 0 };
        self.sweep.add_lines(second, is_code, 1);
        self.sweep.add_page(used.tlb_misses, is_code);
        let site = &mut self.site;
        let (l1, l2, tlb) = match write {
            None => (&mut site.l1i_misses, &mut site.l2i_misses, &mut site.itlb_misses),
            Some(false) => (&mut site.read_misses, &mut site.l2d_misses, &mut site.dtlb_misses),
            Some(true) => (&mut site.write_misses, &mut site.l2d_misses, &mut site.dtlb_misses),
        };
        *l1 += u64::from(used.l1_miss);
        *l2 += u64::from(self.model.config().counts_line(second));
        *tlb += u64::from(used.tlb_misses.intersects(self.model.config().counted()));
    }

    pub fn flush(&mut self, what: Flush) {
        self.flush_at(what, FlushSite::Elsewhere);
    }

    pub fn flush_at(&mut self, what: Flush, site: FlushSite) {
        self.walker.flush(what);
        self.model.flush(what, site);
    }
}

/// `count` consecutive pages, mapped one to one.
pub fn pages(count: u64, first: u64, flags: u64) -> Memory {
    let mut memory = Memory::default();
    for page in 0..count {
        let address = first + page * PAGE;
        for root in [ROOT, OTHER] {
            memory.map(root, address, 0x4000_0000 + page * PAGE, PageSize::Small, flags);
        }
    }
    memory
}
