//! The packed ring.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::chain::{DESCRIPTOR_LEN, Descriptor, flag};
use crate::events::must_notify;
use crate::inflight::{InflightLog, Positions};
use crate::layout::Parts;
use crate::memory::Area;
use crate::split::walk_table;
use crate::taken::Taken;
use crate::{Broken, Chain, GuestMemory, Options, RingAddresses, SIZE_MAX, SetupError};

/// `VIRTQ_DESC_F_AVAIL` and `VIRTQ_DESC_F_USED`.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// `RING_EVENT_FLAGS_*`.
mod event {
    pub(super) const ENABLE: u16 = 0;
    pub(super) const DISABLE: u16 = 1;
    pub(super) const AT: u16 = 2;
}

/// The wrap counter in an event's or a position's 16 bits.
const WRAP: u16 = 1 << 15;
/// Bytes from a descriptor's start to its length, id and flags.
const LENGTH: usize = 8;
const FLAGS: usize = 14;

/// A place in the ring, and the driver's or device's lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    index: u16,
    wrap: bool,
}

impl Position {
    /// From the 16 bits that vhost-user has for it.
    fn from_bits(bits: u16) -> Self {
        Self { index: bits & !WRAP, wrap: bits & WRAP != 0 }
    }

    fn bits(self) -> u16 {
        self.index | if self.wrap { WRAP } else { 0 }
    }

    #[inline]
    fn advance(self, by: u16, size: u16) -> Self {
        // Both are at most 32768, so the sum has 32 bits.
        let index = u32::from(self.index) + u32::from(by);
        match index.checked_sub(size.into()) {
            Some(past) => Self { index: u16::try_from(past).unwrap_or(0), wrap: !self.wrap },
            None => Self { index: u16::try_from(index).unwrap_or(0), wrap: self.wrap },
        }
    }
}

#[derive(Debug)]
pub(crate) struct PackedQueue {
    memory: Arc<GuestMemory>,
    descriptors: Area,
    driver: Area,
    device: Area,
    size: u16,
    options: Options,
    /// Where the next chain begins.
    pub(crate) next: Position,
    /// Where the next used descriptor goes.
    used: Position,
    /// Descriptors of all chains in `taken`.
    occupied: u16,
    /// Descriptors from `next` on that were taken and put back.
    seen: u16,
    pub(crate) taken: Taken,
    /// What the device's event suppression says, so that it is written only when it changes.
    device_event: (u16, u16),
    log: Option<InflightLog>,
    /// Whether there is any log.
    is_logged: bool,
}

impl PackedQueue {
    /// Starts from `position`: the next available and the next used descriptor, as vhost-user has them. Where they
    /// differ, chains that an earlier device took but did not return are taken again. A log of a device that did not stop
    /// knows better.
    pub(crate) fn new(
        memory: Arc<GuestMemory>,
        at: RingAddresses,
        size: u32,
        position: u32,
        options: Options,
        log: Option<InflightLog>,
    ) -> Result<Self, SetupError> {
        let bad = SetupError::Size { layout: "packed", size };
        let size = u16::try_from(size).map_err(|_| bad.clone())?;
        if !(1..=SIZE_MAX).contains(&size) {
            return Err(bad);
        }
        let [available, used] = zerocopy::transmute!(position.to_le());
        // A front-end that knows of one position only leaves the other one zero.
        let bits: u16 = if used == 0 { available } else { used };
        let found = log.as_ref().and_then(|log| log.found(size));
        let bits = found.map_or(u16::from_le(bits), |found| found.published);
        let start = Position::from_bits(bits);
        if start.index >= size {
            return Err(SetupError::Position(position));
        }
        let [descriptors, driver, device] = Parts::packed(size).find(&memory, at)?;
        let is_logged = log.is_some() || memory.is_logged();
        let mut queue = Self {
            memory,
            descriptors,
            driver,
            device,
            size,
            options,
            next: start,
            used: start,
            occupied: 0,
            seen: 0,
            taken: Taken::new(size, 0),
            device_event: (0, u16::MAX),
            is_logged,
            log,
        };
        match found {
            Some(found) => queue.publish_again(found)?,
            None => queue.log.iter().try_for_each(|log| log.start(size, start.bits()))?,
        }
        queue.disarm();
        Ok(queue)
    }

    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Publishes what an earlier device was publishing when it ended.
    fn publish_again(&mut self, found: Positions) -> Result<(), SetupError> {
        let Some(log) = &self.log else { return Ok(()) };
        let mut n = 0;
        while self.next.bits() != found.publishing {
            let (id, descriptors, written) = log.noted(n);
            // The front-end can write here too.
            let free = self.size - self.occupied;
            if id >= self.size || !(1..=free).contains(&descriptors) {
                return Err(SetupError::Inflight);
            }
            let index = self.taken.push(id, descriptors);
            self.taken.set_complete(index, written);
            self.occupied += descriptors;
            self.next = self.next.advance(descriptors, self.size);
            n += 1;
        }
        // The driver is notified in any case.
        let _ = self.publish();
        Ok(())
    }

    /// Notes in the log the chains that are about to be published.
    #[cold]
    fn log_publication(&self, log: &InflightLog, old: u16, new: u16) {
        let (mut index, mut end) = (old, self.used);
        while index != new {
            let entry = self.taken.get(index);
            log.note(index.wrapping_sub(old), entry);
            end = end.advance(entry.descriptors, self.size);
            index = index.wrapping_add(1);
        }
        log.set(Positions { published: self.used.bits(), publishing: end.bits() });
    }

    /// Notes in the logs that the chains from number `old` on, the first of which began at `start`, are published.
    #[cold]
    fn log_published(&self, old: u16, mut start: Position) {
        if self.memory.is_logged() {
            let mut index = old;
            while index != self.taken.first() {
                let at = usize::from(start.index) * DESCRIPTOR_LEN;
                self.descriptors.mark(&self.memory, at, DESCRIPTOR_LEN);
                start = start.advance(self.taken.get(index).descriptors, self.size);
                index = index.wrapping_add(1);
            }
        }
        if let Some(log) = &self.log {
            let published = self.used.bits();
            log.set(Positions { published, publishing: published });
        }
    }

    /// The position to start from later, with all chains that are not returned taken again.
    pub(crate) fn position(&self) -> u32 {
        let bits = u32::from(self.used.bits());
        bits | bits << 16
    }

    #[inline]
    fn at(&self, index: u16) -> usize {
        self.descriptors.start + usize::from(index) * DESCRIPTOR_LEN
    }

    /// Whether the driver has made the descriptor `ahead` places after the next one available. What follows is
    /// read after its flags.
    #[inline]
    fn is_available(&self, ahead: u16) -> bool {
        // A ring whose descriptors the device has all taken has nothing new, whatever its flags say.
        if self.size - self.occupied <= ahead {
            return false;
        }
        let Position { index, wrap } = self.next.advance(ahead, self.size);
        let word = self.descriptors.region.atomic_u16(self.at(index) + FLAGS);
        let flags = word.map_or(0, |word| word.load(Ordering::Acquire));
        let (available, used) = (flags & AVAILABLE != 0, flags & USED != 0);
        available == wrap && used != wrap
    }

    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.is_available(0)
    }

    /// Prefetches the next descriptors.
    #[inline]
    pub(crate) fn prefetch(&self, chains: u16) {
        for n in (0..chains).step_by(4) {
            let at = self.at(self.next.advance(n.min(self.size - 1), self.size).index);
            self.descriptors.region.prefetch_for_write(at);
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Result<bool, Broken> {
        if !self.is_available(0) {
            return Ok(false);
        }
        chain.clear();
        let free = self.size - self.occupied;
        let mut position = self.next;
        for count in 1..=free {
            let read = self.descriptors.region.read(self.at(position.index));
            let missing = Broken::NoSuchDescriptor { index: position.index, size: self.size };
            // The id and the flags are where a split descriptor has its flags and the next index.
            let Descriptor { address, len, flags: id, next: flags } = read.map_err(|_| missing)?;
            if flags & flag::INDIRECT != 0 {
                if !self.options.indirect || flags & flag::NEXT != 0 {
                    return Err(Broken::Indirect);
                }
                walk_table(&self.memory, address, len, false, chain)?;
            } else {
                chain.add(&self.memory, address, len, flags);
            }
            position = position.advance(1, self.size);
            if flags & flag::NEXT == 0 {
                if id >= self.size {
                    return Err(Broken::NoSuchId { id, size: self.size });
                }
                self.next = position;
                self.occupied += count;
                self.seen = self.seen.saturating_sub(count);
                chain.index = self.taken.push(id, count);
                return Ok(true);
            }
        }
        Err(Broken::LongChain(free))
    }

    /// Puts back the chains from `index` on, the first of which began at `position`.
    pub(crate) fn truncate(&mut self, index: u16, position: Position) {
        let mut at = index;
        while at != self.taken.next() {
            let count = self.taken.get(at).descriptors;
            self.occupied -= count;
            self.seen += count;
            at = at.wrapping_add(1);
        }
        self.taken.truncate(index);
        self.next = position;
    }

    #[inline]
    pub(crate) fn publish(&mut self) -> bool {
        let (old, new) = (self.taken.first(), self.taken.complete_end());
        if old == new {
            return false;
        }
        let start = self.used;
        if let Some(log) = &self.log {
            self.log_publication(log, old, new);
        }
        let (mut first, mut descriptors) = (None, 0);
        let mut index = old;
        while index != new {
            let entry = self.taken.get(index);
            let lap = if self.used.wrap { AVAILABLE | USED } else { 0 };
            let flags = lap | if entry.written > 0 { flag::WRITE } else { 0 };
            let at = self.at(self.used.index);
            let len = entry.written.to_le_bytes();
            let ([a, b], [c, d]) = (entry.id.to_le_bytes(), flags.to_le_bytes());
            // Setup has checked the bounds.
            let region = &self.descriptors.region;
            if first.is_none() {
                // The driver looks at the first one first, so its flags show it all others.
                let _ = region.write(at + LENGTH, len);
                let _ = region.write(at + LENGTH + 4, [a, b]);
                first = Some((at, flags));
            } else {
                let [e, f, g, h] = len;
                let _ = region.write(at + LENGTH, u64::from_le_bytes([e, f, g, h, a, b, c, d]));
            }
            self.used = self.used.advance(entry.descriptors, self.size);
            descriptors += entry.descriptors;
            index = index.wrapping_add(1);
        }
        if let Some((at, flags)) = first
            && let Ok(word) = self.descriptors.region.atomic_u16(at + FLAGS)
        {
            word.store(flags, Ordering::Release);
        }
        self.occupied -= descriptors;
        self.taken.published();
        if self.is_logged {
            self.log_published(old, start);
        }
        fence(Ordering::SeqCst);
        self.driver_wants(start, descriptors)
    }

    /// Whether the driver wants a notification for `count` used descriptors from `start` on. Its wish is read
    /// once.
    fn driver_wants(&self, start: Position, count: u16) -> bool {
        let word = self.driver.region.atomic_u32(self.driver.start);
        let wish = word.map_or(0, |word| word.load(Ordering::Relaxed)).to_le_bytes();
        let [at, flags] = [[wish[0], wish[1]], [wish[2], wish[3]]].map(u16::from_le_bytes);
        match flags & 3 {
            event::DISABLE => false,
            event::AT if self.options.event_idx => {
                let at = Position::from_bits(at);
                let index = match at.wrap == self.used.wrap {
                    true => at.index,
                    false => at.index.wrapping_sub(self.size),
                };
                let new = self.used.index;
                debug_assert_eq!(start.advance(count, self.size), self.used);
                must_notify(new.wrapping_sub(count), new, index)
            }
            _ => true,
        }
    }

    /// Asks for a notification at the next chain that was not seen yet, and looks again.
    pub(crate) fn arm(&mut self) -> bool {
        let wish = match self.options.event_idx {
            true => (self.next.advance(self.seen, self.size).bits(), event::AT),
            false => (0, event::ENABLE),
        };
        self.set_device_event(wish);
        fence(Ordering::SeqCst);
        self.is_available(self.seen)
    }

    pub(crate) fn disarm(&mut self) {
        self.set_device_event((self.device_event.0, event::DISABLE));
    }

    fn set_device_event(&mut self, (at, flags): (u16, u16)) {
        if self.device_event == (at, flags) {
            return;
        }
        self.device_event = (at, flags);
        let ([a, b], [c, d]) = (at.to_le_bytes(), flags.to_le_bytes());
        if let Ok(word) = self.device.region.atomic_u32(self.device.start) {
            word.store(u32::from_le_bytes([a, b, c, d]), Ordering::Release);
        }
        if self.memory.is_logged() {
            self.device.mark(&self.memory, 0, 4);
        }
    }
}
