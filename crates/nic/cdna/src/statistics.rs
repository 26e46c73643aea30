//! What a card counts for each context.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Why a frame of a context, or for it, was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// Received: too few RX descriptors.
    NoDescriptors = 0,
    /// To be sent: the offload that it asks for contradicts its headers, or the card does not have it.
    Offload = 1,
    /// To be sent: another source address than the context's.
    FalseSource = 2,
    /// To be sent: the wire refused it, as being too long.
    Wire = 3,
    /// To be sent: to the context itself, or to a group that no bridge forwards (pause, spanning tree, LACP, LLDP).
    NotForwarded = 4,
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = 5;
}

/// The counters of a context since it was assigned.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Statistics {
    /// Frames sent, before segmentation.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames received.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Times that the context was put into an interrupt vector.
    pub interrupts: u64,
    /// Mailbox events.
    pub events: u64,
    /// Faults: 0 or 1.
    pub faults: u64,
    /// Dropped frames, by [`DropReason`].
    pub drops: [u64; DropReason::COUNT],
}
