//! The ring of interrupt vectors: which contexts to interrupt.

use std::ops::Deref;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use cdna::ContextId;
use cdna::vectors::{ASLEEP, CONSUMER, PAGE_LEN, PRODUCER, SLOTS, Vector, offset};
use shm::{OutOfBounds, Region};

/// The card's producer index is impossible. No vector was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the card's vector index {producer} is more than the ring's length after {consumer}")]
pub struct BadVectors {
    /// The card's index.
    pub producer: u32,
    /// Ours.
    pub consumer: u32,
}

/// The hypervisor's access to the page of vectors.
pub trait VectorRing {
    /// The card's index. Vectors before it were written before (acquire).
    fn producer(&self) -> u32;
    /// The vector of an index.
    fn vector(&self, index: u32) -> Vector;
    /// Gives the slots before `consumer` back to the card, after they were read (release).
    fn give_back(&self, consumer: u32);
    /// Writes the sleep word.
    fn set_asleep(&self, is_asleep: bool);
    /// Orders what was written before what is read after it.
    fn full_barrier(&self);
}

/// Pages that are long enough: [`VectorConsumer::new`] has checked it.
impl<R: Deref<Target = Region>> VectorRing for R {
    fn producer(&self) -> u32 {
        word(self, PRODUCER).load(Ordering::Acquire)
    }

    fn vector(&self, index: u32) -> Vector {
        (**self).read(offset(index)).unwrap_or_default()
    }

    fn give_back(&self, consumer: u32) {
        word(self, CONSUMER).store(consumer, Ordering::Release);
    }

    fn set_asleep(&self, is_asleep: bool) {
        word(self, ASLEEP).store(is_asleep.into(), Ordering::Relaxed);
    }

    fn full_barrier(&self) {
        fence(Ordering::SeqCst);
    }
}

#[expect(clippy::expect_used, reason = "VectorConsumer::new() checked that the page is mapped")]
fn word(page: &Region, at: usize) -> &AtomicU32 {
    page.atomic_u32(at).expect("page checked at creation")
}

/// Takes vectors off the ring.
#[derive(Debug)]
pub struct VectorConsumer<R> {
    ring: R,
    consumer: u32,
    taken: u64,
}

impl<R: Deref<Target = Region>> VectorConsumer<R> {
    /// The hypervisor's side of a page that is zero.
    pub fn new(page: R) -> Result<Self, OutOfBounds> {
        // Checked once here, so that no access below can fail.
        match page.len() {
            PAGE_LEN.. => Ok(Self::of(page)),
            size => Err(OutOfBounds { offset: 0, len: PAGE_LEN, size }),
        }
    }
}

impl<R: VectorRing> VectorConsumer<R> {
    /// The hypervisor's side of a ring whose indices are 0.
    pub fn of(ring: R) -> Self {
        Self { ring, consumer: 0, taken: 0 }
    }

    /// Vectors taken so far. Vectors that came together took one interrupt.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Takes all pending vectors as one set, and gives their places back to the card.
    ///
    /// # Errors
    /// The card's index is impossible.
    pub fn take(&mut self) -> Result<Vector, BadVectors> {
        let (mut set, consumer) = (Vector::EMPTY, self.consumer);
        let producer = self.ring.producer();
        let pending = producer.wrapping_sub(consumer);
        if pending > SLOTS {
            return Err(BadVectors { producer, consumer });
        }
        for n in 0..pending {
            set.merge(&self.ring.vector(consumer.wrapping_add(n)));
        }
        if pending > 0 {
            self.consumer = producer;
            self.taken += u64::from(pending);
            self.ring.give_back(producer);
        }
        Ok(set)
    }

    /// Takes all pending vectors and has each context in them interrupted once. Returns how many.
    pub fn deliver(&mut self, interrupt: impl FnMut(ContextId)) -> Result<usize, BadVectors> {
        let set = self.take()?;
        let mut interrupt = interrupt;
        Ok(set.contexts().inspect(|context| interrupt(*context)).count())
    }

    /// Asks for an interrupt with the next vector. Returns false, and does not ask, if there is one already.
    pub fn arm(&mut self) -> bool {
        self.ring.set_asleep(true);
        // Either the card sees the sleep word, or its index has moved before and is read now.
        self.ring.full_barrier();
        let quiet = self.ring.producer() == self.consumer;
        if !quiet {
            self.disarm();
        }
        quiet
    }

    /// No interrupt is needed: the ring is checked.
    pub fn disarm(&mut self) {
        self.ring.set_asleep(false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// What the card does with the page.
    struct Card {
        page: Arc<Region>,
        producer: u32,
    }

    impl Card {
        fn write(&mut self, contexts: &[u8]) {
            let mut vector = Vector::EMPTY;
            contexts.iter().for_each(|context| vector.insert(ContextId::new(*context)));
            self.page.write(offset(self.producer), vector).unwrap();
            self.producer = self.producer.wrapping_add(1);
            self.page.write(PRODUCER, self.producer).unwrap();
        }
    }

    fn pair() -> (Card, VectorConsumer<Arc<Region>>) {
        let page = Arc::new(Region::anonymous(PAGE_LEN).unwrap());
        (Card { page: page.clone(), producer: 0 }, VectorConsumer::new(page).unwrap())
    }

    #[test]
    fn all_pending_vectors_interrupt_each_context_once() {
        let (mut card, mut consumer) = pair();
        card.write(&[3, 255]);
        card.write(&[3, 0]);
        let mut seen = Vec::new();
        assert_eq!(consumer.deliver(|context| seen.push(context.number())), Ok(3));
        assert_eq!(seen, [0, 3, 255]);
        assert_eq!(consumer.deliver(|_| panic!("nothing new")), Ok(0));
        assert_eq!(consumer.taken(), 2);
    }

    #[test]
    fn a_full_ring_is_taken_and_given_back_again_and_again() {
        let (mut card, mut consumer) = pair();
        for round in 0..5u8 {
            (0..SLOTS).for_each(|n| card.write(&[round, (100 + n).to_le_bytes()[0]]));
            assert_eq!(consumer.deliver(|_| {}), Ok(1 + SLOTS as usize));
            assert_eq!(card.page.read(CONSUMER), Ok(card.producer));
        }
    }

    #[test]
    fn an_impossible_index_takes_nothing() {
        let (card, mut consumer) = pair();
        for producer in [SLOTS + 1, u32::MAX] {
            card.page.write(PRODUCER, producer).unwrap();
            assert_eq!(consumer.take(), Err(BadVectors { producer, consumer: 0 }));
        }
    }

    #[test]
    fn a_vector_that_came_before_arming_is_not_slept_on() {
        let (mut card, mut consumer) = pair();
        assert!(consumer.arm());
        assert_eq!(card.page.read(ASLEEP), Ok(1u32));
        consumer.disarm();
        card.write(&[1]);
        assert!(!consumer.arm());
        assert_eq!(card.page.read(ASLEEP), Ok(0u32));
        consumer.take().unwrap();
        assert!(consumer.arm());
    }
}
