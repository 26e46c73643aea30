//! The hypervisor's half of one ring: checks, references, sequence numbers and lazy completion.

use std::ops::Range;
use std::sync::atomic::Ordering;

use cdna::{Descriptor, Direction, address, completion, ring};
use hypervisor::{LockedReferences, PageOwner};
use shm::Region;

use crate::assign::ContextMemory;
use crate::refusal::{EntryError, Refusal};
use crate::writer::Writer;

/// The pages that one descriptor holds references to, counted from the owner's first.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    first: usize,
    pages: usize,
}

impl Held {
    fn range(self) -> Range<usize> {
        self.first..self.first + self.pages
    }
}

/// The card's consumer index is impossible: it lies beyond the producer index, or went back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadConsumer(pub(crate) u32);

#[derive(Debug)]
pub(crate) struct Ring {
    direction: Direction,
    producer: u32,
    consumer: u32,
    /// By slot: the pages of the descriptors from the consumer index to the producer index.
    held: Box<[Held; ring::SLOTS as usize]>,
}

impl Ring {
    /// An empty ring.
    pub(crate) fn new(direction: Direction, start: u32) -> Self {
        let held = Box::new([Held::default(); ring::SLOTS as usize]);
        Self { direction, producer: start, consumer: start, held }
    }

    /// Descriptors that the card has not consumed, as far as is known.
    pub(crate) fn pending(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer)
    }

    /// References that pending descriptors hold.
    pub(crate) fn references(&self) -> usize {
        self.slots().map(|slot| self.held[slot].pages).sum()
    }

    fn slots(&self) -> impl Iterator<Item = usize> + use<> {
        let consumer = self.consumer;
        (0..self.pending()).map(move |n| ring::slot(consumer.wrapping_add(n)))
    }

    /// Releases the references of descriptors that the card has consumed. One read if there are none.
    pub(crate) fn reap(
        &mut self,
        references: &mut LockedReferences<'_>,
        completions: &Region,
    ) -> Result<(), BadConsumer> {
        let word = completions.atomic_u32(completion::consumer(self.direction));
        // Acquire: the card's accesses to the pages come before this.
        let consumer = word.map_or(self.consumer, |word| word.load(Ordering::Acquire));
        let done = consumer.wrapping_sub(self.consumer);
        if done > self.pending() {
            return Err(BadConsumer(consumer));
        }
        for slot in self.slots().take(done as usize) {
            references.release(self.held[slot].range());
        }
        self.consumer = consumer;
        Ok(())
    }

    /// Releases all references. The card is quiet.
    pub(crate) fn release(&mut self, references: &mut LockedReferences<'_>) {
        for slot in self.slots() {
            references.release(self.held[slot].range());
        }
        self.consumer = self.producer;
    }

    /// Releases the references of descriptors that the card has consumed. Then checks descriptors, takes references and
    /// writes them: all, or on a refusal none. Returns the new producer index.
    #[inline]
    pub(crate) fn enqueue<O: PageOwner + ?Sized>(
        &mut self,
        owner: &O,
        memory: &ContextMemory,
        writer: Writer,
        batch: &[Descriptor],
    ) -> Result<Result<u32, Refusal>, BadConsumer> {
        let mut references = owner.references().lock();
        self.reap(&mut references, &memory.completions)?;
        let free = ring::SLOTS - self.pending();
        if batch.len() > free as usize {
            return Ok(Err(Refusal::Full { free }));
        }
        let producer = self.producer;
        #[expect(clippy::cast_possible_truncation, reason = "no more than the ring holds")]
        let slot = |n: usize| ring::slot(producer.wrapping_add(n as u32));
        let own = owner.machine_pages();
        let mut taken = 0;
        let mut refusal = None;
        for (n, descriptor) in batch.iter().enumerate() {
            match touched(descriptor, &own) {
                Ok(held) => {
                    references.take(held.range());
                    self.held[slot(n)] = held;
                    taken = n + 1;
                }
                Err(why) => {
                    refusal = Some(Refusal::entry(n, why));
                    break;
                }
            }
        }
        // Checked with the references locked: a page that is given up later waits for them.
        let given_up = (0..taken)
            .find(|n| !self.held[slot(*n)].range().all(|page| owner.owns(page)))
            .map(|n| Refusal::entry(n, EntryError::GivenUp));
        if let Some(refusal) = given_up.or(refusal) {
            (0..taken).for_each(|n| references.release(self.held[slot(n)].range()));
            return Ok(Err(refusal));
        }
        let mut index = producer;
        for descriptor in batch {
            writer.write(&memory.rings, self.direction, index, *descriptor);
            index = index.wrapping_add(1);
        }
        self.producer = index;
        Ok(Ok(index))
    }
}

/// The pages that a descriptor touches, counted from the owner's first.
#[inline]
fn touched(descriptor: &Descriptor, own: &Range<u64>) -> Result<Held, EntryError> {
    let pages = address::pages(descriptor.addr, descriptor.len).ok_or(EntryError::Wraps)?;
    if pages.is_empty() {
        // No buffer: the address field holds something else.
        return Ok(Held::default());
    }
    if pages.start < own.start || pages.end > own.end {
        return Err(EntryError::Foreign);
    }
    let count = pages.end - pages.start;
    match (usize::try_from(pages.start - own.start), usize::try_from(count)) {
        (Ok(first), Ok(pages)) => Ok(Held { first, pages }),
        _ => Err(EntryError::Foreign),
    }
}
