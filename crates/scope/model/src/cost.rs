//! Cycles from counts.

use serde::{Deserialize, Serialize};

use crate::counters::Counters;

/// The cost of each kind of event, in cycles. This is only a model: a real processor overlaps much of this work.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// An instruction whose code and data are in L1.
    pub instruction: f64,
    /// A line that L1 misses and L2 hits.
    pub l2_hit: f64,
    /// A line that L2 misses.
    pub memory: f64,
    /// A walk of the page tables.
    pub page_walk: f64,
}

impl Default for Costs {
    /// About the costs of a current server core at 3 GHz: L2 in 14 cycles, memory in 90 ns, a page walk whose tables are in
    /// the caches.
    fn default() -> Self {
        Self { instruction: 0.5, l2_hit: 14.0, memory: 270.0, page_walk: 30.0 }
    }
}

impl Costs {
    /// The cycles that these counts cost.
    #[must_use]
    pub fn cycles(&self, counters: &Counters) -> f64 {
        let l1 = counters.l1i_misses + counters.read_misses + counters.write_misses;
        let l2 = counters.l2i_misses + counters.l2d_misses;
        let tlb = counters.itlb_misses + counters.dtlb_misses;
        counters.instructions as f64 * self.instruction
            + l1.saturating_sub(l2) as f64 * self.l2_hit
            + l2 as f64 * self.memory
            + tlb as f64 * self.page_walk
    }
}
