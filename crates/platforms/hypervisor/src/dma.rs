//! Granted bytes that a device reads in place, and holds that keep their pages there.

use std::fmt;
use std::sync::Arc;

use shm::{Iovec, Region};

use crate::pages::Granted;

/// A range of bytes that a device reads, and its address.
#[derive(Clone, Copy, Debug)]
pub struct DmaRange<'a> {
    /// Where the bytes lie.
    pub from: Granted,
    /// How many, within one page.
    pub len: u16,
    /// Set by [`Hypervisor::dma_map`](crate::Hypervisor::dma_map). None if the grant does not
    /// permit it, or if a device of this platform cannot reach pages that this domain has not
    /// mapped.
    pub address: Option<Iovec<'a>>,
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
    /// All of it. [`DmaRange::address`] lies in this region.
    fn region(&self) -> &Region;

    /// A device begins to read. Returns the argument for [`end`](Self::end).
    fn begin(&self) -> u8;

    /// The device has finished reading.
    fn end(&self, began: u8);

    /// Whether the domain has ended or wants its pages back: the device should stop reading.
    fn is_revoked(&self) -> bool;
}

/// While this lives, the pages that a device reads stay in place, even if their domain ends: no
/// page that the device may still read is reused.
///
/// The domain may still change the bytes at any time. A hold can be revoked: a device that checks
/// [`is_revoked`](Self::is_revoked) stops early. The pages are reused only after the drop.
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
