//! The packed ring.

use std::sync::Arc;

use shm::Region;

use crate::chain::{DESCRIPTORS_MAX, Descriptor, flag, is_single};
use crate::inflight::{InflightLog, Positions};
use crate::layout::must_notify;
use crate::position::Position;
use crate::split::walk_table;
use crate::taken::{Taken, TakenChain};
use crate::words::PackedWords;
use crate::{Chain, GuestMemory, Options, RingBroken, RingMemory, RingSetup, SetupError, Single};

/// `RING_EVENT_FLAGS_*`.
mod event {
    pub(super) const ENABLE: u16 = 0;
    pub(super) const DISABLE: u16 = 1;
    pub(super) const AT: u16 = 2;
}

/// Descriptors of a cache line.
const DESCRIPTORS_PER_LINE: u16 = 4;

#[derive(Debug)]
pub(crate) struct PackedQueue<M> {
    memory: Arc<GuestMemory>,
    words: PackedWords<M>,
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
    /// The region of the last buffer that was looked up.
    last: usize,
    /// Whether one used descriptor may stand for several (`VIRTIO_F_IN_ORDER`).
    pub(crate) is_in_order: bool,
    /// What the device's event suppression says, so that it is written only when it changes.
    device_event: (u16, u16),
    log: Option<InflightLog>,
    /// Whether there is any log.
    is_logged: bool,
}

impl PackedQueue<Region> {
    /// A ring in the guest's memory.
    pub(crate) fn new(
        memory: Arc<GuestMemory>,
        setup: RingSetup,
        log: Option<InflightLog>,
    ) -> Result<Self, SetupError> {
        let size = setup.packed_size()?;
        let words = PackedWords::find(&memory, setup.at, size)?;
        Self::over(words, memory, setup, log)
    }
}

impl<M: RingMemory> PackedQueue<M> {
    /// Starts from `position`: the next available and the next used descriptor, as vhost-user has them. Where they
    /// differ, chains that an earlier device took but did not return are taken again. A log of a device that did not stop
    /// knows better.
    pub(crate) fn over(
        words: PackedWords<M>,
        memory: Arc<GuestMemory>,
        setup: RingSetup,
        log: Option<InflightLog>,
    ) -> Result<Self, SetupError> {
        let RingSetup { position, options, .. } = setup;
        let size = setup.packed_size()?;
        let [available, used] = zerocopy::transmute!(position.to_le());
        // A front-end that knows of one position only leaves the other one zero.
        let bits: u16 = if used == 0 { available } else { used };
        let found = log.as_ref().and_then(|log| log.found(size));
        let bits = found.map_or(u16::from_le(bits), |found| found.published);
        let start = Position::from_bits(bits);
        if start.index >= size {
            return Err(SetupError::Position(position));
        }
        let is_logged = log.is_some() || memory.is_logged();
        let mut queue = Self {
            memory,
            words,
            size,
            options,
            next: start,
            used: start,
            occupied: 0,
            seen: 0,
            taken: Taken::new(size, 0),
            last: 0,
            is_in_order: false,
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
        // The first used descriptor of a batch is written last. Once it is there, the driver may have taken the whole batch and
        // offered the places again.
        let is_written = !self.is_available(0);
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
        if is_written {
            (self.used, self.occupied) = (self.next, 0);
            self.taken.published();
            log.set(Positions { published: found.publishing, publishing: found.publishing });
        } else {
            // The driver is notified in any case.
            let _ = self.show();
        }
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
                self.words.mark_descriptor(&self.memory, start.index);
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

    /// Whether the driver has made the descriptor `ahead` places after the next one available. What follows is
    /// read after its flags.
    #[inline]
    fn is_available(&self, ahead: u16) -> bool {
        // A ring whose descriptors the device has all taken has nothing new, whatever its flags say.
        if self.size - self.occupied <= ahead {
            return false;
        }
        let place = self.next.advance(ahead, self.size);
        place.is_available(self.words.flags(place.index))
    }

    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.is_available(0)
    }

    #[inline]
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Result<bool, RingBroken> {
        if !self.is_available(0) {
            return Ok(false);
        }
        chain.clear();
        let free = self.size - self.occupied;
        let mut position = self.next;
        let most = free.min(DESCRIPTORS_MAX);
        for count in 1..=most {
            let read = self.words.descriptor(position.index);
            let missing = RingBroken::NoSuchDescriptor { index: position.index, size: self.size };
            // The id and the flags are where a split descriptor has its flags and the next index.
            let Descriptor { address, len, flags: id, next: flags } =
                zerocopy::transmute!(read.ok_or(missing)?);
            if flags & flag::INDIRECT != 0 {
                if !self.options.indirect || flags & flag::NEXT != 0 {
                    return Err(RingBroken::Indirect);
                }
                walk_table(&self.memory, address, len, false, chain)?;
            } else {
                chain.add(&self.memory, address, len, flags);
            }
            position = position.advance(1, self.size);
            if flags & flag::NEXT == 0 {
                if id >= self.size {
                    return Err(RingBroken::NoSuchId { id, size: self.size });
                }
                self.next = position;
                self.occupied += count;
                self.seen = self.seen.saturating_sub(count);
                chain.index = self.taken.push(id, count);
                return Ok(true);
            }
        }
        Err(RingBroken::LongChain(most))
    }

    /// Takes the next chains of one buffer each, see [`Queue::pop_singles`](crate::Queue::pop_singles).
    #[inline]
    pub(crate) fn pop_singles(&mut self, is_writable: bool, singles: &mut [Single]) -> usize {
        let free = usize::from(self.size - self.occupied);
        let mut count = 0;
        if is_writable {
            // Used descriptors are written to the same places. A line that came for reading would have to be asked for twice.
            self.prefetch_from(self.next, singles.len().min(free));
        }
        for single in singles.iter_mut().take(free) {
            let at = self.next.index;
            // Length, id and flags are one read. The address is read after the flags.
            let tail = self.words.tail(at);
            let [a, b, c, d, id @ .., e, f] = u64::from_le(tail).to_le_bytes();
            let (len, id) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes(id));
            let flags = u16::from_le_bytes([e, f]);
            // A chain of another kind was only peeked at: `pop` reads it again and decides.
            if !self.next.is_available(flags) || !is_single(flags, is_writable) || id >= self.size {
                break;
            }
            let Some(address) = self.words.address(at) else { break };
            let Some(buffer) = self.memory.find_whole(address, len, &mut self.last) else { break };
            self.next = self.next.advance(1, self.size);
            *single = Single { index: self.taken.push(id, 1), buffer };
            count += 1;
        }
        // At most the ring's size.
        let taken = u16::try_from(count).unwrap_or(0);
        self.occupied += taken;
        self.seen = self.seen.saturating_sub(taken);
        count
    }

    /// Puts back the last `count` chains, which occupy one descriptor each.
    pub(crate) fn put_back_singles(&mut self, count: u16) {
        let index = self.taken.next().wrapping_sub(count);
        self.truncate(index, self.next.back(count, self.size));
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

    /// Starts to fetch the places of the next `count` used descriptors, for writing.
    #[inline]
    pub(crate) fn prefetch_used(&self, count: usize) {
        self.prefetch_from(self.used, count);
    }

    /// Starts to fetch the lines of `count` descriptors from `place` on, for writing. Where `place` lies within a line, the last one may
    /// be missing.
    #[inline]
    fn prefetch_from(&self, mut place: Position, count: usize) {
        let step = DESCRIPTORS_PER_LINE.min(self.size);
        for _ in 0..count.div_ceil(step.into()) {
            self.words.prefetch(place.index);
            place = place.advance(step, self.size);
        }
    }

    /// Shows the driver the chains that are complete. Returns how many descriptors they occupied.
    #[inline]
    pub(crate) fn show(&mut self) -> u16 {
        let (old, new) = (self.taken.first(), self.taken.complete_end());
        if old == new {
            return 0;
        }
        let start = self.used;
        if let Some(log) = &self.log {
            self.log_publication(log, old, new);
        }
        // A log notes each chain, so each of them is returned.
        let at_once = self.is_in_order && self.log.is_none() && self.are_read_only(old, new);
        let descriptors = match at_once {
            true => self.write_last(old, new),
            false => self.write_each(old, new),
        };
        debug_assert_eq!(start.advance(descriptors, self.size), self.used);
        self.occupied -= descriptors;
        self.taken.published();
        if self.is_logged {
            self.log_published(old, start);
        }
        descriptors
    }

    /// Whether the driver must be notified of the last `count` descriptors, which were shown.
    #[inline]
    pub(crate) fn must_notify(&self, count: u16) -> bool {
        self.words.full_barrier();
        self.driver_wants(count)
    }

    /// Whether the device wrote into none of these chains.
    #[inline]
    fn are_read_only(&self, old: u16, new: u16) -> bool {
        let count = new.wrapping_sub(old);
        (0..count).all(|n| self.taken.get(old.wrapping_add(n)).written == 0)
    }

    /// Writes a used descriptor for each of these chains, and returns how many descriptors they occupy. The first one
    /// is written last: the driver reads it first, and then the others.
    #[inline]
    fn write_each(&mut self, old: u16, new: u16) -> u16 {
        let start = self.used;
        let first = self.taken.get(old);
        // Kept in a register: a store to `self.used` would wait for those to the ring.
        let mut place = start.advance(first.descriptors, self.size);
        let mut descriptors = first.descriptors;
        let mut index = old.wrapping_add(1);
        while index != new {
            let entry = self.taken.get(index);
            self.write_used(place, entry);
            place = place.advance(entry.descriptors, self.size);
            descriptors += entry.descriptors;
            index = index.wrapping_add(1);
        }
        self.used = place;
        self.write_used(start, first);
        descriptors
    }

    /// Writes one used descriptor, with the id of the last chain, for all of these. The driver skips the others
    /// (VIRTIO 1.2 §2.8.9).
    #[inline]
    fn write_last(&mut self, old: u16, new: u16) -> u16 {
        let count = new.wrapping_sub(old);
        let descriptors = (0..count).map(|n| self.taken.get(old.wrapping_add(n)).descriptors).sum();
        let start = self.used;
        self.used = start.advance(descriptors, self.size);
        self.write_used(start, self.taken.get(new.wrapping_sub(1)));
        descriptors
    }

    /// Writes a used descriptor: length, id and flags at once, after all that was written before.
    #[inline]
    fn write_used(&self, place: Position, entry: TakenChain) {
        let flags = place.used_flags() | if entry.written > 0 { flag::WRITE } else { 0 };
        let tail = u64::from(entry.written) | u64::from(entry.id) << 32 | u64::from(flags) << 48;
        self.words.set_tail(place.index, tail.to_le());
    }

    /// Whether the driver wants a notification for the last `count` used descriptors. Its wish is read once.
    fn driver_wants(&self, count: u16) -> bool {
        let wish = self.words.driver_event().to_le_bytes();
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
                must_notify(new.wrapping_sub(count), new, index)
            }
            _ => true,
        }
    }

    /// Asks for a notification at the next chain that was not seen yet, and checks again.
    pub(crate) fn arm(&mut self) -> bool {
        let wish = match self.options.event_idx {
            true => (self.next.advance(self.seen, self.size).bits(), event::AT),
            false => (0, event::ENABLE),
        };
        self.set_device_event(wish);
        self.words.full_barrier();
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
        self.words.set_device_event(u32::from_le_bytes([a, b, c, d]));
        if self.memory.is_logged() {
            self.words.mark_device_event(&self.memory);
        }
    }
}
