//! A driver's end of both rings, in batches: each frame lies in one buffer.
//!
//! Uplinks and measurements use it. Of a split ring, descriptor `n` always has buffer `n`. Of a packed ring, descriptors are taken
//! in the order of the ring, and the id names the buffer. While the device returns buffers in the order in which they were
//! offered, they are offered in that order again, and nothing but descriptors and indices is written.
//!
//! The device may write anything to the rings at any time. What it returns is read once and checked: a buffer comes back only
//! if the device had it, and no longer than it was offered ([`BadReturn`]). Only the contents of buffers are the device's.

use std::sync::atomic::Ordering;

use shm::Region;

use crate::chain::{DESCRIPTOR_LEN, flag};
use crate::{Layout, RingAddresses, RingMemory};

/// `VIRTQ_DESC_F_AVAIL` and `VIRTQ_DESC_F_USED`, in the upper 16 bits of a packed descriptor's second word.
const AVAILABLE: u64 = 1 << (48 + 7);
const USED: u64 = 1 << (48 + 15);
/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY` of a split ring.
const NO_EVENT: u16 = 1;
/// `RING_EVENT_FLAGS_ENABLE` and `RING_EVENT_FLAGS_DISABLE`, in the upper 16 bits of a packed ring's event suppression.
const ENABLE: u32 = 0;
const DISABLE: u32 = 1 << 16;
const EVENT_FLAGS: u32 = 3 << 16;

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

/// A buffer that the device has returned. It is offered again after [`BurstDriver::put_back`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Returned {
    /// Its number.
    pub id: u16,
    /// Its first byte in the driver's region.
    pub offset: usize,
    /// Bytes that the device says it wrote. It is at most what was offered of a buffer that the device may write.
    pub written: u32,
}

/// The device returned what it cannot have; the ring must not be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadReturn {
    /// The used index jumps or goes back.
    #[error("the used index went from {before} to {now}, and the device had {outstanding} buffers")]
    Index {
        /// The last index that was checked.
        before: u16,
        /// The index in shared memory.
        now: u16,
        /// Buffers that the device had.
        outstanding: u16,
    },
    /// The device did not have this buffer.
    #[error("buffer {0} came back, and the device did not have it")]
    NotOffered(u32),
    /// The device has accepted `VIRTIO_F_IN_ORDER`.
    #[error("buffer {id} came back in place of buffer {expected}")]
    OutOfOrder {
        /// The buffer that came back.
        id: u32,
        /// The one whose turn it was.
        expected: u16,
    },
    /// More was written than the buffer has.
    #[error("{written} bytes were written to a buffer of {len}")]
    TooLong {
        /// Bytes that the device says it wrote.
        written: u32,
        /// Bytes that were offered.
        len: u32,
    },
}

/// A driver's end of a ring, which lies in memory of type `M`.
#[derive(Debug)]
pub struct BurstDriver<M = Region> {
    memory: M,
    /// Offsets in the memory.
    at: RingAddresses,
    size: u16,
    layout: Layout,
    is_in_order: bool,
    buffers: Buffers,
    /// The buffers that the driver has, in the order in which they came back: place `n` has the `n`th one to be offered.
    free: Box<[u16]>,
    /// The buffer that was offered last at each place of the ring.
    shown: Box<[u16]>,
    /// Bytes of each buffer that the device has; 0 of the others.
    lens: Box<[u32]>,
    /// The last of the buffers that one entry has returned, until all of them are taken.
    batch_end: Option<u16>,
    /// Buffers offered, known to have come back, taken, and put back, since the beginning. All buffers begin as put back.
    offered: u64,
    returned: u64,
    taken: u64,
    freed: u64,
}

impl BurstDriver {
    /// Makes a ring of `size` entries, a power of two, in `memory`, which is zero there, with its parts at these offsets.
    /// The device is asked for no notifications until the first [`arm`](Self::arm).
    ///
    /// # Panics
    /// The memory is no slice of another region, the size is no power of two, or a part is not aligned.
    #[must_use]
    pub fn new(
        memory: &Region,
        at: RingAddresses,
        size: u16,
        layout: Layout,
        buffers: Buffers,
    ) -> Self {
        Self::over(memory.share().expect("a slice"), at, size, layout, buffers)
    }
}

impl<M: RingMemory> BurstDriver<M> {
    /// As [`new`](BurstDriver::new), in any memory, such as loom's model of one.
    ///
    /// # Panics
    /// The size is no power of two, or a part is not aligned.
    #[must_use]
    pub fn over(memory: M, at: RingAddresses, size: u16, layout: Layout, buffers: Buffers) -> Self {
        assert!(size.is_power_of_two(), "a ring of {size} entries");
        let is_aligned = [at.descriptors, at.driver, at.device].map(|part| part.is_multiple_of(16));
        assert_eq!(is_aligned, [true; 3], "the parts of a ring");
        let ids: Box<[u16]> = (0..size).collect();
        let driver = Self {
            memory,
            at,
            size,
            layout,
            is_in_order: false,
            buffers,
            free: ids.clone(),
            shown: ids,
            lens: vec![0; size.into()].into(),
            batch_end: None,
            offered: 0,
            returned: 0,
            taken: 0,
            freed: size.into(),
        };
        if layout == Layout::Split {
            (0..size).for_each(|n| driver.store_u16(at.driver, 4 + 2 * usize::from(n), n));
        }
        driver.disarm();
        driver
    }

    /// The same for a device that has accepted `VIRTIO_F_IN_ORDER` or not. One that has may return several buffers that it only
    /// read with one entry.
    #[must_use]
    pub fn in_order(self, is_in_order: bool) -> Self {
        Self { is_in_order, ..self }
    }

    fn offset(part: u64, at: usize) -> usize {
        usize::try_from(part).unwrap_or(usize::MAX).saturating_add(at)
    }

    /// Reads a word of a split ring. What is read after it is at least as new.
    #[inline]
    fn load_u16(&self, part: u64, at: usize) -> u16 {
        self.memory.load_u16(Self::offset(part, at), Ordering::Acquire)
    }

    /// Writes a word of a split ring. What was written before is visible with it.
    #[inline]
    fn store_u16(&self, part: u64, at: usize, value: u16) {
        self.memory.store_u16(Self::offset(part, at), value, Ordering::Release);
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
        u16::try_from(self.freed - self.offered).unwrap_or(self.size)
    }

    /// How many buffers the device has, or has returned without their being taken yet.
    #[inline]
    #[must_use]
    pub fn outstanding(&self) -> u16 {
        u16::try_from(self.offered - self.taken).unwrap_or(self.size)
    }

    #[inline]
    fn place(&self, id: u16) -> usize {
        self.buffers.offset + usize::from(id) * self.buffers.stride as usize
    }

    /// The first byte, in the driver's region, of the buffer that is offered `ahead` places after the next one.
    #[inline]
    #[must_use]
    pub fn buffer(&self, ahead: u16) -> usize {
        self.place(self.free[self.slot(self.offered + u64::from(ahead))])
    }

    /// Offers the next `count` buffers, with `len` bytes of each. Returns whether the device must be notified.
    #[inline]
    #[must_use = "a device that is not notified may sleep for ever"]
    pub fn offer(&mut self, count: u16, len: u32) -> bool {
        let count = count.min(self.free());
        match self.layout {
            Layout::Split => (0..count).for_each(|_| self.push_as::<false>(len)),
            Layout::Packed => (0..count).for_each(|_| self.push_as::<true>(len)),
        }
        self.publish()
    }

    /// Offers `len` bytes of the next buffer, at least one. The device may see it only after [`publish`](Self::publish). Does
    /// nothing where no buffer is [free](Self::free).
    #[inline]
    pub fn push(&mut self, len: u32) {
        match self.layout {
            _ if self.free() == 0 => {}
            Layout::Split => self.push_as::<false>(len),
            Layout::Packed => self.push_as::<true>(len),
        }
    }

    /// Offers a buffer that is free.
    #[inline]
    fn push_as<const IS_PACKED: bool>(&mut self, len: u32) {
        let n = self.offered;
        let slot = self.slot(n);
        let id = self.free[slot];
        let write = if self.buffers.are_writable { u64::from(flag::WRITE) } else { 0 };
        let address = self.buffers.address + u64::from(id) * u64::from(self.buffers.stride);
        if IS_PACKED {
            let at = Self::offset(self.at.descriptors, slot * DESCRIPTOR_LEN);
            self.memory.write_words::<_, 8>(at, address);
            let lap = if self.wrap(n) { AVAILABLE } else { USED };
            let word = u64::from(len) | u64::from(id) << 32 | write << 48 | lap;
            self.memory.store_u64(at + 8, word, Ordering::Release);
        } else {
            let at = Self::offset(self.at.descriptors, usize::from(id) * DESCRIPTOR_LEN);
            self.memory.write_words::<_, 8>(at, [address, u64::from(len) | write << 32]);
            if self.shown[slot] != id {
                self.store_u16(self.at.driver, 4 + 2 * slot, id);
            }
        }
        self.shown[slot] = id;
        self.lens[usize::from(id)] = len.max(1);
        self.offered += 1;
    }

    /// Shows the device what was offered. Returns whether it must be notified.
    #[inline]
    #[must_use = "a device that is not notified may sleep for ever"]
    pub fn publish(&self) -> bool {
        if self.layout == Layout::Split {
            let index = u16::try_from(self.offered & 0xffff).unwrap_or(0);
            self.store_u16(self.at.driver, 2, index);
        }
        // The device asks for notifications and then checks for buffers; this side does the reverse.
        self.memory.full_barrier();
        match self.layout {
            Layout::Split => self.load_u16(self.at.device, 0) & NO_EVENT == 0,
            Layout::Packed => {
                let at = Self::offset(self.at.device, 0);
                self.memory.load_u32(at, Ordering::Acquire) & EVENT_FLAGS != DISABLE
            }
        }
    }

    /// Takes the next buffer that the device has returned.
    ///
    /// # Errors
    /// See [`BadReturn`].
    #[inline]
    pub fn take(&mut self) -> Result<Option<Returned>, BadReturn> {
        match self.layout {
            Layout::Split => self.take_as::<false>(),
            Layout::Packed => self.take_as::<true>(),
        }
    }

    /// Takes up to `most` buffers that the device has returned, shows each one to `each`, and [puts it back](Self::put_back): what it
    /// holds stays until it is offered again. Returns how many there were.
    ///
    /// # Errors
    /// See [`BadReturn`]. Those before the bad one were put back.
    #[inline]
    pub fn recycle(&mut self, most: u16, each: impl FnMut(Returned)) -> Result<u16, BadReturn> {
        match self.layout {
            Layout::Split => self.recycle_as::<false>(most, each),
            Layout::Packed => self.recycle_as::<true>(most, each),
        }
    }

    #[inline]
    fn recycle_as<const IS_PACKED: bool>(
        &mut self,
        most: u16,
        mut each: impl FnMut(Returned),
    ) -> Result<u16, BadReturn> {
        for count in 0..most {
            let Some(returned) = self.take_as::<IS_PACKED>()? else { return Ok(count) };
            self.put_back(returned.id);
            each(returned);
        }
        Ok(most)
    }

    #[inline]
    fn take_as<const IS_PACKED: bool>(&mut self) -> Result<Option<Returned>, BadReturn> {
        let slot = self.slot(self.taken);
        let entry = if IS_PACKED { self.packed_entry(slot) } else { self.split_entry(slot)? };
        let Some((id, written)) = entry else { return Ok(None) };
        let (id, written) = match self.is_in_order {
            true => self.next_in_order(slot, id, written)?,
            false => (id, written),
        };
        let known = u16::try_from(id).ok().filter(|id| *id < self.size);
        let known = known.filter(|id| self.lens[usize::from(*id)] > 0);
        let known = known.ok_or(BadReturn::NotOffered(id))?;
        let len = std::mem::take(&mut self.lens[usize::from(known)]);
        if self.buffers.are_writable && written > len {
            return Err(BadReturn::TooLong { written, len });
        }
        self.taken += 1;
        Ok(Some(Returned { id: known, offset: self.place(known), written }))
    }

    /// The entry at the next place of a split ring. Within a batch it is the one that stands for the batch.
    #[inline]
    fn split_entry(&mut self, slot: usize) -> Result<Option<(u32, u32)>, BadReturn> {
        if self.returned == self.taken {
            let now = self.load_u16(self.at.device, 2);
            let before = u16::try_from(self.taken & 0xffff).unwrap_or(0);
            let (more, outstanding) = (now.wrapping_sub(before), self.outstanding());
            if more > outstanding {
                return Err(BadReturn::Index { before, now, outstanding });
            }
            self.returned += u64::from(more);
            if more == 0 {
                return Ok(None);
            }
        }
        if let Some(end) = self.batch_end {
            return Ok(Some((end.into(), 0)));
        }
        // Setup has checked the bounds.
        let entry = self.memory.read_words::<_, 4>(Self::offset(self.at.device, 4 + 8 * slot));
        let [id, written]: [u32; 2] = entry.unwrap_or([u32::MAX, 0]);
        Ok(Some((id, written)))
    }

    /// The same of a packed ring.
    #[inline]
    fn packed_entry(&mut self, slot: usize) -> Option<(u32, u32)> {
        if let Some(end) = self.batch_end {
            return Some((end.into(), 0));
        }
        let word = self.packed_tail(slot)?;
        let half = |word: u64| u32::try_from(word & 0xffff_ffff).unwrap_or(0);
        Some((half(word >> 32) & 0xffff, half(word)))
    }

    /// The length, id and flags at the next place of a packed ring, if the device has returned a buffer there.
    #[inline]
    fn packed_tail(&self, slot: usize) -> Option<u64> {
        if self.taken == self.offered {
            return None;
        }
        let at = Self::offset(self.at.descriptors, slot * DESCRIPTOR_LEN + 8);
        let word = self.memory.load_u64(at, Ordering::Acquire);
        let used = if self.wrap(self.taken) { AVAILABLE | USED } else { 0 };
        (word & (AVAILABLE | USED) == used).then_some(word)
    }

    /// The buffer whose turn it is, where an entry names `id`: this one, or a later one up to which the entry returns all.
    #[inline]
    fn next_in_order(
        &mut self,
        slot: usize,
        id: u32,
        written: u32,
    ) -> Result<(u32, u32), BadReturn> {
        let expected = self.shown[slot];
        if id == expected.into() {
            self.batch_end = None;
            return Ok((id, written));
        }
        let end = u16::try_from(id).ok().filter(|id| *id < self.size);
        let end = end.filter(|end| self.lens[usize::from(*end)] > 0);
        // Of a buffer that was written, the length would be missing.
        match end.filter(|_| !self.buffers.are_writable) {
            Some(end) => self.batch_end = Some(end),
            None => return Err(BadReturn::OutOfOrder { id, expected }),
        }
        Ok((expected.into(), 0))
    }

    /// Gives the driver a buffer back that was [taken](Self::take), once.
    #[inline]
    pub fn put_back(&mut self, id: u16) {
        debug_assert!(self.freed < self.taken + u64::from(self.size), "a buffer came back twice");
        let slot = self.slot(self.freed);
        self.free[slot] = id;
        self.freed += 1;
    }

    /// Asks for a notification at the next buffer that is returned, and checks again. Returns whether there is one already, in
    /// which case the caller must not sleep.
    #[must_use]
    pub fn arm(&self) -> bool {
        self.set_event(0, ENABLE);
        // The device returns buffers and then checks whether this side wants to know.
        self.memory.full_barrier();
        if self.batch_end.is_some() || self.returned != self.taken && self.layout == Layout::Split {
            return true;
        }
        match self.layout {
            Layout::Split => u64::from(self.load_u16(self.at.device, 2)) != self.taken & 0xffff,
            Layout::Packed => self.packed_tail(self.slot(self.taken)).is_some(),
        }
    }

    /// Asks for no notifications until the next [`arm`](Self::arm). It is no promise of the device.
    pub fn disarm(&self) {
        self.set_event(NO_EVENT, DISABLE);
    }

    /// Writes the flags of a split ring, or the event suppression of a packed one.
    #[inline]
    fn set_event(&self, split: u16, packed: u32) {
        match self.layout {
            Layout::Split => self.store_u16(self.at.driver, 0, split),
            Layout::Packed => {
                let at = Self::offset(self.at.driver, 0);
                self.memory.store_u32(at, packed, Ordering::Release);
            }
        }
    }
}
