//! Cycles from counts.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cost_event::EventCosts;
use crate::counters::Counters;

/// The cost of each kind of event, in model cycles. A real processor overlaps much of this work: model cycles rank code, and
/// do not tell how long it takes.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Costs {
    /// An instruction whose code and data are in L1.
    pub instruction: f64,
    /// A line that L1 misses and L2 hits.
    pub l2_hit: f64,
    /// The same for a line whose neighbour was used shortly before, as in a copy.
    pub l2_sequential: f64,
    /// A line that L2 misses and L3 hits.
    pub l3_hit: f64,
    /// The same for a line in a row.
    pub l3_sequential: f64,
    /// A line from memory.
    pub memory: f64,
    /// The same for a line in a row: prefetched, or at least overlapped.
    pub memory_sequential: f64,
    /// A page that the first level of TLBs misses and the second hits.
    pub tlb2_hit: f64,
    /// A walk of the page tables.
    pub page_walk: f64,
    /// Other events.
    pub event: EventCosts,
}

impl Costs {
    /// The model cycles that these counts cost.
    #[must_use]
    pub fn cycles(&self, counters: &Counters) -> f64 {
        let l1 = counters.l1i_misses + counters.read_misses + counters.write_misses;
        let l2 = counters.l2i_misses + counters.l2d_misses;
        let tlb = counters.itlb_misses + counters.dtlb_misses;
        let (l1_single, l2_single, l3_single) = (
            l1.saturating_sub(counters.l1_sequential),
            l2.saturating_sub(counters.l2_sequential),
            counters.l3_misses.saturating_sub(counters.l3_sequential),
        );
        let parts = [
            (counters.instructions, self.instruction),
            (l1_single.saturating_sub(l2_single), self.l2_hit),
            (counters.l1_sequential.saturating_sub(counters.l2_sequential), self.l2_sequential),
            (l2_single.saturating_sub(l3_single), self.l3_hit),
            (counters.l2_sequential.saturating_sub(counters.l3_sequential), self.l3_sequential),
            (l3_single, self.memory),
            (counters.l3_sequential, self.memory_sequential),
            (tlb.saturating_sub(counters.page_walks), self.tlb2_hit),
            (counters.page_walks, self.page_walk),
        ];
        let events = counters.events.iter().zip(self.event.named());
        parts.iter().map(|(count, cost)| *count as f64 * cost).sum::<f64>()
            + events.map(|(count, (_, cost))| *count as f64 * cost).sum::<f64>()
    }
}

impl std::fmt::Display for Costs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "instruction {}, L2 hit {} ({} in a row), L3 hit {} ({} in a row), memory {} ({} in a row), second TLB {}, page walk {}",
            self.instruction,
            self.l2_hit,
            self.l2_sequential,
            self.l3_hit,
            self.l3_sequential,
            self.memory,
            self.memory_sequential,
            self.tlb2_hit,
            self.page_walk
        )?;
        self.event.named().iter().try_for_each(|(name, cost)| write!(f, ", {name} {cost}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Preset;
    use crate::cost_event::{CostEvent, EventCounts};

    /// Costs that are different powers of ten.
    fn costs() -> Costs {
        Costs {
            instruction: 1.0,
            l2_hit: 10.0,
            l2_sequential: 0.01,
            l3_hit: 1e2,
            l3_sequential: 1e3,
            memory: 1e4,
            memory_sequential: 1e5,
            tlb2_hit: 1e6,
            page_walk: 1e7,
            event: EventCosts { cr3: 1e8, vm_switch: 1e9, ..EventCosts::default() },
        }
    }

    #[test]
    fn every_event_costs_once_what_the_table_says() {
        let mut events = EventCounts::default();
        events[CostEvent::Cr3 as usize] = 2;
        events[CostEvent::VmSwitch as usize] = 1;
        let counters = Counters {
            instructions: 5,
            l1i_misses: 4,
            read_misses: 5,
            write_misses: 6,
            l2i_misses: 3,
            l2d_misses: 9,
            l1_sequential: 8,
            l2_sequential: 7,
            l3_misses: 6,
            l3_sequential: 4,
            itlb_misses: 4,
            dtlb_misses: 4,
            page_walks: 6,
            events,
            ..Counters::default()
        };
        // 7 single misses of L1 and 8 in a row; of L2 5 and 7; of L3 2 and 4.
        let expected = 1_262_423_325.01;
        assert!((costs().cycles(&counters) - expected).abs() < 1e-3);
    }

    #[test]
    fn without_second_levels_a_miss_costs_as_much_as_memory_and_a_walk() {
        let counters = Counters {
            read_misses: 2,
            l2d_misses: 2,
            l1_sequential: 1,
            l2_sequential: 1,
            l3_misses: 2,
            l3_sequential: 1,
            dtlb_misses: 1,
            page_walks: 1,
            ..Counters::default()
        };
        assert!((costs().cycles(&counters) - 10_110_000.0).abs() < 0.5);
    }

    #[test]
    fn presets_keep_the_order_of_the_memory_hierarchy() {
        for preset in Preset::ALL {
            let costs = preset.costs();
            assert!(costs.instruction < costs.l2_hit && costs.l2_hit < costs.l3_hit);
            assert!(costs.l3_hit < costs.memory && costs.memory_sequential < costs.memory / 4.0);
            assert!(preset.config().check().is_ok());
            assert_eq!(Preset::named(preset.name()), Some(preset));
        }
    }
}
