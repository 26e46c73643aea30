//! Receive buffers of one port, lent to an ingress queue of another.

use offload::Features;
use shm::Region;

/// Lends the receive buffers of an egress queue, from any thread.
pub trait Lender: Send + Sync {
    /// See [`Egress::lend`](crate::Egress::lend). A port that is gone lends nothing.
    fn lend(&self, wanted: Wanted, lent: &mut Vec<LentBuffer>);

    /// See [`Egress::take_back`](crate::Egress::take_back).
    fn take_back(&self, tokens: &[u32]);
}

/// Where lent buffers lie.
#[derive(Debug)]
pub struct LentMemory {
    /// The number of the egress queue, for [`Lent::lender`](crate::Lent).
    pub lender: u64,
    /// The memory. The other side writes to it at any time.
    pub region: Region,
    /// What the other side can take of a frame. What needs more should not be put there.
    pub features: Features,
}

/// What an ingress queue wants to borrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// How many buffers.
    pub buffers: usize,
    /// Whether the lender must keep the pages in place. Not needed where the device has references
    /// to them.
    pub held: bool,
}

/// A lent buffer: a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LentBuffer {
    /// Its number, which is not used again.
    pub token: u32,
    /// Its first byte in the [memory](LentMemory).
    pub offset: u64,
}
