//! The card's view of real shared memory: [`ContextPages`], [`VectorPage`] and a [`Bus`] without checks over regions.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use cdna::context::CONTEXTS_MAX;
use cdna::vectors::{self, Vector};
use cdna::{
    ContextId, Descriptor, Direction, Mailbox, Reason, RxCompletion, Status, completion, context,
    ring,
};
use shm::{OutOfBounds, Region};
use zerocopy::{IntoBytes, transmute};

use crate::bus::{Bus, BusFault, ContextPages, VectorPage};

/// A context's pages, as regions.
#[derive(Debug)]
pub struct RegionPages {
    context: Region,
    rings: Region,
    completion: Region,
}

/// Checks a region's size, so that no access to it can fail later.
fn checked(region: Region, len: usize) -> Result<Region, OutOfBounds> {
    match region.len() {
        size if size >= len => Ok(region),
        size => Err(OutOfBounds { offset: 0, len, size }),
    }
}

#[expect(clippy::expect_used, reason = "the size was checked when the region came")]
#[inline]
fn word(region: &Region, offset: usize) -> &AtomicU32 {
    region.atomic_u32(offset).expect("a word of a page of the right size")
}

impl RegionPages {
    /// The context page, both rings, and the completion page.
    ///
    /// # Errors
    /// One of them is too small.
    pub fn new(context: Region, rings: Region, completion: Region) -> Result<Self, OutOfBounds> {
        Ok(Self {
            context: checked(context, context::PAGE_LEN)?,
            rings: checked(rings, ring::RINGS_LEN)?,
            completion: checked(completion, completion::PAGE_LEN)?,
        })
    }
}

#[expect(clippy::expect_used, reason = "the sizes were checked when the regions came")]
impl ContextPages for RegionPages {
    #[inline]
    fn events(&self) -> u32 {
        word(&self.context, context::EVENTS).load(Ordering::Relaxed)
    }

    #[inline]
    fn take_events(&self) -> u32 {
        word(&self.context, context::EVENTS).swap(0, Ordering::SeqCst)
    }

    #[inline]
    fn mailbox(&self, mailbox: Mailbox) -> u32 {
        word(&self.context, mailbox.offset()).load(Ordering::Acquire)
    }

    #[inline]
    fn descriptors(&self, direction: Direction, first: u32, into: &mut [Descriptor]) {
        let offset = ring::offset(direction, first);
        for (at, descriptor) in (offset..).step_by(size_of::<Descriptor>()).zip(into) {
            let word = |at| self.rings.atomic_u64(at).expect("slots of the ring");
            // The hypervisor writes the sequence number last. The guest may announce a descriptor before
            // that, and an address read first could be the last round's, of a page that was given away.
            let rest = word(at + size_of::<u64>()).load(Ordering::Acquire);
            *descriptor = transmute!([word(at).load(Ordering::Relaxed), rest]);
        }
    }

    #[inline]
    fn complete(&self, first: u32, completions: &[RxCompletion]) {
        let offset = completion::offset(first);
        self.completion.copy_in(offset, completions.as_bytes()).expect("slots of the page");
    }

    #[inline]
    fn publish(&self, direction: Direction, consumer: u32) {
        word(&self.completion, completion::consumer(direction)).store(consumer, Ordering::Release);
    }

    fn set_asleep(&self, is_asleep: bool) {
        word(&self.completion, completion::ASLEEP).store(is_asleep.into(), Ordering::Release);
    }

    fn set_status(&self, status: Status) {
        word(&self.completion, completion::STATUS).store(status as u32, Ordering::Release);
    }

    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

/// The page of interrupt vectors, as a region.
#[derive(Debug)]
pub struct RegionVectors(Region);

impl RegionVectors {
    /// The page.
    ///
    /// # Errors
    /// It is too small.
    pub fn new(page: Region) -> Result<Self, OutOfBounds> {
        checked(page, vectors::PAGE_LEN).map(Self)
    }
}

impl VectorPage for RegionVectors {
    #[expect(clippy::expect_used, reason = "the size was checked when the region came")]
    fn write(&self, index: u32, vector: &Vector) {
        self.0.write(vectors::offset(index), *vector).expect("a slot of the page");
    }

    fn publish(&self, producer: u32) {
        word(&self.0, vectors::PRODUCER).store(producer, Ordering::Release);
    }

    fn consumer(&self) -> u32 {
        word(&self.0, vectors::CONSUMER).load(Ordering::Acquire)
    }

    fn is_hypervisor_asleep(&self) -> bool {
        fence(Ordering::SeqCst);
        word(&self.0, vectors::ASLEEP).load(Ordering::Relaxed) != 0
    }
}

/// All of the machine's memory, without any check of whose it is: the bus for contexts that are protected otherwise, or
/// not at all.
#[derive(Debug)]
pub struct FlatBus {
    /// In the order of their bases.
    parts: Vec<Part>,
    /// The part of each context's last access.
    last: Box<[usize; CONTEXTS_MAX]>,
}

/// One domain's memory.
#[derive(Debug)]
struct Part {
    base: u64,
    memory: Arc<Region>,
}

impl Part {
    /// Where an address is in it.
    #[inline]
    fn offset(&self, address: u64) -> Option<usize> {
        let offset = usize::try_from(address.checked_sub(self.base)?).ok()?;
        (offset < self.memory.len()).then_some(offset)
    }
}

impl Default for FlatBus {
    fn default() -> Self {
        Self { parts: Vec::new(), last: Box::new([0; CONTEXTS_MAX]) }
    }
}

impl FlatBus {
    /// A machine without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds memory, which begins at a machine address and overlaps no other.
    pub fn insert(&mut self, base: u64, memory: Arc<Region>) {
        let place = self.parts.partition_point(|part| part.base < base);
        self.parts.insert(place, Part { base, memory });
    }

    /// Removes the memory that begins at this address.
    pub fn remove(&mut self, base: u64) {
        self.parts.retain(|part| part.base != base);
    }

    /// Calls `access` for each part of the memory that `len` bytes at `address` touch, with the offset in it and the
    /// range of the bytes.
    #[inline]
    fn access(
        &mut self,
        context: ContextId,
        address: u64,
        len: usize,
        mut access: impl FnMut(&Region, usize, Range<usize>) -> Result<(), OutOfBounds>,
    ) -> Result<(), BusFault> {
        let mut done = 0;
        while done < len {
            let outside = BusFault { reason: Reason::Outside, address };
            let at = address.checked_add(done as u64).ok_or(outside)?;
            let outside = BusFault { reason: Reason::Outside, address: at };
            let (part, offset) = self.find(context, at).ok_or(outside)?;
            let count = (len - done).min(part.memory.len() - offset);
            access(&part.memory, offset, done..done + count).map_err(|_| outside)?;
            done += count;
        }
        Ok(())
    }

    /// The part that holds an address, and the offset in it. Most of a context's accesses are to the memory of its guest.
    #[inline]
    fn find(&mut self, context: ContextId, address: u64) -> Option<(&Part, usize)> {
        let mut last = self.last[context.index()];
        if self.parts.get(last).and_then(|part| part.offset(address)).is_none() {
            last = self.search(address)?;
            self.last[context.index()] = last;
        }
        let part = self.parts.get(last)?;
        part.offset(address).map(|offset| (part, offset))
    }

    #[cold]
    fn search(&self, address: u64) -> Option<usize> {
        self.parts.partition_point(|part| part.base <= address).checked_sub(1)
    }
}

impl Bus for FlatBus {
    type Pages = RegionPages;
    type Vectors = RegionVectors;

    #[inline]
    fn read(&mut self, context: ContextId, address: u64, dest: &mut [u8]) -> Result<(), BusFault> {
        self.access(context, address, dest.len(), |memory, offset, range| {
            memory.copy_out(offset, &mut dest[range])
        })
    }

    #[inline]
    fn write(&mut self, context: ContextId, address: u64, source: &[u8]) -> Result<(), BusFault> {
        self.access(context, address, source.len(), |memory, offset, range| {
            memory.copy_in(offset, &source[range])
        })
    }

    #[inline]
    fn prefetch(&mut self, context: ContextId, address: u64, is_write: bool) {
        // A hint: only where the context's last access was.
        let Some(part) = self.parts.get(self.last[context.index()]) else { return };
        match part.offset(address) {
            Some(offset) if is_write => part.memory.prefetch_for_write(offset),
            Some(offset) => part.memory.prefetch(offset),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_access_may_cross_from_one_domain_into_the_next() {
        let memory = [0, 1].map(|_| Arc::new(Region::anonymous(4096).unwrap()));
        let mut bus = FlatBus::new();
        bus.insert(0x11000, memory[1].clone());
        bus.insert(0x10000, memory[0].clone());
        let context = ContextId::new(1);
        bus.write(context, 0x10ffe, b"abcd").unwrap();
        assert_eq!(memory[0].read::<[u8; 2]>(4094), Ok(*b"ab"));
        assert_eq!(memory[1].read::<[u8; 2]>(0), Ok(*b"cd"));
        let mut seen = [0; 4];
        bus.read(context, 0x10ffe, &mut seen).unwrap();
        assert_eq!(&seen, b"abcd");
        let outside = |address| Err(BusFault { reason: Reason::Outside, address });
        assert_eq!(bus.read(context, 0xffff, &mut seen), outside(0xffff));
        assert_eq!(bus.write(context, 0x11ffe, b"abcd"), outside(0x12000));
        assert_eq!(bus.read(context, u64::MAX, &mut seen), outside(u64::MAX));
        assert_eq!(bus.read(context, 0, &mut []), Ok(()));
        bus.remove(0x11000);
        assert_eq!(bus.read(context, 0x11000, &mut seen), outside(0x11000));
        bus.prefetch(context, 0, true);
    }

    #[test]
    fn small_regions_are_refused() {
        let region = |len| Region::anonymous(len).unwrap();
        assert!(RegionPages::new(region(4096), region(8192), region(4096)).is_ok());
        assert!(RegionPages::new(region(4096), region(4096), region(4096)).is_err());
        assert!(RegionVectors::new(region(4096)).is_ok());
    }
}
