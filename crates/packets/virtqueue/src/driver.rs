//! A driver's end of both rings: plain, and not for production.
//!
//! It is what a driver does by the letter of the specification, without a shortcut, so that tests compare the device
//! with it. The ring, and indirect tables, lie in one region.

use std::sync::atomic::{Ordering, fence};

use shm::Region;

use crate::chain::{DESCRIPTOR_LEN, Descriptor, flag};
use crate::{Layout, Options, RingAddresses, must_notify};

/// A buffer that the driver offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Guest address.
    pub address: u64,
    /// Bytes.
    pub len: u32,
    /// Whether the device writes to it.
    pub writable: bool,
}

/// Where an indirect table lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// First byte in the driver's region.
    pub offset: u64,
    /// Guest address of the same byte.
    pub address: u64,
}

/// A chain that the device has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// The id that [`Driver::offer`] gave it.
    pub id: u16,
    /// Bytes that the device says it wrote.
    pub written: u32,
}

/// A driver's end of a ring.
#[derive(Debug)]
pub struct Driver {
    memory: Region,
    /// Offsets in the memory.
    at: RingAddresses,
    size: u16,
    options: Options,
    /// Free descriptors of a split ring, or free ids of a packed one.
    free: Vec<u16>,
    /// The descriptors that a chain occupies, by id.
    chains: Vec<Vec<u16>>,
    /// Split: the available index. Packed: the next descriptor, and free descriptors.
    available: u16,
    unpublished: u16,
    available_wrap: bool,
    free_descriptors: u16,
    /// Packed: the first descriptor of a chain that is not published, and its flags.
    held: Option<(u16, u16)>,
    used: u16,
    used_wrap: bool,
}

const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

impl Driver {
    /// Makes a ring of `size` entries in `memory`, which is zero there, with its parts at these offsets.
    ///
    /// # Panics
    /// The memory is no slice of another region.
    #[must_use]
    pub fn new(memory: &Region, at: RingAddresses, size: u16, options: Options) -> Self {
        let memory = memory.share().expect("a slice");
        Self {
            memory,
            at,
            size,
            options,
            free: (0..size).rev().collect(),
            chains: vec![Vec::new(); size.into()],
            available: 0,
            unpublished: 0,
            available_wrap: true,
            free_descriptors: size,
            held: None,
            used: 0,
            used_wrap: true,
        }
    }

    fn offset(part: u64, at: usize) -> usize {
        usize::try_from(part).unwrap_or(usize::MAX).saturating_add(at)
    }

    fn load(&self, part: u64, at: usize) -> u16 {
        let word = self.memory.atomic_u16(Self::offset(part, at));
        word.map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, part: u64, at: usize, value: u16) {
        if let Ok(word) = self.memory.atomic_u16(Self::offset(part, at)) {
            word.store(value, Ordering::Release);
        }
    }

    /// Writes descriptor `index` of a table. In a packed layout its last two fields change places.
    fn describe(&self, table: u64, index: u16, descriptor: Descriptor) {
        let at = Self::offset(table, usize::from(index) * DESCRIPTOR_LEN);
        let _ = self.memory.write(at, descriptor);
    }

    /// Offers a chain of buffers, in an indirect table if there is one. Returns its id; none if the ring has too few
    /// free descriptors. The device sees it after [`publish`](Self::publish).
    pub fn offer(&mut self, buffers: &[Offered], table: Option<Table>) -> Option<u16> {
        match (self.options.layout, table) {
            (layout, Some(Table { offset: table, address })) => {
                for (n, buffer) in (0..).zip(buffers) {
                    let is_last = usize::from(n) + 1 == buffers.len();
                    let next = if is_last { 0 } else { flag::NEXT };
                    let write = if buffer.writable { flag::WRITE } else { 0 };
                    let (flags, next) = match layout {
                        Layout::Split => (write | next, n + 1),
                        Layout::Packed => (0, write),
                    };
                    let Offered { address, len, .. } = *buffer;
                    self.describe(table, n, Descriptor { address, len, flags, next });
                }
                let len = u32::try_from(buffers.len() * DESCRIPTOR_LEN).ok()?;
                self.offer_in_ring(&[(address, len, flag::INDIRECT)])
            }
            (_, None) => {
                let flags = |writable| if writable { flag::WRITE } else { 0 };
                let entries: Vec<_> = buffers
                    .iter()
                    .map(|buffer| (buffer.address, buffer.len, flags(buffer.writable)))
                    .collect();
                self.offer_in_ring(&entries)
            }
        }
    }

    /// Offers an indirect table of `descriptors` descriptors at `address`, which may be in use.
    /// Returns its id; none if the ring has no free descriptor.
    pub fn offer_table(&mut self, address: u64, descriptors: u16) -> Option<u16> {
        let len = u32::from(descriptors) * u32::try_from(DESCRIPTOR_LEN).ok()?;
        self.offer_in_ring(&[(address, len, flag::INDIRECT)])
    }

    fn offer_in_ring(&mut self, entries: &[(u64, u32, u16)]) -> Option<u16> {
        match self.options.layout {
            Layout::Split => self.offer_split(entries),
            Layout::Packed => self.offer_packed(entries),
        }
    }

    fn offer_split(&mut self, entries: &[(u64, u32, u16)]) -> Option<u16> {
        if self.free.len() < entries.len() {
            return None;
        }
        let taken = self.free.split_off(self.free.len() - entries.len());
        for (n, (address, len, flags)) in entries.iter().copied().enumerate() {
            let (flags, next) = match taken.get(n + 1) {
                Some(next) => (flags | flag::NEXT, *next),
                None => (flags, 0),
            };
            self.describe(self.at.descriptors, taken[n], Descriptor { address, len, flags, next });
        }
        let head = *taken.first()?;
        let slot = self.available.wrapping_add(self.unpublished) & (self.size - 1);
        self.store(self.at.driver, 4 + 2 * usize::from(slot), head);
        self.unpublished += 1;
        self.chains[usize::from(head)] = taken;
        Some(head)
    }

    fn offer_packed(&mut self, entries: &[(u64, u32, u16)]) -> Option<u16> {
        let count = u16::try_from(entries.len()).ok()?;
        if self.free_descriptors < count || entries.is_empty() {
            return None;
        }
        let id = self.free.pop()?;
        for (n, (address, len, flags)) in entries.iter().copied().enumerate() {
            let next = if n + 1 < entries.len() { flag::NEXT } else { 0 };
            let lap = if self.available_wrap { AVAILABLE } else { USED };
            let flags = flags | next | lap;
            let index = self.available;
            let at = Self::offset(self.at.descriptors, usize::from(index) * DESCRIPTOR_LEN);
            let _ = self.memory.write(at, address);
            let _ = self.memory.write(at + 8, len);
            self.store(self.at.descriptors, usize::from(index) * DESCRIPTOR_LEN + 12, id);
            // The flags of what is published first are written last.
            match self.held {
                Some(_) => self.set_flags(index, flags),
                None => self.held = Some((index, flags)),
            }
            self.available += 1;
            if self.available == self.size {
                self.available = 0;
                self.available_wrap = !self.available_wrap;
            }
        }
        self.unpublished += count;
        self.free_descriptors -= count;
        self.chains[usize::from(id)] = vec![0; count.into()];
        Some(id)
    }

    fn set_flags(&self, index: u16, flags: u16) {
        self.store(self.at.descriptors, usize::from(index) * DESCRIPTOR_LEN + 14, flags);
    }

    /// Makes what was offered available. Returns whether the device must be notified.
    pub fn publish(&mut self) -> bool {
        let count = std::mem::take(&mut self.unpublished);
        if count == 0 {
            return false;
        }
        match self.options.layout {
            Layout::Split => {
                let (old, new) = (self.available, self.available.wrapping_add(count));
                self.available = new;
                self.store(self.at.driver, 2, new);
                fence(Ordering::SeqCst);
                if self.options.event_idx {
                    let event = self.load(self.at.device, 4 + 8 * usize::from(self.size));
                    must_notify(old, new, event)
                } else {
                    self.load(self.at.device, 0) & 1 == 0
                }
            }
            Layout::Packed => {
                if let Some((index, flags)) = self.held.take() {
                    self.set_flags(index, flags);
                }
                fence(Ordering::SeqCst);
                let (at, flags) = (self.load(self.at.device, 0), self.load(self.at.device, 2));
                match flags & 3 {
                    1 => false,
                    2 => {
                        let is_this_lap = (at & 1 << 15 != 0) == self.available_wrap;
                        let event = at & !(1 << 15);
                        let event = if is_this_lap { event } else { event.wrapping_sub(self.size) };
                        must_notify(self.available.wrapping_sub(count), self.available, event)
                    }
                    _ => true,
                }
            }
        }
    }

    /// Takes the next chain that the device has returned.
    pub fn take(&mut self) -> Option<Used> {
        match self.options.layout {
            Layout::Split => {
                if self.load(self.at.device, 2) == self.used {
                    return None;
                }
                let at = 4 + 8 * usize::from(self.used & (self.size - 1));
                let entry: [u32; 2] = self.memory.read(Self::offset(self.at.device, at)).ok()?;
                self.used = self.used.wrapping_add(1);
                let id = u16::try_from(entry[0]).ok()?;
                let chain = std::mem::take(self.chains.get_mut(usize::from(id))?);
                self.free.extend(chain);
                Some(Used { id, written: entry[1] })
            }
            Layout::Packed => {
                let at = usize::from(self.used) * DESCRIPTOR_LEN;
                let flags = self.load(self.at.descriptors, at + 14);
                let lap = [flags & AVAILABLE != 0, flags & USED != 0];
                if lap != [self.used_wrap; 2] {
                    return None;
                }
                let id = self.load(self.at.descriptors, at + 12);
                let written = self.memory.read(Self::offset(self.at.descriptors, at + 8)).ok()?;
                let chain = std::mem::take(self.chains.get_mut(usize::from(id))?);
                let count = u16::try_from(chain.len()).ok()?;
                self.used += count;
                if self.used >= self.size {
                    self.used -= self.size;
                    self.used_wrap = !self.used_wrap;
                }
                self.free.push(id);
                self.free_descriptors += count;
                Some(Used { id, written })
            }
        }
    }

    /// Asks for a notification at the next chain that is returned, and checks again. Returns whether there is one
    /// already.
    pub fn arm(&mut self) -> bool {
        match (self.options.layout, self.options.event_idx) {
            (Layout::Split, true) => {
                self.store(self.at.driver, 4 + 2 * usize::from(self.size), self.used);
            }
            (Layout::Split, false) => self.store(self.at.driver, 0, 0),
            (Layout::Packed, true) => {
                let lap = if self.used_wrap { 1 << 15 } else { 0 };
                self.store(self.at.driver, 0, self.used | lap);
                self.store(self.at.driver, 2, 2);
            }
            (Layout::Packed, false) => self.store(self.at.driver, 2, 0),
        }
        fence(Ordering::SeqCst);
        match self.options.layout {
            Layout::Split => self.load(self.at.device, 2) != self.used,
            Layout::Packed => {
                let at = usize::from(self.used) * DESCRIPTOR_LEN;
                let flags = self.load(self.at.descriptors, at + 14);
                [flags & AVAILABLE != 0, flags & USED != 0] == [self.used_wrap; 2]
            }
        }
    }

    /// Asks for no notifications.
    pub fn disarm(&mut self) {
        match (self.options.layout, self.options.event_idx) {
            (Layout::Split, true) => {}
            (Layout::Split, false) => self.store(self.at.driver, 0, 1),
            (Layout::Packed, _) => self.store(self.at.driver, 2, 1),
        }
    }
}
