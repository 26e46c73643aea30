//! The descriptors of one ring that the card has fetched.

use cdna::ring::{self, SLOTS};
use cdna::{ContextId, Descriptor, Direction, Fault, Reason};

use crate::bus::ContextPages;

/// Most descriptors in the card: the longest chain of buffers that it fills or gathers.
pub(crate) const CACHE: u32 = 64;

/// How many descriptors before its use a buffer is prefetched: the other end wrote it, on another processor.
const PREFETCH: u32 = 4;

/// What was wrong in one ring, before it is known whose ring it is: a fault without its context and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) reason: Reason,
    /// The index of the descriptor, or the producer index.
    pub(crate) index: u32,
    /// The refused value.
    pub(crate) value: u64,
}

impl Violation {
    pub(crate) fn of(self, context: ContextId, direction: Direction) -> Fault {
        let Self { reason, index, value } = self;
        Fault { context, reason, direction, index, value }
    }
}

/// A ring's producer index, and the descriptors before it that were fetched and not yet used.
///
/// Descriptors are copied out of the ring once, many at a time, and their sequence numbers are checked then. The guest
/// cannot change them after that.
#[derive(Debug)]
pub(crate) struct Fetcher {
    direction: Direction,
    producer: u32,
    fetched: u32,
    /// The first descriptor that was not used.
    next: u32,
    /// The descriptor of index n is at n modulo [`CACHE`].
    cache: [Descriptor; CACHE as usize],
}

impl Fetcher {
    /// For a ring whose first descriptor has the index `start`.
    pub(crate) fn new(direction: Direction, start: u32) -> Self {
        let cache = [Descriptor::default(); CACHE as usize];
        Self { direction, producer: start, fetched: start, next: start, cache }
    }

    /// The producer index that the guest wrote to its mailbox.
    pub(crate) fn set_producer(&mut self, producer: u32) -> Result<(), Violation> {
        let violation = |reason| Violation { reason, index: producer, value: self.producer.into() };
        let Some(filled) = ring::filled(producer, self.next) else {
            let is_behind = ring::filled(self.producer, producer).is_some();
            let reason = if is_behind { Reason::ProducerBackwards } else { Reason::ProducerAhead };
            return Err(violation(reason));
        };
        if filled < self.producer.wrapping_sub(self.next) {
            return Err(violation(Reason::ProducerBackwards));
        }
        self.producer = producer;
        Ok(())
    }

    /// The index of the next descriptor.
    #[inline]
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Fetches descriptors if fewer than `wanted` are available and the ring has more. Returns how many are
    /// available now.
    #[inline]
    pub(crate) fn available(
        &mut self,
        wanted: u32,
        pages: &impl ContextPages,
    ) -> Result<u32, Violation> {
        let cached = self.fetched.wrapping_sub(self.next);
        if cached >= wanted || self.fetched == self.producer {
            return Ok(cached);
        }
        self.fetch(cached, pages)
    }

    /// Fetches as many descriptors as fit.
    fn fetch(&mut self, cached: u32, pages: &impl ContextPages) -> Result<u32, Violation> {
        let mut left = self.producer.wrapping_sub(self.fetched).min(CACHE - cached);
        let mut first = self.fetched;
        while left > 0 {
            let place = (first % CACHE) as usize;
            // The cache's size divides the ring's, so what follows in the cache follows in the ring.
            let count = left.min(CACHE - first % CACHE);
            let part = &mut self.cache[place..place + count as usize];
            pages.descriptors(self.direction, first, part);
            check_sequence(first, part)?;
            first = first.wrapping_add(count);
            left -= count;
        }
        self.fetched = first;
        Ok(first.wrapping_sub(self.next))
    }

    /// The descriptor `ahead` places after the next one, which must be [available](Self::available).
    #[inline]
    pub(crate) fn peek(&self, ahead: u32) -> &Descriptor {
        &self.cache[(self.next.wrapping_add(ahead) % CACHE) as usize]
    }

    /// The address of a descriptor that is used soon, if it was fetched.
    #[inline]
    pub(crate) fn upcoming(&self) -> Option<u64> {
        let is_fetched = self.fetched.wrapping_sub(self.next) > PREFETCH;
        is_fetched.then(|| self.peek(PREFETCH).addr)
    }

    /// Counts descriptors as used.
    #[inline]
    pub(crate) fn consume(&mut self, count: u32) {
        debug_assert!(count <= self.fetched.wrapping_sub(self.next));
        self.next = self.next.wrapping_add(count);
    }

    /// Whether the ring holds descriptors that were not used.
    #[inline]
    pub(crate) fn has_more(&self) -> bool {
        self.next != self.producer
    }
}

const _: () = assert!(SLOTS.is_multiple_of(CACHE));

/// A stale descriptor's number is a ring's length behind. A hypervisor may have given away the pages
/// that it names.
#[inline]
fn check_sequence(first: u32, descriptors: &[Descriptor]) -> Result<(), Violation> {
    // A wrong number is rare, so all are compared before the first wrong one is looked for.
    let wrong = |(index, descriptor): (u32, &Descriptor)| descriptor.seq ^ ring::sequence(index);
    let numbered = || indices(first).zip(descriptors);
    if numbered().map(wrong).fold(0, |all, bits| all | bits) == 0 {
        return Ok(());
    }
    let bad = numbered().find(|entry| wrong(*entry) != 0);
    let (index, value) = bad.map_or((first, 0), |(index, descriptor)| (index, descriptor.seq));
    Err(Violation { reason: Reason::Sequence, index, value: value.into() })
}

/// An index and those after it, which wrap.
fn indices(first: u32) -> impl Iterator<Item = u32> {
    (0..SLOTS).map(move |n| first.wrapping_add(n))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use cdna::{Flags, Mailbox, RxCompletion, Status};
    use proptest::prelude::*;

    use super::*;

    struct Ring(RefCell<[Descriptor; SLOTS as usize]>);

    impl Ring {
        fn starting_at(start: u32) -> Self {
            Self(RefCell::new(ring::initial(start).0))
        }

        fn put(&self, index: u32, descriptor: Descriptor) {
            self.0.borrow_mut()[ring::slot(index)] = descriptor;
        }
    }

    impl ContextPages for Ring {
        fn events(&self) -> u32 {
            0
        }
        fn take_events(&self) -> u32 {
            0
        }
        fn mailbox(&self, _: Mailbox) -> u32 {
            0
        }
        fn descriptors(&self, _: Direction, first: u32, into: &mut [Descriptor]) {
            into.copy_from_slice(&self.0.borrow()[ring::slot(first)..][..into.len()]);
        }
        fn complete(&self, _: u32, _: &[RxCompletion]) {}
        fn publish(&self, _: Direction, _: u32) {}
        fn set_asleep(&self, _: bool) {}
        fn set_status(&self, _: Status) {}
        fn full_barrier(&self) {}
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        /// The producer writes this many descriptors, if there is room, and moves its index.
        Produce(u32),
        /// The consumer asks for this many, and uses this many of those that it has.
        Consume(u32, u32),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0u32..300).prop_map(Step::Produce),
            (0u32..=CACHE, 0u32..=CACHE).prop_map(|(wanted, used)| Step::Consume(wanted, used)),
        ];
        prop::collection::vec(step, 0..200)
    }

    /// The start of a ring: anywhere, or near the wrap of the indices.
    fn starts() -> impl Strategy<Value = u32> {
        prop_oneof![any::<u32>(), (0u32..600).prop_map(u32::wrapping_neg)]
    }

    proptest! {
        #[test]
        fn descriptors_are_used_in_order_and_once(start in starts(), steps in steps()) {
            let pages = Ring::starting_at(start);
            let mut fetcher = Fetcher::new(Direction::Tx, start);
            let (mut naive, mut producer) = (VecDeque::new(), start);
            for step in steps {
                match step {
                    Step::Produce(count) => {
                        for _ in 0..count.min(SLOTS - u32::try_from(naive.len()).unwrap()) {
                            let address = u64::from(producer) << 7;
                            let descriptor = Descriptor::buffer(producer, address, 60, Flags::EOP);
                            pages.put(producer, descriptor);
                            naive.push_back(descriptor);
                            producer = producer.wrapping_add(1);
                        }
                        prop_assert_eq!(fetcher.set_producer(producer), Ok(()));
                    }
                    Step::Consume(wanted, used) => {
                        let available = fetcher.available(wanted, &pages).unwrap();
                        let all = u32::try_from(naive.len()).unwrap();
                        prop_assert!(available <= all && available >= wanted.min(all));
                        for ahead in 0..available {
                            prop_assert_eq!(fetcher.peek(ahead), &naive[ahead as usize]);
                        }
                        let used = used.min(available);
                        fetcher.consume(used);
                        naive.drain(..used as usize);
                    }
                }
                prop_assert_eq!(fetcher.has_more(), !naive.is_empty());
            }
        }

        #[test]
        fn no_index_leads_to_a_stale_descriptor(
            start in starts(),
            good in 0u32..600,
            ahead in 1u32..=256,
        ) {
            let pages = Ring::starting_at(start);
            let mut fetcher = Fetcher::new(Direction::Rx, start);
            let mut index = start;
            for _ in 0..good {
                pages.put(index, Descriptor::buffer(index, 0, 60, Flags::EOP));
                index = index.wrapping_add(1);
                fetcher.set_producer(index).unwrap();
                prop_assert_eq!(fetcher.available(1, &pages), Ok(1));
                fetcher.consume(1);
            }
            fetcher.set_producer(index.wrapping_add(ahead)).unwrap();
            let fault = fetcher.available(1, &pages).unwrap_err();
            prop_assert_eq!((fault.reason, fault.index), (Reason::Sequence, index));
            prop_assert_eq!(fault.value, u64::from(index.wrapping_sub(SLOTS)));
        }

        #[test]
        fn a_producer_moves_forward_and_by_a_ring_at_most(
            start in starts(),
            filled in 0u32..=256,
            used in 0u32..=256,
            producer in any::<u32>(),
            near in -600i32..600,
        ) {
            let pages = Ring::starting_at(start);
            let mut fetcher = Fetcher::new(Direction::Tx, start);
            for n in 0..filled {
                let index = start.wrapping_add(n);
                pages.put(index, Descriptor::buffer(index, 0, 60, Flags::EOP));
            }
            fetcher.set_producer(start.wrapping_add(filled)).unwrap();
            let used = fetcher.available(1, &pages).unwrap().min(used);
            fetcher.consume(used);
            for producer in [producer, start.wrapping_add_signed(near)] {
                let known = start.wrapping_add(filled);
                let moved = producer.wrapping_sub(known);
                let is_good = moved <= SLOTS - (filled - used);
                let result = fetcher.set_producer(producer);
                prop_assert_eq!(result.is_ok(), is_good, "{}", moved);
                if is_good {
                    break;
                }
                let backwards = known.wrapping_sub(producer) <= SLOTS;
                let reason =
                    if backwards { Reason::ProducerBackwards } else { Reason::ProducerAhead };
                prop_assert_eq!(result.unwrap_err().reason, reason);
            }
        }
    }

    #[test]
    fn a_gap_in_the_middle_of_a_batch_is_found() {
        let pages = Ring::starting_at(10);
        let mut fetcher = Fetcher::new(Direction::Tx, 10);
        for index in 10..50 {
            let skipped = u32::from(index >= 30);
            pages.put(index, Descriptor::buffer(index + skipped, 0, 60, Flags::EOP));
        }
        fetcher.set_producer(50).unwrap();
        let fault = Violation { reason: Reason::Sequence, index: 30, value: 31 };
        assert_eq!(fetcher.available(1, &pages), Err(fault));
    }
}
