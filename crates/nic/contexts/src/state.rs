//! The state of a context, how it is protected, and how it ended.

use std::time::Duration;

use cdna::{ContextId, Direction, Fault};
use hypervisor::DomId;

/// Why a context was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Somebody took it away.
    #[error("taken away")]
    Requested,
    /// Its domain ended.
    #[error("its domain ended")]
    OwnerEnded,
    /// The card found a fault of the guest.
    #[error("fault: {0}")]
    Fault(Fault),
    /// The card ended.
    #[error("the card ended")]
    CardEnded,
    /// The card wrote an impossible consumer index.
    #[error("the card's {ring:?} consumer index {consumer} is impossible")]
    BadConsumer {
        /// Of which ring.
        ring: Direction,
        /// The index.
        consumer: u32,
    },
}

/// The state of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nobody's.
    Free,
    /// A domain's.
    Active,
    /// It takes no calls, and the card has to be told to revoke it.
    Stopped(Reason),
    /// The card was told to revoke it, and may still use its pages.
    Revoking(Reason),
}

/// The end of a context's last assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The domain that had it.
    pub owner: DomId,
    /// Which assignment.
    pub generation: u32,
    /// Why.
    pub reason: Reason,
}

/// A context at one moment, for `pvnet status`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextStatus {
    /// Which.
    pub context: ContextId,
    /// What it is.
    pub state: State,
    /// Whose, and how protected.
    pub assigned: Option<(DomId, Protection)>,
    /// Counts its assignments.
    pub generation: u32,
    /// How the last assignment ended.
    pub ended: Option<Ended>,
    /// References to pages that it holds.
    pub references: usize,
    /// Descriptors of the TX and RX ring that the card had not consumed when it was last checked.
    pub pending: [u32; 2],
    /// Calls that enqueued.
    pub calls: u64,
    /// Descriptors that they enqueued.
    pub descriptors: u64,
    /// Pages that were mapped by calls.
    pub mapped: u64,
    /// Calls that were refused. A call that waited and was then done does not count.
    pub refused: u64,
}

/// When pages are mapped in a context's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IommuMode {
    /// All pages that the domain owns are mapped, as long as it owns them.
    Static,
    /// The guest maps and unmaps buffers. Unmapping waits for the card.
    Strict,
    /// The guest maps and unmaps buffers. Unmapped pages are collected before the card is asked.
    Deferred {
        /// How many pages are collected at most.
        pages: u32,
        /// How long they are collected at most.
        after: Duration,
    },
}

/// Who writes a context's descriptors, and what keeps the card from memory of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// The guest writes them. Nothing protects others.
    None,
    /// The hypervisor writes them, after its checks.
    Hypervisor,
    /// The guest writes them. The context's table protects others.
    Iommu(IommuMode),
}

impl Protection {
    /// What the card has to know of it.
    #[must_use]
    pub const fn for_card(self) -> cdna::message::Protection {
        match self {
            Self::None => cdna::message::Protection::None,
            Self::Hypervisor => cdna::message::Protection::Hypervisor,
            Self::Iommu(_) => cdna::message::Protection::Iommu,
        }
    }
}
