//! The words of a packed ring that both sides read and write.

use std::sync::atomic::Ordering;

use shm::Region;

use crate::chain::DESCRIPTOR_LEN;
use crate::layout::Parts;
use crate::memory::Area;
use crate::{GuestMemory, RingAddresses, RingMemory, SetupError};

/// Bytes from a descriptor's start to its length, id and flags.
const LENGTH: usize = 8;
const FLAGS: usize = 14;

/// The words of a packed ring that both sides read and write.
///
/// Descriptors are named by their place in the ring. One that does not exist reads as none, or as zero.
#[derive(Debug)]
pub(crate) struct PackedWords<M> {
    descriptors: Area<M>,
    driver: Area<M>,
    device: Area<M>,
}

impl PackedWords<Region> {
    pub(crate) fn find(
        memory: &GuestMemory,
        at: RingAddresses,
        size: u16,
    ) -> Result<Self, SetupError> {
        Ok(Self::over(Parts::packed(size).find(memory, at)?))
    }
}

impl<M: RingMemory> PackedWords<M> {
    pub(crate) fn over([descriptors, driver, device]: [Area<M>; 3]) -> Self {
        Self { descriptors, driver, device }
    }

    #[inline]
    fn at(&self, index: u16) -> usize {
        self.descriptors.start + usize::from(index) * DESCRIPTOR_LEN
    }

    /// Reads a descriptor's flags. What is read after them is at least as new.
    #[inline]
    pub(crate) fn flags(&self, index: u16) -> u16 {
        self.descriptors.region.load_u16(self.at(index) + FLAGS, Ordering::Acquire)
    }

    /// Reads a descriptor: its address, and what [`tail`](Self::tail) reads. It may change in between.
    #[inline]
    pub(crate) fn descriptor(&self, index: u16) -> Option<[u64; 2]> {
        self.descriptors.region.read_words::<_, 8>(self.at(index))
    }

    /// Reads a descriptor's address.
    #[inline]
    pub(crate) fn address(&self, index: u16) -> Option<u64> {
        self.descriptors.region.read_words::<_, 8>(self.at(index))
    }

    /// Reads a descriptor's length, id and flags at once, as they lie in memory. What is read after them is at least as new.
    #[inline]
    pub(crate) fn tail(&self, index: u16) -> u64 {
        self.descriptors.region.load_u64(self.at(index) + LENGTH, Ordering::Acquire)
    }

    /// Writes a descriptor's length, id and flags at once. What was written before is visible with them.
    #[inline]
    pub(crate) fn set_tail(&self, index: u16, tail: u64) {
        self.descriptors.region.store_u64(self.at(index) + LENGTH, tail, Ordering::Release);
    }

    /// Reads the driver's event suppression: its two halves at once.
    #[inline]
    pub(crate) fn driver_event(&self) -> u32 {
        self.driver.region.load_u32(self.driver.start, Ordering::Relaxed)
    }

    /// Writes the device's.
    #[inline]
    pub(crate) fn set_device_event(&self, event: u32) {
        self.device.region.store_u32(self.device.start, event, Ordering::Release);
    }

    /// A full barrier: it also orders earlier stores before later loads.
    #[inline]
    pub(crate) fn full_barrier(&self) {
        self.descriptors.region.full_barrier();
    }

    /// Starts to fetch the cache line of a descriptor that will be written.
    #[inline]
    pub(crate) fn prefetch(&self, index: u16) {
        self.descriptors.region.prefetch_for_write(self.at(index));
    }

    /// Notes in the log of dirty pages that a descriptor was written.
    pub(crate) fn mark_descriptor(&self, memory: &GuestMemory, index: u16) {
        self.descriptors.mark(memory, usize::from(index) * DESCRIPTOR_LEN, DESCRIPTOR_LEN);
    }

    /// Notes in it that the device's event suppression was written.
    pub(crate) fn mark_device_event(&self, memory: &GuestMemory) {
        self.device.mark(memory, 0, 4);
    }
}
