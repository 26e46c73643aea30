//! What a device may fetch where it lies, and for how long.

use std::fmt;
use std::sync::Arc;

use shm::{Piece, Region};

use crate::pages::Granted;

/// A range that a device reads, and the memory in which it finds it.
#[derive(Clone, Copy, Debug)]
pub struct DmaRange<'a> {
    /// Where the bytes lie.
    pub from: Granted,
    /// How many, within one page.
    pub len: u16,
    /// Set by [`Hypervisor::dma_map`](crate::Hypervisor::dma_map). None if the grant does not
    /// permit it, or if this platform's devices cannot reach pages that this domain has not
    /// mapped.
    pub address: Option<Piece<'a>>,
}

impl DmaRange<'_> {
    /// A range that is not yet mapped.
    #[inline]
    #[must_use]
    pub fn new(from: Granted, len: u16) -> Self {
        Self { from, len, address: None }
    }
}

/// A domain's memory, as a device reaches it.
pub trait DmaMemory: Send + Sync {
    /// All of it: [`DmaRange::address`] lies in it.
    fn region(&self) -> &Region;

    /// A device begins to read. Returns what [`end`](Self::end) takes.
    fn begin(&self) -> u8;

    /// The device has finished what it began.
    fn end(&self, began: u8);

    /// Whether the domain has ended, or takes its pages back: a device should stop reading.
    fn is_revoked(&self) -> bool;
}

/// Pages that a device reads stay where they are for as long as this lives, whatever becomes of
/// their domain: no page that the device may still read is given away.
///
/// The hold says nothing about the bytes: their domain may change them at any time. It can be
/// revoked: a device that looks at [`is_revoked`](Self::is_revoked) stops early, and whoever waits
/// for the pages waits for the drop.
pub struct DmaHold {
    memory: Arc<dyn DmaMemory>,
    began: u8,
}

impl DmaHold {
    /// Holds pages of `memory`.
    pub fn new(memory: Arc<dyn DmaMemory>) -> Self {
        let began = memory.begin();
        Self { memory, began }
    }

    /// The memory in which the addresses lie.
    pub fn region(&self) -> &Region {
        self.memory.region()
    }

    /// Whether the device should stop reading and drop this.
    pub fn is_revoked(&self) -> bool {
        self.memory.is_revoked()
    }
}

impl Drop for DmaHold {
    fn drop(&mut self) {
        self.memory.end(self.began);
    }
}

impl fmt::Debug for DmaHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DmaHold").field("revoked", &self.is_revoked()).finish_non_exhaustive()
    }
}
