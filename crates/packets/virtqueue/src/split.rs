//! The split ring.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use shm::Region;
use zerocopy::FromBytes;

use crate::chain::{DESCRIPTOR_LEN, DESCRIPTORS_MAX, Descriptor, flag, is_single};
use crate::layout::{Parts, must_notify};
use crate::memory::Area;
use crate::taken::Taken;
use crate::{
    Chain, GuestMemory, Options, RingBroken, RingMemory, RingSetup, SIZE_MAX, SetupError, Single,
};

/// `VIRTQ_AVAIL_F_NO_INTERRUPT` and `VIRTQ_USED_F_NO_NOTIFY`.
const NO_EVENT: u16 = 1;

#[derive(Debug)]
pub(crate) struct SplitQueue<M> {
    memory: Arc<GuestMemory>,
    words: Words<M>,
    descriptors: Area<M>,
    size: u16,
    options: Options,
    /// The last available index that was checked. The shared word is read again only past it.
    available: u16,
    pub(crate) taken: Taken,
    /// The region of the last buffer that was looked up.
    last: usize,
}

/// The words that both sides use to find each other.
#[derive(Debug)]
struct Words<M> {
    driver: Area<M>,
    device: Area<M>,
    size: u16,
}

impl<M: RingMemory> Words<M> {
    /// Reads a word. What is read after it is at least as new.
    #[inline]
    fn load(area: &Area<M>, offset: usize) -> u16 {
        area.region.load_u16(area.start + offset, Ordering::Acquire)
    }

    /// Writes a word. What was written before is visible with it.
    #[inline]
    fn store(area: &Area<M>, offset: usize, value: u16) {
        area.region.store_u16(area.start + offset, value, Ordering::Release);
    }

    /// The head of the chain that is available at `index`.
    #[inline]
    fn head(&self, index: u16) -> u16 {
        let at = 4 + 2 * usize::from(index & (self.size - 1));
        self.driver.region.read_words::<_, 2>(self.driver.start + at).unwrap_or(u16::MAX)
    }

    #[inline]
    fn write_used(&self, index: u16, id: u16, written: u32) {
        let at = 4 + 8 * usize::from(index & (self.size - 1));
        let entry = [u32::from(id), written];
        self.device.region.write_words::<_, 4>(self.device.start + at, entry);
    }

    /// Fetches the entries for the next chains that are returned: otherwise the barrier behind them waits.
    #[inline]
    fn prefetch_used(&self, first: u16, count: usize) {
        let start = self.device.start + 4 + 8 * usize::from(first & (self.size - 1));
        for line in 0..count.div_ceil(8) {
            // Behind the ring's end it is some other line.
            self.device.region.prefetch_for_write(start + 64 * line);
        }
    }

    /// Notes in the log that entries and the index were written.
    #[cold]
    fn mark_used(&self, memory: &GuestMemory, old: u16, new: u16) {
        let mut index = old;
        while index != new {
            self.device.mark(memory, 4 + 8 * usize::from(index & (self.size - 1)), 8);
            index = index.wrapping_add(1);
        }
        self.device.mark(memory, 0, 4);
    }

    /// Notes in the log that the flags and the event index were written.
    fn mark_event(&self, memory: &GuestMemory) {
        if memory.is_logged() {
            self.device.mark(memory, 0, 4);
            self.device.mark(memory, 4 + 8 * usize::from(self.size), 2);
        }
    }

    /// Reads the used index.
    #[inline]
    fn used(&self) -> u16 {
        Self::load(&self.device, 2)
    }

    /// Reads the available index.
    #[inline]
    fn available(&self) -> u16 {
        Self::load(&self.driver, 2)
    }

    /// Writes the used index.
    #[inline]
    fn set_used(&self, index: u16) {
        Self::store(&self.device, 2, index);
    }

    /// Writes the flags by which the driver knows whether it has to notify.
    #[inline]
    fn set_flags(&self, flags: u16) {
        Self::store(&self.device, 0, flags);
    }

    /// Writes at which available index the driver has to notify.
    #[inline]
    fn set_available_event(&self, index: u16) {
        Self::store(&self.device, 4 + 8 * usize::from(self.size), index);
    }

    /// Reads whether the driver wants notifications, where both sides go by flags.
    #[inline]
    fn wants_any(&self) -> bool {
        Self::load(&self.driver, 0) & NO_EVENT == 0
    }

    /// Reads at which used index the driver wants a notification.
    #[inline]
    fn used_event(&self) -> u16 {
        Self::load(&self.driver, 4 + 2 * usize::from(self.size))
    }

    /// A full barrier: it also orders earlier stores before later loads.
    #[inline]
    fn full_barrier(&self) {
        self.device.region.full_barrier();
    }
}

impl SplitQueue<Region> {
    /// A ring in the guest's memory.
    pub(crate) fn new(memory: Arc<GuestMemory>, setup: RingSetup) -> Result<Self, SetupError> {
        let parts = Parts::split(setup.split_size()?).find(&memory, setup.at)?;
        Self::over(parts, memory, setup)
    }
}

impl<M: RingMemory> SplitQueue<M> {
    /// Starts from the used index in the ring, so chains that an earlier device took but did not return are
    /// taken again.
    pub(crate) fn over(
        [descriptors, driver, device]: [Area<M>; 3],
        memory: Arc<GuestMemory>,
        setup: RingSetup,
    ) -> Result<Self, SetupError> {
        let size = setup.split_size()?;
        let words = Words { driver, device, size };
        let used = words.used();
        let mut queue = Self {
            memory,
            words,
            descriptors,
            size,
            options: setup.options,
            available: used,
            taken: Taken::new(size, used),
            last: 0,
        };
        queue.refresh()?;
        queue.disarm();
        Ok(queue)
    }

    pub(crate) fn memory(&self) -> &Arc<GuestMemory> {
        &self.memory
    }

    /// Reads the available index, and checks it: one that jumps would make the device take chains twice, or for
    /// ever; one that goes back would withdraw chains that the caller knows.
    #[inline]
    fn refresh(&mut self) -> Result<u16, RingBroken> {
        self.prefetch_next();
        self.check(self.words.available())
    }

    /// Starts to fetch the descriptor of the next chain. The driver has written it just before the index, so both lines would have to
    /// come from its CPU one after the other. What names the descriptor may change yet: it decides about nothing but this.
    #[inline]
    fn prefetch_next(&self) {
        let head = usize::from(self.words.head(self.taken.next()));
        self.descriptors.region.prefetch(self.descriptors.start + head * DESCRIPTOR_LEN);
    }

    #[inline]
    fn check(&mut self, available: u16) -> Result<u16, RingBroken> {
        let (used, next) = (self.taken.first(), self.taken.next());
        let waiting = available.wrapping_sub(next);
        let is_good = available.wrapping_sub(used) <= self.size
            && waiting <= self.size
            && waiting >= self.available.wrapping_sub(next);
        if !is_good {
            return Err(self.bad_index(available));
        }
        self.available = available;
        Ok(waiting)
    }

    #[cold]
    fn bad_index(&self, available: u16) -> RingBroken {
        let (size, used, before) = (self.size, self.taken.first(), self.available);
        self.broken(match available.wrapping_sub(used) > size {
            true => RingBroken::AvailableOverflow { available, used, size },
            false => RingBroken::AvailableBackwards { before, now: available },
        })
    }

    /// The reason for an impossible index: lost memory reads as zeros.
    #[cold]
    fn broken(&self, why: RingBroken) -> RingBroken {
        if self.memory.is_lost() { RingBroken::MemoryLost } else { why }
    }

    /// How many chains wait. Reads the shared index only if none is known.
    #[inline]
    pub(crate) fn waiting(&mut self) -> Result<u16, RingBroken> {
        match self.available.wrapping_sub(self.taken.next()) {
            0 => self.refresh(),
            known => Ok(known),
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self, chain: &mut Chain) -> Result<bool, RingBroken> {
        if self.waiting()? == 0 {
            return Ok(false);
        }
        let head = self.words.head(self.taken.next());
        chain.clear();
        let mut index = head;
        let most = self.size.min(DESCRIPTORS_MAX);
        for _ in 0..most {
            let descriptor = self.descriptor(index)?;
            let Descriptor { address, len, flags, next } = descriptor;
            if flags & flag::INDIRECT != 0 {
                if !self.options.indirect || flags & flag::NEXT != 0 {
                    return Err(RingBroken::Indirect);
                }
                walk_table(&self.memory, address, len, true, chain)?;
            } else {
                chain.add(&self.memory, address, len, flags);
            }
            if flags & flag::NEXT == 0 {
                chain.index = self.taken.push(head, 0);
                return Ok(true);
            }
            index = next;
        }
        Err(RingBroken::LongChain(most))
    }

    /// Takes the next chains of one buffer each, see [`Queue::pop_singles`](crate::Queue::pop_singles).
    #[inline]
    pub(crate) fn pop_singles(
        &mut self,
        is_writable: bool,
        singles: &mut [Single],
    ) -> Result<usize, RingBroken> {
        let waiting = usize::from(self.waiting()?);
        self.words.prefetch_used(self.taken.next(), waiting.min(singles.len()));
        let mut count = 0;
        for single in singles.iter_mut().take(waiting) {
            let head = self.words.head(self.taken.next());
            let Descriptor { address, len, flags, .. } = self.descriptor(head)?;
            // A chain of another kind was only peeked at: `pop` reads it again and decides.
            if !is_single(flags, is_writable) {
                break;
            }
            let Some(buffer) = self.memory.find_whole(address, len, &mut self.last) else { break };
            *single = Single { index: self.taken.push(head, 0), buffer };
            count += 1;
        }
        Ok(count)
    }

    #[inline]
    fn descriptor(&self, index: u16) -> Result<Descriptor, RingBroken> {
        let missing = RingBroken::NoSuchDescriptor { index, size: self.size };
        if index >= self.size {
            return Err(missing);
        }
        let at = self.descriptors.start + usize::from(index) * DESCRIPTOR_LEN;
        self.descriptors.region.read_words::<_, 8>(at).ok_or(missing)
    }

    /// Shows the driver the chains that are complete. Returns how many there were.
    #[inline]
    pub(crate) fn show(&mut self) -> u16 {
        let (old, new) = (self.taken.first(), self.taken.complete_end());
        if old == new {
            return 0;
        }
        let mut index = old;
        while index != new {
            let entry = self.taken.get(index);
            self.words.write_used(index, entry.id, entry.written);
            index = index.wrapping_add(1);
        }
        self.taken.published();
        self.words.set_used(new);
        if self.memory.is_logged() {
            self.words.mark_used(&self.memory, old, new);
        }
        new.wrapping_sub(old)
    }

    /// Whether the driver must be notified of the last `count` chains, which were shown.
    ///
    /// The driver asks and then reads the used index; this side does the reverse. Without the barrier both could miss the
    /// other's write.
    #[inline]
    pub(crate) fn must_notify(&self, count: u16) -> bool {
        let new = self.taken.first();
        self.words.full_barrier();
        match self.options.event_idx {
            true => must_notify(new.wrapping_sub(count), new, self.words.used_event()),
            false => self.words.wants_any(),
        }
    }

    /// Asks for a notification at the next chain, and checks again.
    pub(crate) fn arm(&mut self) -> Result<bool, RingBroken> {
        // Past all known entries: the caller needs no event for entries that it knows and cannot use yet.
        let known = self.available;
        match self.options.event_idx {
            true => self.words.set_available_event(known),
            false => self.words.set_flags(0),
        }
        self.words.full_barrier();
        let available = self.words.available();
        self.words.mark_event(&self.memory);
        self.check(available)?;
        Ok(available != known)
    }

    /// Asks for no notifications. With event indices there is nothing to do: none comes until the next
    /// [`arm`](Self::arm).
    pub(crate) fn disarm(&mut self) {
        if !self.options.event_idx {
            self.words.set_flags(NO_EVENT);
            self.words.mark_event(&self.memory);
        }
    }
}

/// Adds the buffers of an indirect table. In a split ring its descriptors name the next one; in a packed ring
/// they follow each other.
pub(crate) fn walk_table(
    memory: &GuestMemory,
    table: u64,
    len: u32,
    is_linked: bool,
    chain: &mut Chain,
) -> Result<(), RingBroken> {
    let bad = RingBroken::IndirectLength(len);
    let bytes = usize::try_from(len).map_err(|_| bad)?;
    if !bytes.is_multiple_of(DESCRIPTOR_LEN) {
        return Err(bad);
    }
    let size = u16::try_from(bytes / DESCRIPTOR_LEN).map_err(|_| bad)?;
    if !(1..=SIZE_MAX).contains(&size) {
        return Err(bad);
    }
    let mut index = 0;
    let most = size.min(DESCRIPTORS_MAX);
    for n in 1..=most {
        let at = table.wrapping_add(u64::from(index) * DESCRIPTOR_LEN as u64);
        let Ok(bytes) = memory.read_16(at) else {
            chain.fault = Some(crate::Fault::Outside);
            return Ok(());
        };
        let Ok(Descriptor { address, len, mut flags, mut next }) =
            Descriptor::read_from_bytes(&bytes)
        else {
            return Err(bad);
        };
        if !is_linked {
            // A packed descriptor has its flags last. Only WRITE counts here.
            (flags, next) = (next & flag::WRITE, n);
            if n < size {
                flags |= flag::NEXT;
            }
        }
        if flags & flag::INDIRECT != 0 {
            return Err(RingBroken::Indirect);
        }
        chain.add(memory, address, len, flags);
        // The rest of a chain that cannot be used need not be read.
        if flags & flag::NEXT == 0 || chain.fault.is_some() {
            return Ok(());
        }
        if next >= size {
            return Err(RingBroken::NoSuchDescriptor { index: next, size });
        }
        index = next;
    }
    Err(RingBroken::LongChain(most))
}
