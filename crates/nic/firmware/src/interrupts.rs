//! The vectors of the card. Interrupt vectors: which contexts were updated since the hypervisor was last interrupted.
//! Event vectors, on two levels: which contexts have events, and which of their mailboxes were written.
//!
//! Both levels of events are the card's own. A guest can only set bits in the event word of its context, which the scan
//! takes all at once.

use cdna::vectors::{SLOTS, Vector};
use cdna::{ContextId, Events};

use crate::bus::{ContextPages, VectorPage};

/// The card's end of the ring of vectors.
#[derive(Debug)]
pub(crate) struct Interrupts<V> {
    page: V,
    producer: u32,
    /// Contexts for the next vector.
    pending: Vector,
}

impl<V: VectorPage> Interrupts<V> {
    /// Starts an empty ring.
    pub(crate) fn new(page: V) -> Self {
        let producer = page.consumer();
        page.publish(producer);
        Self { page, producer, pending: Vector::EMPTY }
    }

    /// Puts a context into the next vector.
    #[inline]
    pub(crate) fn add(&mut self, context: ContextId) {
        self.pending.insert(context);
    }

    /// Leaves a context out of the next vector.
    pub(crate) fn remove(&mut self, context: ContextId) {
        self.pending.remove(context);
    }

    /// Whether there is a vector to be written.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Writes the next vector, unless it is empty or the ring is full; then the vector keeps
    /// collecting. Returns whether the hypervisor must be interrupted.
    #[must_use = "a hypervisor that sleeps and gets no interrupt sleeps for ever"]
    pub(crate) fn flush(&mut self) -> bool {
        // A vector that was not read yet must not be overwritten. An impossible consumer index is a full ring too.
        if self.pending.is_empty() || self.producer.wrapping_sub(self.page.consumer()) >= SLOTS {
            return false;
        }
        self.page.write(self.producer, &self.pending);
        self.producer = self.producer.wrapping_add(1);
        self.page.publish(self.producer);
        self.pending = Vector::EMPTY;
        self.page.is_hypervisor_asleep()
    }
}

/// Events that were taken from the event words and not handled yet.
#[derive(Debug)]
pub(crate) struct EventVectors {
    /// The first level.
    contexts: Vector,
    /// The second level.
    mailboxes: [Events; cdna::context::CONTEXTS_MAX],
}

impl EventVectors {
    pub(crate) fn new() -> Self {
        let mailboxes = [Events::NONE; cdna::context::CONTEXTS_MAX];
        Self { contexts: Vector::EMPTY, mailboxes }
    }

    /// Takes a context's events. Its event word is only written if it is not 0.
    #[inline]
    pub(crate) fn scan(&mut self, context: ContextId, pages: &impl ContextPages) {
        if pages.events() != 0 {
            let events = Events::from_word(pages.take_events());
            if !events.is_empty() {
                self.contexts.insert(context);
                self.mailboxes[context.index()] = events;
            }
        }
    }

    /// Removes all events of a context.
    pub(crate) fn clear(&mut self, context: ContextId) {
        self.contexts.remove(context);
        self.mailboxes[context.index()] = Events::NONE;
    }

    #[inline]
    pub(crate) fn take(&mut self) -> Option<(ContextId, Events)> {
        let context = self.contexts.contexts().next()?;
        self.contexts.remove(context);
        Some((context, std::mem::take(&mut self.mailboxes[context.index()])))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Page {
        slots: RefCell<Vec<Option<Vector>>>,
        indices: RefCell<[u32; 2]>,
        is_asleep: RefCell<bool>,
    }

    impl Page {
        fn starting_at(index: u32) -> Self {
            let slots = RefCell::new(vec![None; SLOTS as usize]);
            Self { slots, indices: RefCell::new([0, index]), ..Self::default() }
        }

        fn take(&self) -> Option<Vector> {
            let [producer, consumer] = *self.indices.borrow();
            (producer != consumer).then(|| {
                self.indices.borrow_mut()[1] = consumer.wrapping_add(1);
                let slot = &mut self.slots.borrow_mut()[(consumer % SLOTS) as usize];
                slot.take().expect("written before the producer index")
            })
        }
    }

    impl VectorPage for &Page {
        fn write(&self, index: u32, vector: &Vector) {
            let slot = &mut self.slots.borrow_mut()[(index % SLOTS) as usize];
            assert!(slot.replace(*vector).is_none(), "a vector was overwritten before it was read");
        }
        fn publish(&self, producer: u32) {
            self.indices.borrow_mut()[0] = producer;
        }
        fn consumer(&self) -> u32 {
            self.indices.borrow()[1]
        }
        fn is_hypervisor_asleep(&self) -> bool {
            *self.is_asleep.borrow()
        }
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add(u8),
        Flush,
        Take,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            1 => any::<u8>().prop_map(Step::Add),
            4 => any::<u8>().prop_map(|context| Step::Add(context % 4)),
            4 => Just(Step::Flush),
            1 => Just(Step::Take),
        ];
        prop::collection::vec(step, 0..1000)
    }

    proptest! {
        #[test]
        fn every_context_is_announced_and_no_vector_is_overwritten(start: u32, steps in steps()) {
            let page = Page::starting_at(start);
            let mut interrupts = Interrupts::new(&page);
            // What was added since the last vector, and the vectors in the ring.
            let (mut pending, mut ring) = (Vector::EMPTY, VecDeque::new());
            for step in steps {
                match step {
                    Step::Add(context) => {
                        interrupts.add(ContextId::new(context));
                        pending.insert(ContextId::new(context));
                    }
                    Step::Flush => {
                        prop_assert!(!interrupts.flush());
                        if !pending.is_empty() && ring.len() < SLOTS as usize {
                            ring.push_back(std::mem::take(&mut pending));
                        }
                        prop_assert_eq!(interrupts.is_pending(), !pending.is_empty());
                    }
                    Step::Take => prop_assert_eq!(page.take(), ring.pop_front()),
                }
            }
        }
    }

    #[test]
    fn only_a_sleeping_hypervisor_is_interrupted() {
        let page = Page::starting_at(0);
        let mut interrupts = Interrupts::new(&page);
        *page.is_asleep.borrow_mut() = true;
        assert!(!interrupts.flush(), "nothing to say");
        interrupts.add(ContextId::new(9));
        assert!(interrupts.flush());
        interrupts.add(ContextId::new(9));
        interrupts.remove(ContextId::new(9));
        assert!(!interrupts.flush());
    }
}
