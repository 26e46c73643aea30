//! The model cycles of kernels.

use scope_model::{Config, CostEvent, Costs, Counters, Paging, PhysicalMemory, Processor};

use super::kernel::{BUFFER, Kernel, LINE, SEGMENT};

/// Physical memory that has only page tables. They map every page of 4 KiB to itself.
struct OneToOne;

/// The top-level page table.
const ROOT: u64 = 0x1000;
/// The tables of the lowest level.
const TABLES: u64 = 1 << 20;
/// The end of memory, and the number of its pages of 2 MiB.
const END: u64 = 4 << 30;
const BLOCKS: u64 = END >> 21;
/// Where kernels have their data: beyond the page tables.
const DATA: u64 = 1 << 30;

impl PhysicalMemory for OneToOne {
    fn read(&self, address: u64) -> Option<u64> {
        const PRESENT: u64 = 3;
        let entry = |first: u64| (address - first) / 8;
        (address < END).then_some(match address {
            ROOT => 0x2000 | PRESENT,
            0x2000..0x2020 => (0x3000 + (entry(0x2000) << 12)) | PRESENT,
            0x3000..0x7000 => (TABLES + (entry(0x3000) << 12)) | PRESENT,
            TABLES.. if entry(TABLES) < BLOCKS * 512 => (entry(TABLES) << 12) | PRESENT,
            _ => 0,
        })
    }

    fn end(&self) -> u64 {
        END
    }
}

/// What all kernels count, for each of their units.
pub struct Predictions {
    /// Of the model.
    pub config: Config,
    counters: [(Counters, u64); Kernel::COUNT],
}

impl Predictions {
    /// Runs all kernels in a model, once to fill its caches and once to count.
    pub fn new(config: Config) -> Self {
        Self { config, counters: Kernel::all().map(|kernel| count(kernel, config)) }
    }

    /// The model cycles of each kernel's unit.
    pub fn cycles(&self, costs: &Costs) -> [f64; Kernel::COUNT] {
        self.counters.each_ref().map(|(counters, units)| costs.cycles(counters) / *units as f64)
    }
}

/// The counts of a kernel's second run, and its units.
fn count(kernel: Kernel, config: Config) -> (Counters, u64) {
    let paging = Paging { root: ROOT, ..Paging::default() };
    // Other sizes are of no interest.
    let mut processor = Processor::new(OneToOne, paging, Config { single: true, ..config });
    let mut units = 0;
    for _ in 0..2 {
        processor.counters = Counters::default();
        units = run(kernel, &mut processor);
    }
    let mut counters = processor.counters;
    counters.instructions = units * kernel.instructions();
    match kernel {
        Kernel::Locked => counters.events[CostEvent::Locked as usize] = units,
        Kernel::SystemCall => counters.events[CostEvent::Syscall as usize] = units,
        _ => {}
    }
    (counters, units)
}

/// Makes the accesses of a kernel. Returns its units.
fn run(kernel: Kernel, processor: &mut Processor<OneToOne>) -> u64 {
    let line = LINE as u64;
    match kernel {
        Kernel::List(_) | Kernel::Pages(_) | Kernel::Scattered(_) => {
            let order = kernel.order();
            order.iter().for_each(|at| processor.data(DATA + u64::from(*at) * line, 4, false));
            order.len() as u64
        }
        Kernel::Read(bytes) => {
            let lines = (bytes / LINE) as u64;
            (0..lines).for_each(|at| processor.data(DATA + at * line, 8, false));
            lines
        }
        Kernel::Copied(bytes) => {
            let buffer = DATA - BUFFER as u64;
            let places = (0..(BUFFER / SEGMENT) as u64).cycle();
            for (segment, place) in (0..(bytes / SEGMENT) as u64).zip(places) {
                for part in (0..SEGMENT as u64).step_by(LINE) {
                    processor.data(DATA + segment * SEGMENT as u64 + part, 8, false);
                    processor.data(buffer + place * SEGMENT as u64 + part, 8, true);
                }
            }
            (bytes / LINE) as u64
        }
        Kernel::Locked | Kernel::SystemCall => {
            processor.data(DATA, 8, true);
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use scope_model::Preset;

    use super::*;

    #[test]
    fn kernels_miss_where_their_data_is_too_large() {
        let config = Preset::Server.config();
        let of = |kernel| {
            let (counters, units) = count(kernel, config);
            let per_unit = |count: u64| count as f64 / units as f64;
            let l2 = counters.l2i_misses + counters.l2d_misses;
            let sequential = per_unit(counters.l3_sequential);
            let misses = [counters.read_misses + counters.write_misses, l2, counters.l3_misses];
            (misses.map(per_unit), sequential, per_unit(counters.dtlb_misses))
        };
        assert_eq!(of(Kernel::List(16 << 10)).0, [0.0; 3]);
        assert_eq!(of(Kernel::List(512 << 10)).0, [1.0, 0.0, 0.0]);
        assert_eq!(of(Kernel::List(8 << 20)).0, [1.0, 1.0, 0.0]);
        assert!(of(Kernel::List(128 << 20)).1 < 0.01, "no line is next to another");
        let (misses, sequential, pages) = of(Kernel::Read(32 << 20));
        assert_eq!((misses, pages), ([1.0; 3], 1.0 / 64.0));
        assert!(sequential > 0.9);
        let (misses, sequential, pages) = of(Kernel::Scattered(32 << 20));
        assert!(misses[2] > 0.9 && sequential < 0.1 && pages > 0.9);
        assert_eq!(of(Kernel::Pages(256)).2, 1.0);
    }
}
