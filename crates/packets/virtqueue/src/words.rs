//! The words of a packed ring that both sides read and write.

use std::fmt::Debug;
use std::sync::atomic::{Ordering, fence};

use crate::chain::DESCRIPTOR_LEN;
use crate::layout::Parts;
use crate::memory::Area;
use crate::{GuestMemory, RingAddresses, SetupError};

/// Bytes from a descriptor's start to its length, id and flags.
const LENGTH: usize = 8;
const FLAGS: usize = 14;

/// The words of a packed ring that both sides read and write. Loom's model implements it too.
///
/// Descriptors are named by their place in the ring. One that does not exist reads as none, or as zero.
pub trait PackedWords: Debug {
    /// Reads a descriptor's flags. What is read after them is at least as new (acquire).
    fn flags(&self, index: u16) -> u16;
    /// Reads a descriptor: its address, and what [`tail`](Self::tail) reads. It may change in between.
    fn descriptor(&self, index: u16) -> Option<[u64; 2]>;
    /// Reads a descriptor's address.
    fn address(&self, index: u16) -> Option<u64>;
    /// Reads a descriptor's length, id and flags at once, as they lie in memory. What is read after them is at least as
    /// new (acquire).
    fn tail(&self, index: u16) -> Option<u64>;
    /// Writes a descriptor's length, id and flags at once. What was written before is visible with them (release).
    fn set_tail(&self, index: u16, tail: u64);
    /// Reads the driver's event suppression: its two halves at once.
    fn driver_event(&self) -> u32;
    /// Writes the device's.
    fn set_device_event(&self, event: u32);
    /// A full barrier: it also orders earlier stores before later loads.
    fn full_barrier(&self);
    /// Starts to fetch the cache line of a descriptor that will be written.
    fn prefetch(&self, index: u16);
    /// Notes in the log of dirty pages that a descriptor was written.
    fn mark_descriptor(&self, memory: &GuestMemory, index: u16);
    /// Notes in it that the device's event suppression was written.
    fn mark_device_event(&self, memory: &GuestMemory);
}

/// The words of a packed ring in the guest's memory.
#[derive(Debug)]
pub struct RegionWords {
    descriptors: Area,
    driver: Area,
    device: Area,
}

impl RegionWords {
    pub(crate) fn find(
        memory: &GuestMemory,
        at: RingAddresses,
        size: u16,
    ) -> Result<Self, SetupError> {
        let [descriptors, driver, device] = Parts::packed(size).find(memory, at)?;
        Ok(Self { descriptors, driver, device })
    }

    #[inline]
    fn at(&self, index: u16) -> usize {
        self.descriptors.start + usize::from(index) * DESCRIPTOR_LEN
    }
}

impl PackedWords for RegionWords {
    #[inline]
    fn flags(&self, index: u16) -> u16 {
        let word = self.descriptors.region.atomic_u16(self.at(index) + FLAGS);
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    #[inline]
    fn descriptor(&self, index: u16) -> Option<[u64; 2]> {
        self.descriptors.region.read_words::<_, 8>(self.at(index)).ok()
    }

    #[inline]
    fn address(&self, index: u16) -> Option<u64> {
        self.descriptors.region.read_words::<_, 8>(self.at(index)).ok()
    }

    #[inline]
    fn tail(&self, index: u16) -> Option<u64> {
        let word = self.descriptors.region.atomic_u64(self.at(index) + LENGTH).ok()?;
        Some(word.load(Ordering::Acquire))
    }

    #[inline]
    fn set_tail(&self, index: u16, tail: u64) {
        // Setup has checked the bounds.
        if let Ok(word) = self.descriptors.region.atomic_u64(self.at(index) + LENGTH) {
            word.store(tail, Ordering::Release);
        }
    }

    #[inline]
    fn driver_event(&self) -> u32 {
        let word = self.driver.region.atomic_u32(self.driver.start);
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    #[inline]
    fn set_device_event(&self, event: u32) {
        if let Ok(word) = self.device.region.atomic_u32(self.device.start) {
            word.store(event, Ordering::Release);
        }
    }

    #[inline]
    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }

    #[inline]
    fn prefetch(&self, index: u16) {
        self.descriptors.region.prefetch_for_write(self.at(index));
    }

    fn mark_descriptor(&self, memory: &GuestMemory, index: u16) {
        self.descriptors.mark(memory, usize::from(index) * DESCRIPTOR_LEN, DESCRIPTOR_LEN);
    }

    fn mark_device_event(&self, memory: &GuestMemory) {
        self.device.mark(memory, 0, 4);
    }
}
