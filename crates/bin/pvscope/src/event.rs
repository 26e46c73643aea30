//! What a report weighs code by.

use clap::ValueEnum;
use scope_model::{Costs, Counters};

/// What code is weighed by: the order of rows, their shares, and the widths of a flame graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Event {
    /// Model cycles.
    #[default]
    Cycles,
    /// Instructions.
    Instructions,
    /// Lines of code that L1 missed.
    L1i,
    /// Lines of data that L1 missed.
    L1d,
    /// Lines that L2 missed.
    L2,
    /// Lines from memory.
    Memory,
    /// Misses of the ITLB.
    Itlb,
    /// Misses of the DTLB.
    Dtlb,
    /// Walks of the page tables.
    PageWalks,
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

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::Instructions => "instructions",
            Self::L1i => "L1I misses",
            Self::L1d => "L1D misses",
            Self::L2 => "L2 misses",
            Self::Memory => "lines from memory",
            Self::Itlb => "ITLB misses",
            Self::Dtlb => "DTLB misses",
            Self::PageWalks => "page walks",
        }
    }
}
