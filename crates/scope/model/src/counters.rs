//! What is counted.

use serde::{Deserialize, Serialize};

use crate::config::{L2_SIZES, TLB_SIZES};
use crate::policy::POLICIES;
use crate::tlb::Mask;

/// Counts of one place in the code, or of many, for the processor of a [`Config`](crate::Config).
///
/// Hits are what was looked up and did not miss.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Instructions.
    pub instructions: u64,
    /// Lines of code looked up in L1I.
    pub l1i: u64,
    /// Those that L1I did not have: what L2 is asked for.
    pub l1i_misses: u64,
    /// Those that L2 did not have either.
    pub l2i_misses: u64,
    /// Data read, in lines looked up in L1D.
    pub reads: u64,
    /// Data written.
    pub writes: u64,
    /// Reads that L1D did not have.
    pub read_misses: u64,
    /// Writes that L1D did not have.
    pub write_misses: u64,
    /// Data that L2 did not have either.
    pub l2d_misses: u64,
    /// Translations of code that the ITLB did not have; all of `l1i` were looked up.
    pub itlb_misses: u64,
    /// Translations of data that the DTLB did not have; all of `reads` and `writes` were looked up.
    pub dtlb_misses: u64,
}

impl std::ops::AddAssign<&Self> for Counters {
    fn add_assign(&mut self, other: &Self) {
        self.instructions += other.instructions;
        self.l1i += other.l1i;
        self.l1i_misses += other.l1i_misses;
        self.l2i_misses += other.l2i_misses;
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_misses += other.read_misses;
        self.write_misses += other.write_misses;
        self.l2d_misses += other.l2d_misses;
        self.itlb_misses += other.itlb_misses;
        self.dtlb_misses += other.dtlb_misses;
    }
}

/// Misses of every size and policy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sweep {
    /// Code that each L2 did not have.
    pub l2i: [u64; L2_SIZES],
    /// Data that each L2 did not have.
    pub l2d: [u64; L2_SIZES],
    /// Misses of each ITLB: sizes of the first policy, of the second, ….
    pub itlb: [[u64; TLB_SIZES]; POLICIES.len()],
    /// Misses of each DTLB.
    pub dtlb: [[u64; TLB_SIZES]; POLICIES.len()],
}

impl Sweep {
    /// Counts the L2s that missed a line, so many times.
    pub fn add_lines(&mut self, missed: u8, is_code: bool, times: u64) {
        let counts = if is_code { &mut self.l2i } else { &mut self.l2d };
        count(missed.into(), counts, times);
    }

    /// Counts the TLBs that missed a page.
    pub fn add_page(&mut self, missed: Mask, is_code: bool) {
        let counts = if is_code { &mut self.itlb } else { &mut self.dtlb };
        count(missed.0, counts.as_flattened_mut(), 1);
    }
}

/// Counts bits, each in its place.
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
