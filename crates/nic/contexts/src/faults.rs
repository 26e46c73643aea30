//! Faults that the card reported.

use std::collections::VecDeque;

use cdna::Fault;
use hypervisor::DomId;

/// Faults that are kept: the newest.
pub const FAULTS_KEPT: usize = 64;

/// A fault, and whose it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultRecord {
    /// The domain that had the context.
    pub owner: DomId,
    /// Which assignment of it.
    pub generation: u32,
    /// What the card found.
    pub fault: Fault,
}

/// The newest faults, and how many there were.
#[derive(Debug, Default)]
pub(crate) struct FaultLog {
    pub(crate) newest: VecDeque<FaultRecord>,
    pub(crate) total: u64,
}

impl FaultLog {
    pub(crate) fn record(&mut self, record: FaultRecord) {
        self.total += 1;
        if self.newest.len() == FAULTS_KEPT {
            self.newest.pop_front();
        }
        self.newest.push_back(record);
    }
}
