//! A driver's end of both rings for measurements: it moves batches, and each frame lies in one buffer.
//!
//! Descriptor `n` always has buffer `n`, and buffers are offered in the order of the ring. So a batch costs what it costs
//! a fast driver that returns its buffers in order: one descriptor per buffer, one index or flag, one look at the device's
//! wish for notifications. The device must return buffers in order. The driver asks for no notifications; it polls.

use std::sync::atomic::{Ordering, fence};

use shm::Region;

use crate::chain::{DESCRIPTOR_LEN, flag};
use crate::{Layout, RingAddresses};

/// `VIRTQ_DESC_F_AVAIL` and `VIRTQ_DESC_F_USED`, in the upper 16 bits of a packed descriptor's second word.
const AVAILABLE: u64 = 1 << (48 + 7);
const USED: u64 = 1 << (48 + 15);

/// Where the buffers of a ring lie: buffer `n` begins `n` strides after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// The first byte in the driver's region.
    pub offset: usize,
    /// Guest address of the same byte.
    pub address: u64,
    /// Bytes from one buffer to the next.
    pub stride: u32,
    /// Whether the device writes to them.
    pub are_writable: bool,
}

/// A buffer that the device has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// Its first byte in the driver's region.
    pub offset: usize,
    /// Bytes that the device says it wrote.
    pub written: u32,
}

/// The device returned a buffer out of order, or one that it did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("buffer {id} came back in place of buffer {expected}")]
pub struct OutOfOrder {
    /// The buffer that came back.
    pub id: u32,
    /// The one whose turn it was.
    pub expected: u32,
}

/// A driver's end of a ring.
#[derive(Debug)]
pub struct BurstDriver {
    memory: Region,
    /// Offsets in the memory.
    at: RingAddresses,
    size: u16,
    layout: Layout,
    buffers: Buffers,
    /// Buffers offered, known to have come back, and taken, since the beginning.
    offered: u64,
    returned: u64,
    taken: u64,
}

impl BurstDriver {
    /// Makes a ring of `size` entries, a power of two, in `memory`, which is zero there, with its parts at these offsets.
    ///
    /// # Panics
    /// The memory is no slice of another region, or the size is no power of two.
    #[must_use]
    pub fn new(
        memory: &Region,
        at: RingAddresses,
        size: u16,
        layout: Layout,
        buffers: Buffers,
    ) -> Self {
        assert!(size.is_power_of_two(), "a ring of {size} entries");
        let memory = memory.share().expect("a slice");
        let driver = Self { memory, at, size, layout, buffers, offered: 0, returned: 0, taken: 0 };
        match layout {
            Layout::Split => {
                // VIRTQ_AVAIL_F_NO_INTERRUPT. Entry n of the ring names chain n for ever.
                driver.store(at.driver, 0, 1);
                (0..size).for_each(|n| driver.store(at.driver, 4 + 2 * usize::from(n), n));
            }
            // RING_EVENT_FLAGS_DISABLE
            Layout::Packed => driver.store(at.driver, 2, 1),
        }
        driver
    }

    fn offset(part: u64, at: usize) -> usize {
        usize::try_from(part).unwrap_or(usize::MAX).saturating_add(at)
    }

    #[inline]
    fn load(&self, part: u64, at: usize) -> u16 {
        let word = self.memory.atomic_u16(Self::offset(part, at));
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    #[inline]
    fn store(&self, part: u64, at: usize, value: u16) {
        if let Ok(word) = self.memory.atomic_u16(Self::offset(part, at)) {
            word.store(value, Ordering::Release);
        }
    }

    /// The place of the `n`th entry since the beginning.
    #[inline]
    fn slot(&self, n: u64) -> usize {
        usize::try_from(n & u64::from(self.size - 1)).unwrap_or(0)
    }

    /// Whether the `n`th entry belongs to a lap whose wrap counter is set.
    #[inline]
    fn wrap(&self, n: u64) -> bool {
        n & u64::from(self.size) == 0
    }

    /// How many buffers can be offered.
    #[inline]
    #[must_use]
    pub fn free(&self) -> u16 {
        self.size - u16::try_from(self.offered - self.taken).unwrap_or(self.size)
    }

    /// The first byte, in the driver's region, of the buffer that is offered `ahead` places after the next one.
    #[inline]
    #[must_use]
    pub fn buffer(&self, ahead: u16) -> usize {
        let slot = self.slot(self.offered + u64::from(ahead));
        self.buffers.offset + slot * self.buffers.stride as usize
    }

    /// Offers the next `count` buffers, with `len` bytes of each. Returns whether the device must be notified.
    #[inline]
    pub fn offer(&mut self, count: u16, len: u32) -> bool {
        let end = self.offered + u64::from(count.min(self.free()));
        let write = if self.buffers.are_writable { u64::from(flag::WRITE) } else { 0 };
        for n in self.offered..end {
            let slot = self.slot(n);
            let at = Self::offset(self.at.descriptors, slot * DESCRIPTOR_LEN);
            let address = self.buffers.address + slot as u64 * u64::from(self.buffers.stride);
            match self.layout {
                Layout::Split => {
                    let _ = self.memory.write(at, [address, u64::from(len) | write << 32]);
                }
                Layout::Packed => {
                    let _ = self.memory.write(at, address);
                    let lap = if self.wrap(n) { AVAILABLE } else { USED };
                    let word = u64::from(len) | (slot as u64) << 32 | write << 48 | lap;
                    if let Ok(place) = self.memory.atomic_u64(at + 8) {
                        place.store(word, Ordering::Release);
                    }
                }
            }
        }
        self.offered = end;
        match self.layout {
            Layout::Split => {
                let index = u16::try_from(end & 0xffff).unwrap_or(0);
                self.store(self.at.driver, 2, index);
                fence(Ordering::SeqCst);
                self.load(self.at.device, 0) & 1 == 0
            }
            Layout::Packed => {
                fence(Ordering::SeqCst);
                self.load(self.at.device, 2) & 3 != 1
            }
        }
    }

    /// Takes the next buffer that the device has returned. Where a device that keeps `VIRTIO_F_IN_ORDER` returns several
    /// with one entry, only the first one has a length.
    ///
    /// # Errors
    /// See [`OutOfOrder`].
    #[inline]
    pub fn take(&mut self) -> Result<Option<Returned>, OutOfOrder> {
        let slot = self.slot(self.taken);
        let offset = self.buffers.offset + slot * self.buffers.stride as usize;
        let written = match self.layout {
            Layout::Split => self.take_split(slot)?,
            Layout::Packed => self.take_packed(slot)?,
        };
        let Some(written) = written else { return Ok(None) };
        self.taken += 1;
        Ok(Some(Returned { offset, written }))
    }

    #[inline]
    fn take_split(&mut self, slot: usize) -> Result<Option<u32>, OutOfOrder> {
        if self.returned == self.taken {
            let index = self.load(self.at.device, 2);
            let known = u16::try_from(self.taken & 0xffff).unwrap_or(0);
            self.returned += u64::from(index.wrapping_sub(known));
            if self.returned == self.taken {
                return Ok(None);
            }
        }
        let entry = self.memory.read(Self::offset(self.at.device, 4 + 8 * slot));
        let [id, written]: [u32; 2] = entry.unwrap_or([u32::MAX, 0]);
        let expected = u32::try_from(slot).unwrap_or(0);
        if id != expected || self.returned > self.offered {
            return Err(OutOfOrder { id, expected });
        }
        Ok(Some(written))
    }

    #[inline]
    fn take_packed(&mut self, slot: usize) -> Result<Option<u32>, OutOfOrder> {
        let at = Self::offset(self.at.descriptors, slot * DESCRIPTOR_LEN + 8);
        if self.returned == self.taken {
            let word = self.memory.atomic_u64(at).map_or(0, |word| word.load(Ordering::Acquire));
            if [word & AVAILABLE != 0, word & USED != 0] != [self.wrap(self.taken); 2] {
                return Ok(None);
            }
            let id = u32::try_from(word >> 32 & 0xffff).unwrap_or(0);
            let expected = u32::try_from(slot).unwrap_or(0);
            // An entry stands for all buffers up to the one that it names.
            let more = id.wrapping_sub(expected) & u32::from(self.size - 1);
            self.returned += u64::from(more) + 1;
            if self.returned > self.offered || id >= self.size.into() {
                return Err(OutOfOrder { id, expected });
            }
            return Ok(Some(u32::try_from(word & 0xffff_ffff).unwrap_or(0)));
        }
        Ok(Some(0))
    }
}
