//! What a report weighs code by.

use clap::ValueEnum;
use scope_model::{Costs, Counters};

named::named! {
    /// What code is weighed by: the order of rows, their shares, and the widths of a flame graph.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
    pub enum Event {
        /// Model cycles.
        #[default]
        Cycles => "cycles",
        /// Instructions.
        Instructions => "instructions",
        /// Lines of code that L1 missed.
        L1i => "L1I misses",
        /// Lines of data that L1 missed.
        L1d => "L1D misses",
        /// Lines that L2 missed.
        L2 => "L2 misses",
        /// Lines from memory.
        Memory => "lines from memory",
        /// Misses of the ITLB.
        Itlb => "ITLB misses",
        /// Misses of the DTLB.
        Dtlb => "DTLB misses",
        /// Walks of the page tables.
        PageWalks => "page walks",
    }
}

impl Event {
    /// The weight of counts.
    pub fn of(self, counters: &Counters, costs: &Costs) -> f64 {
        let count = match self {
            Self::Cycles => return costs.cycles(counters),
            Self::Instructions => counters.instructions,
            Self::L1i => counters.l1i_misses,
            Self::L1d => counters.read_misses + counters.write_misses,
            Self::L2 => counters.l2i_misses + counters.l2d_misses,
            Self::Memory => counters.l3_misses,
            Self::Itlb => counters.itlb_misses,
            Self::Dtlb => counters.dtlb_misses,
            Self::PageWalks => counters.page_walks,
        };
        count as f64
    }
}
