//! Counts of instructions, accesses and misses.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::config::{L2_SIZES, Policy, TLB_SIZES, TlbSet};
use crate::cost_event::EventCounts;

/// Counts of a block of code, or of many, for the processor of a [`Config`](crate::Config).
///
/// Hits are lookups that did not miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Executions of blocks.
    pub executions: u64,
    /// Instructions executed.
    pub instructions: u64,
    /// Lines of code looked up in L1I.
    pub l1i: u64,
    /// Lines of code that L1I missed: lookups in L2.
    pub l1i_misses: u64,
    /// Lines of code that L2 missed too.
    pub l2i_misses: u64,
    /// Reads of data, in lines looked up in L1D.
    pub reads: u64,
    /// Writes of data, in lines looked up in L1D.
    pub writes: u64,
    /// Reads that L1D missed.
    pub read_misses: u64,
    /// Writes that L1D missed.
    pub write_misses: u64,
    /// Lines of data that L2 missed too.
    pub l2d_misses: u64,
    /// Translations of code that the ITLB missed, of `l1i` lookups.
    pub itlb_misses: u64,
    /// Translations of data that the DTLB missed, of `reads` and `writes` lookups.
    pub dtlb_misses: u64,
    /// Lines that L1 missed shortly after a neighbouring line was used.
    pub l1_sequential: u64,
    /// Lines that L2 missed shortly after a neighbouring line was used.
    pub l2_sequential: u64,
    /// Lines that came from memory: those that L3 missed, or L2 without an L3.
    pub l3_misses: u64,
    /// Those of them that followed a neighbouring line.
    pub l3_sequential: u64,
    /// Translations that the second level of TLBs missed, or the first if there is one only.
    pub page_walks: u64,
    /// Other events, by number.
    pub events: EventCounts,
}

impl std::ops::AddAssign<&Self> for Counters {
    fn add_assign(&mut self, other: &Self) {
        *self = self.with(other, |sum, more| sum + more);
    }
}

impl Counters {
    /// The share of the instructions from `part.start` to `part.end` in a run of `of` instructions: their number, and misses
    /// and events in proportion to it. The shares of all parts sum up to the whole, except for `executions`, which each share
    /// has in full.
    #[must_use]
    pub fn share(&self, part: Range<u64>, of: u64) -> Self {
        let share = |count: u64| {
            let until = |end: u64| u128::from(count) * u128::from(end) / u128::from(of.max(1));
            // No more than the count itself.
            u64::try_from(until(part.end) - until(part.start)).unwrap_or(count)
        };
        Self { executions: self.executions, ..self.with(self, |count, _| share(count)) }
    }

    /// Combines each count with the other's by `of`.
    fn with(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        Self {
            executions: of(self.executions, other.executions),
            instructions: of(self.instructions, other.instructions),
            l1i: of(self.l1i, other.l1i),
            l1i_misses: of(self.l1i_misses, other.l1i_misses),
            l2i_misses: of(self.l2i_misses, other.l2i_misses),
            reads: of(self.reads, other.reads),
            writes: of(self.writes, other.writes),
            read_misses: of(self.read_misses, other.read_misses),
            write_misses: of(self.write_misses, other.write_misses),
            l2d_misses: of(self.l2d_misses, other.l2d_misses),
            itlb_misses: of(self.itlb_misses, other.itlb_misses),
            dtlb_misses: of(self.dtlb_misses, other.dtlb_misses),
            l1_sequential: of(self.l1_sequential, other.l1_sequential),
            l2_sequential: of(self.l2_sequential, other.l2_sequential),
            l3_misses: of(self.l3_misses, other.l3_misses),
            l3_sequential: of(self.l3_sequential, other.l3_sequential),
            page_walks: of(self.page_walks, other.page_walks),
            events: std::array::from_fn(|n| of(self.events[n], other.events[n])),
        }
    }
}

/// Misses under every size and policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// Lines of code that each L2 missed.
    pub l2i: [u64; L2_SIZES],
    /// Lines of data that each L2 missed.
    pub l2d: [u64; L2_SIZES],
    /// Misses of each ITLB, by policy and size.
    pub itlb: [[u64; TLB_SIZES]; Policy::ALL.len()],
    /// Misses of each DTLB, by policy and size.
    pub dtlb: [[u64; TLB_SIZES]; Policy::ALL.len()],
}

impl Sweep {
    /// Counts `times` lines of which each was missed by the L2s of `missed`, one bit each.
    pub fn add_lines(&mut self, missed: u8, is_code: bool, times: u64) {
        let counts = if is_code { &mut self.l2i } else { &mut self.l2d };
        count(missed.into(), counts, times);
    }

    /// Counts a page that the TLBs of `missed` missed.
    pub fn add_page(&mut self, missed: TlbSet, is_code: bool) {
        let counts = if is_code { &mut self.itlb } else { &mut self.dtlb };
        count(missed.0, counts.as_flattened_mut(), 1);
    }
}

/// Adds `times` to the count of each bit that is set.
fn count(mut bits: u64, counts: &mut [u64], times: u64) {
    while bits != 0 {
        if let Some(count) = counts.get_mut(bits.trailing_zeros() as usize) {
            *count += times;
        }
        bits &= bits - 1;
    }
}

impl std::ops::AddAssign<&Self> for Sweep {
    fn add_assign(&mut self, other: &Self) {
        fn add<'a>(to: impl Iterator<Item = &'a mut u64>, from: impl Iterator<Item = &'a u64>) {
            to.zip(from).for_each(|(to, from)| *to += from);
        }
        add(self.l2i.iter_mut(), other.l2i.iter());
        add(self.l2d.iter_mut(), other.l2d.iter());
        add(self.itlb.iter_mut().flatten(), other.itlb.iter().flatten());
        add(self.dtlb.iter_mut().flatten(), other.dtlb.iter().flatten());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_sum_up_to_the_whole() {
        let whole = Counters {
            executions: 3,
            instructions: 21,
            read_misses: 5,
            events: [2; crate::CostEvent::ALL.len()],
            ..Counters::default()
        };
        let mut sum = Counters::default();
        for part in [0..2, 2..3, 3..7] {
            let share = whole.share(part.clone(), 7);
            assert_eq!(share.instructions, 3 * (part.end - part.start));
            assert_eq!(share.executions, 3);
            sum += &share;
        }
        assert_eq!(sum, Counters { executions: 9, ..whole });
    }
}
