//! One ring of a context: its indices, its mailboxes, and the descriptors on their way into it.

#![expect(clippy::cast_possible_truncation, reason = "a batch is no longer than the ring")]

use std::ops::Range;
use std::sync::Arc;

use arrayvec::ArrayVec;
use cdna::ring::SLOTS;
use cdna::{Descriptor, Direction, Flags, Mailbox, Offload, address, ring};

use crate::Fault;
use crate::call_page::{BATCH, CallError, Hypercalls};
use crate::pages::{Pages, Wake};

pub(crate) struct Ring {
    pages: Arc<Pages>,
    direction: Direction,
    publisher: Box<dyn Publish>,
    /// Descriptors that are not published. The last one has the index before `next`.
    staged: ArrayVec<Descriptor, BATCH>,
    /// The index of the next descriptor.
    next: u32,
    /// The index in the mailbox.
    announced: u32,
    /// The card's index as it was last read.
    consumer: u32,
    /// Why a descriptor could not be published. Nothing is published after it.
    fault: Option<Fault>,
    /// Whether publishing is a call of the hypervisor.
    is_called: bool,
}

impl Ring {
    /// A ring without descriptors, whose first one will have the index `start`.
    pub(crate) fn new(
        pages: Arc<Pages>,
        direction: Direction,
        publisher: Box<dyn Publish>,
        start: u32,
    ) -> Self {
        let (staged, fault) = (ArrayVec::new(), None);
        let (next, announced, consumer) = (start, start, start);
        let is_called = publisher.is_call();
        Self { pages, direction, publisher, staged, next, announced, consumer, fault, is_called }
    }

    /// The shared pages.
    pub(crate) fn pages(&self) -> &Pages {
        &self.pages
    }

    /// Whether pages must rest after the card is done with them.
    pub(crate) fn needs_rest(&self) -> bool {
        self.publisher.needs_rest()
    }

    /// Whether descriptors are published, or unmapped, by calls of the hypervisor: one for a batch costs hardly more than one for a descriptor.
    #[inline]
    pub(crate) fn is_called(&self) -> bool {
        self.is_called
    }

    /// Slots without a descriptor.
    #[inline]
    pub(crate) fn free(&self) -> u32 {
        SLOTS - self.used()
    }

    /// Descriptors that the card has, or will have with the next announcement.
    #[inline]
    pub(crate) fn used(&self) -> u32 {
        self.next.wrapping_sub(self.consumer)
    }

    /// The index of the next descriptor.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// The index after the last descriptor that the card is known to be done with.
    #[inline]
    pub(crate) fn consumer(&self) -> u32 {
        self.consumer
    }

    /// Adds a descriptor of a buffer. There must be a free slot.
    #[inline]
    pub(crate) fn push(&mut self, addr: u64, len: u16, flags: Flags) {
        self.stage(Descriptor::buffer(self.next, addr, len, flags));
    }

    /// Adds the descriptor of an unsegmented frame's metadata. There must be a free slot.
    #[inline]
    pub(crate) fn push_offload(&mut self, offload: Offload, flags: Flags) {
        self.stage(Descriptor::offload(self.next, offload, flags));
    }

    #[inline]
    fn stage(&mut self, descriptor: Descriptor) {
        if self.staged.is_full() {
            self.publish();
        }
        self.staged.push(descriptor);
        self.next = self.next.wrapping_add(1);
    }

    /// Publishes all staged descriptors. The card does not know of them yet.
    fn publish(&mut self) {
        if self.fault.is_none() {
            let first = self.next.wrapping_sub(self.staged.len() as u32);
            self.fault = self.publisher.publish(first, &self.staged).err().map(Fault::from);
        }
        self.staged.clear();
    }

    /// Announces all descriptors to the card, if there are new ones.
    #[inline]
    pub(crate) fn announce(&mut self) {
        if !self.staged.is_empty() {
            self.publish();
        }
        if self.fault.is_none() && self.announced != self.next {
            self.announced = self.next;
            let (mailbox, wake) = match self.direction {
                Direction::Tx => (Mailbox::TxProducer, Wake::IfAsleep),
                // A frame that arrives wakes the card, which reads the mailboxes first.
                Direction::Rx => (Mailbox::RxProducer, Wake::No),
            };
            self.pages.post([(mailbox, self.next)], wake);
        }
    }

    /// Whether the ring can still be used.
    ///
    /// # Errors
    /// Why not.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Fault> {
        match &self.fault {
            Some(fault) => Err(fault.clone()),
            None => Ok(()),
        }
    }

    /// How many more descriptors the card says that it is done with. The number may be impossible.
    #[inline]
    pub(crate) fn done(&self) -> u32 {
        self.pages.consumer(self.direction).wrapping_sub(self.consumer)
    }

    /// Reads the card's index. Returns how many more descriptors it is done with.
    ///
    /// # Errors
    /// The index is impossible, or a descriptor could not be published.
    #[inline]
    pub(crate) fn refresh(&mut self) -> Result<u32, Fault> {
        self.check()?;
        let consumer = self.pages.consumer(self.direction);
        let count = consumer.wrapping_sub(self.consumer);
        if count == 0 {
            return Ok(0);
        }
        if count > self.announced.wrapping_sub(self.consumer) {
            let Self { direction, announced, consumer: seen, .. } = *self;
            return self.fail(Fault::Consumer { direction, consumer, seen, announced });
        }
        if let Err(error) = self.publisher.retire(self.consumer, count) {
            return self.fail(error.into());
        }
        self.consumer = consumer;
        Ok(count)
    }

    /// Remembers a fault: the ring is not used any more.
    pub(crate) fn fail<T>(&mut self, fault: Fault) -> Result<T, Fault> {
        self.fault = Some(fault.clone());
        Err(fault)
    }

    /// Asks for an interrupt when the card's index passes `after`, which is the index last seen or a later one. The caller must then check
    /// what was done meanwhile.
    pub(crate) fn arm(&self, after: u32) {
        let mailbox = match self.direction {
            Direction::Tx => Mailbox::TxSeen,
            Direction::Rx => Mailbox::RxSeen,
        };
        // No need to wake the card: what a sleeping card has completed since the last check, the caller finds now.
        self.pages.post([(mailbox, after)], Wake::No);
    }
}

/// Puts descriptors into one ring.
pub(crate) trait Publish: Send {
    /// Puts descriptors into the slots of `first` and the indices after it.
    fn publish(&mut self, first: u32, batch: &[Descriptor]) -> Result<(), CallError>;

    /// The card is done with these descriptors. Called before their buffers are used.
    fn retire(&mut self, first: u32, count: u32) -> Result<(), CallError> {
        let _ = (first, count);
        Ok(())
    }

    /// Whether publishing is a call of the hypervisor, which costs as much for one descriptor as for [`BATCH`].
    fn is_call(&self) -> bool {
        false
    }

    /// Whether a buffer's pages must rest after they are retired: the hypervisor may still wait for the card to forget
    /// them.
    fn needs_rest(&self) -> bool {
        false
    }
}

/// The ring is written here, and the card can use the addresses at any time.
pub(crate) struct Direct {
    pub(crate) pages: Arc<Pages>,
    pub(crate) direction: Direction,
}

impl Publish for Direct {
    #[inline]
    fn publish(&mut self, first: u32, batch: &[Descriptor]) -> Result<(), CallError> {
        for (n, descriptor) in (0..).zip(batch) {
            self.pages.write(self.direction, first.wrapping_add(n), *descriptor);
        }
        Ok(())
    }
}

/// The hypervisor writes the ring.
pub(crate) struct Enqueue {
    pub(crate) calls: Box<dyn Hypercalls>,
    pub(crate) direction: Direction,
}

impl Publish for Enqueue {
    fn publish(&mut self, _: u32, batch: &[Descriptor]) -> Result<(), CallError> {
        self.calls.enqueue(self.direction, batch)
    }

    fn is_call(&self) -> bool {
        true
    }
}

/// The ring is written here, and the card can use an address only while the hypervisor maps it.
pub(crate) struct MapEach {
    ring: Direct,
    calls: Box<dyn Hypercalls>,
    /// The pages of each slot's buffer.
    mapped: Box<[Range<u64>]>,
}

impl MapEach {
    pub(crate) fn new(ring: Direct, calls: Box<dyn Hypercalls>) -> Self {
        Self { ring, calls, mapped: vec![0..0; ring::SLOTS as usize].into() }
    }
}

impl Publish for MapEach {
    fn publish(&mut self, first: u32, batch: &[Descriptor]) -> Result<(), CallError> {
        let mut runs = Runs::default();
        for (n, descriptor) in (0..).zip(batch) {
            // A buffer of this domain does not reach the end of the address space.
            let pages = address::pages(descriptor.addr, descriptor.len).unwrap_or(0..0);
            // A batch has no more descriptors than `runs` has places.
            runs.add(&pages);
            self.mapped[ring::slot(first.wrapping_add(n))] = pages;
        }
        if !runs.0.is_empty() {
            self.calls.map(self.ring.direction, &runs.0)?;
        }
        self.ring.publish(first, batch)
    }

    fn retire(&mut self, first: u32, count: u32) -> Result<(), CallError> {
        let mut runs = Runs::default();
        for n in 0..count {
            let pages = &self.mapped[ring::slot(first.wrapping_add(n))];
            if !runs.add(pages) {
                self.calls.unmap(&runs.0)?;
                runs = Runs::default();
                runs.add(pages);
            }
        }
        if runs.0.is_empty() { Ok(()) } else { self.calls.unmap(&runs.0) }
    }

    fn is_call(&self) -> bool {
        true
    }

    fn needs_rest(&self) -> bool {
        true
    }
}

/// Ranges of pages; adjacent ranges become one.
#[derive(Default)]
struct Runs(ArrayVec<Range<u64>, BATCH>);

impl Runs {
    /// Adds a range. Returns false if it does not fit.
    fn add(&mut self, pages: &Range<u64>) -> bool {
        match self.0.last_mut() {
            _ if pages.is_empty() => true,
            Some(last) if last.end == pages.start => {
                last.end = pages.end;
                true
            }
            _ => self.0.try_push(pages.clone()).is_ok(),
        }
    }
}
