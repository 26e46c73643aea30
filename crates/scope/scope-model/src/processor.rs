//! A whole processor that takes one access at a time.

use crate::cache::{L2Bank, Lookup};
use crate::config::{Config, LINE};
use crate::counters::{Counters, Sweep};
use crate::line_id::LineId;
use crate::mapping::Side;
use crate::model::{Model, Outcome};
use crate::paging::{Flush, FlushSite, Paging, PhysicalMemory};
use crate::streams::Streams;
use crate::walker::Walker;

/// Caches, TLBs and page tables of a processor, which counts one access at a time. A recording divides the same work between
/// threads; this is for programs that are known.
#[derive(Debug)]
pub struct Processor<M> {
    /// The walker of its page tables.
    pub walker: Walker<M>,
    /// Its L1s and TLBs.
    pub model: Model,
    l2s: L2Bank,
    streams: Streams,
    /// All counts so far.
    pub counters: Counters,
    /// Misses of every size and policy.
    pub sweep: Sweep,
}

impl<M: PhysicalMemory> Processor<M> {
    /// A processor whose caches and TLBs are empty.
    pub fn new(memory: M, paging: Paging, config: Config) -> Self {
        let walker = Walker::new(memory, paging, &config);
        let lines = walker.lines();
        Self {
            walker,
            model: Model::new(config, paging, lines),
            l2s: L2Bank::new(config, lines),
            streams: Streams::default(),
            counters: Counters::default(),
            sweep: Sweep::default(),
        }
    }

    /// Executes the instruction at an address.
    pub fn fetch(&mut self, address: u64) {
        self.map(Side::Code, address);
        self.access(LineId::of(Side::Code, address), None);
    }

    /// Reads or writes data of at most a line.
    pub fn data(&mut self, address: u64, bytes: u8, write: bool) {
        let last = address + u64::from(bytes).saturating_sub(1);
        self.map(Side::Data, address);
        self.map(Side::Data, last);
        for line in address / LINE as u64..=last / LINE as u64 {
            self.access(LineId::of(Side::Data, line * LINE as u64), Some(write));
        }
    }

    /// Applies an instruction that empties TLBs.
    pub fn flush(&mut self, what: Flush, site: FlushSite) {
        self.walker.flush(what);
        self.model.flush(what, site);
    }

    fn map(&mut self, side: Side, address: u64) {
        let page = address >> 12;
        if !self.walker.is_current(side, page) {
            self.model.map(side, page, self.walker.walk(side, page));
        }
    }

    fn access(&mut self, line: LineId, write: Option<bool>) {
        let used = access(&mut self.model, line);
        let behind_l1 = (&mut self.l2s, &mut self.streams);
        let counts = (&mut self.counters, &mut self.sweep);
        count(behind_l1, counts, *self.model.config(), (used, write));
    }
}

// Not generic over the memory, so they are compiled in this crate, which is optimised even where its user is not.

fn access(model: &mut Model, line: LineId) -> Outcome {
    model.access(line)
}

fn count(
    (l2s, streams): (&mut L2Bank, &mut Streams),
    (site, sweep): (&mut Counters, &mut Sweep),
    config: Config,
    (used, write): (Outcome, Option<bool>),
) {
    let is_code = write.is_none();
    let mut missed = [0];
    if used.l1_miss {
        l2s.access_all(&mut [Lookup::new(used.line, 0)], &mut missed);
    }
    let [missed] = missed;
    sweep.add_lines(missed, is_code, 1);
    sweep.add_page(used.tlb_misses, is_code);
    let (l1, l2, tlb) = match write {
        None => (&mut site.l1i_misses, &mut site.l2i_misses, &mut site.itlb_misses),
        Some(false) => (&mut site.read_misses, &mut site.l2d_misses, &mut site.dtlb_misses),
        Some(true) => (&mut site.write_misses, &mut site.l2d_misses, &mut site.dtlb_misses),
    };
    let follows = used.l1_miss && streams.follows(used.line);
    let (counted, from_memory) = (config.counts_line(missed), config.is_from_memory(missed));
    *l1 += u64::from(used.l1_miss);
    *l2 += u64::from(counted);
    *tlb += u64::from(used.tlb_misses.intersects(config.counted()));
    site.l1_sequential += u64::from(follows);
    site.l2_sequential += u64::from(counted && follows);
    site.l3_misses += u64::from(from_memory);
    site.l3_sequential += u64::from(from_memory && follows);
    site.page_walks += u64::from(used.tlb_misses.intersects(config.walking()));
    match write {
        None => site.l1i += 1,
        Some(false) => site.reads += 1,
        Some(true) => site.writes += 1,
    }
}
