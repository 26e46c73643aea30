//! One card and its contexts.

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::memory::MemoryStatus;
use crate::port::{PortState, Traffic};

/// One card at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NicStatus {
    /// Its name.
    pub name: String,
    /// Whether its process is there.
    pub state: PortState,
    /// Its process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process: Option<u32>,
    /// The device that is its wire.
    pub wire: String,
    /// Its line rate in 10⁶ bits per second; 0 for none.
    pub rate_mbps: u32,
    /// How often a process came to be this card.
    pub attachments: u64,
    /// Vectors of contexts that the present process has sent.
    pub vectors: u64,
    /// Protection faults that the present process has reported.
    pub faults: u64,
    /// The newest of them, oldest first.
    pub newest_faults: Vec<FaultStatus>,
    /// The contexts that the configuration gives to guests.
    pub contexts: Vec<ContextStatus>,
}

/// A protection fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FaultStatus {
    /// The context.
    pub context: u8,
    /// Its guest.
    pub guest: String,
    /// What the guest did.
    pub reason: String,
}

/// The state of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ContextState {
    /// No guest uses it.
    Free,
    /// A guest wants it, and the card is not there.
    Down,
    /// The card or the guest maps its pages.
    Preparing,
    /// The card serves it.
    Up,
    /// The card was told to revoke it.
    Revoking,
    /// The card found a fault of its guest.
    Faulted,
    /// It was taken away.
    Revoked,
}

impl fmt::Display for ContextState {
    /// The name that JSON has.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One context at one moment. Counters begin again with each assignment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextStatus {
    /// Its number on the card.
    pub context: u8,
    /// The guest that the configuration gives it to.
    pub guest: String,
    /// The domain that uses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<u16>,
    /// The guest's memory, at the first of its contexts if it has no port.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryStatus>,
    /// Its MAC address.
    pub mac: String,
    /// How it is protected: `none`, `hypervisor`, `iommu-static`, `iommu-strict` or `iommu-deferred`.
    pub protection: String,
    /// Its state.
    pub state: ContextState,
    /// How its last assignment ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Counts its assignments by the present process.
    pub generation: u32,
    /// References to the guest's pages that it holds.
    pub references: u64,
    /// Descriptors that the card has not consumed, to send and to receive into.
    pub pending: [u32; 2],
    /// Frames that the guest sent.
    pub tx: Traffic,
    /// Frames that it received.
    pub rx: Traffic,
    /// Dropped frames by reason; reasons without a frame are left out.
    pub drops: BTreeMap<String, u64>,
    /// Mailbox events that the card has handled.
    pub events: u64,
    /// Times that the card put it into a vector.
    pub vectored: u64,
    /// Virtual interrupts that its guests have got.
    pub interrupts: u64,
    /// Hypercalls.
    pub calls: u64,
    /// Descriptors that they put on a ring.
    pub descriptors: u64,
    /// Pages that hypercalls have mapped.
    pub mapped: u64,
    /// Hypercalls that were refused.
    pub refused: u64,
}

impl ContextStatus {
    /// Descriptors per hypercall; none where hypercalls put none on a ring.
    #[must_use]
    pub fn descriptors_per_call(&self) -> Option<f64> {
        (self.descriptors > 0).then(|| self.descriptors as f64 / self.calls as f64)
    }

    /// The sum of all dropped frames.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }
}
