//! What the driver asks of the hypervisor.

use std::ops::Range;

use cdna::call::ENTRIES_MAX;
use cdna::{Descriptor, Direction};

/// Descriptors, or ranges of pages, per call at most.
pub const BATCH: usize = ENTRIES_MAX;

/// The hypervisor did not do what a call asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It refused.
    #[error("the hypervisor refused: {0}")]
    Refused(String),
    /// The context, or the hypervisor, is gone.
    #[error("the context is gone")]
    Gone,
}

/// The hypervisor's calls about one context. Each ring has a handle.
pub trait Hypercalls: Send {
    /// Puts descriptors into a ring that only the hypervisor can write. They are at most [`BATCH`], and
    /// their indices are consecutive. The hypervisor writes the sequence numbers.
    ///
    /// # Errors
    /// No descriptor was put into the ring.
    fn enqueue(&mut self, direction: Direction, batch: &[Descriptor]) -> Result<(), CallError>;

    /// Maps pages of this domain for the card: to be read for [`Direction::Tx`], to be written for
    /// [`Direction::Rx`]. They are given by their machine page numbers, in at most [`BATCH`] ranges. Each is
    /// mapped at its machine address.
    ///
    /// # Errors
    /// No page was mapped.
    fn map(&mut self, direction: Direction, pages: &[Range<u64>]) -> Result<(), CallError>;

    /// Unmaps such pages.
    ///
    /// # Errors
    /// No page was unmapped.
    fn unmap(&mut self, pages: &[Range<u64>]) -> Result<(), CallError>;
}
