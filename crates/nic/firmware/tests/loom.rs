//! The card's two wake-up protocols under loom: every interleaving (up to a bound on preemptions) and every reordering that the
//! memory model allows, of the whole card with a guest, and with a hypervisor.
//!
//! Shown: a mailbox that is written is read, though the card falls asleep at any moment, and it leads to the
//! descriptors that were written before it; every interrupt vector is taken, once, and none is overwritten before. loom
//! reports the deadlock when a side sleeps for ever. The control tests leave out a barrier or a check and must fail.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use cdna::message::{Assignment, Permissions, Protection};
use cdna::vectors::Vector;
use cdna::{
    ContextId, Descriptor, Direction, Enable, Flags, Mailbox, RxCompletion, Status, ring, vectors,
};
use contexts::{VectorConsumer, VectorRing};
use firmware::{Bus, BusFault, Card, Config, ContextPages, Metadata, Next, Sent, VectorPage, Wire};
use loom::sync::Notify;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use wire::ethernet::MacAddr;

const LEN: u16 = 60;

/// The words of a context that guest and card share. The sequence numbers stand for the descriptors; they are relaxed:
/// only the mailbox may order them.
struct Words {
    producer: AtomicU32,
    events: AtomicU32,
    asleep: AtomicU32,
    sequence: [AtomicU32; 2],
    /// What the card leaves out.
    has_barrier: bool,
    checks_again: bool,
}

impl Words {
    fn new(has_barrier: bool, checks_again: bool) -> Arc<Self> {
        let zero = || AtomicU32::new(0);
        // Slots of the last round.
        let sequence = [0, 1].map(|n| AtomicU32::new(u32::wrapping_sub(n, ring::SLOTS)));
        // The context was enabled.
        let events = AtomicU32::new(Mailbox::Enable.event().word());
        let (producer, asleep) = (zero(), zero());
        Arc::new(Self { producer, events, asleep, sequence, has_barrier, checks_again })
    }
}

#[derive(Clone)]
struct Pages {
    words: Arc<Words>,
    /// Set while the card falls asleep.
    is_falling_asleep: Cell<bool>,
}

impl ContextPages for Pages {
    fn events(&self) -> u32 {
        if self.is_falling_asleep.get() && !self.words.checks_again {
            return 0;
        }
        self.words.events.load(Ordering::Relaxed)
    }
    fn take_events(&self) -> u32 {
        self.words.events.swap(0, Ordering::SeqCst)
    }
    fn mailbox(&self, mailbox: Mailbox) -> u32 {
        match mailbox {
            Mailbox::TxProducer => self.words.producer.load(Ordering::Acquire),
            Mailbox::Enable => (Enable::TX | Enable::INTERRUPTS).0,
            _ => 0,
        }
    }
    fn descriptors(&self, _: Direction, first: u32, into: &mut [Descriptor]) {
        for (index, descriptor) in (first..).zip(into) {
            let seq = self.words.sequence[index as usize].load(Ordering::Relaxed);
            *descriptor = Descriptor { seq, ..Descriptor::buffer(0, 0, LEN, Flags::EOP) };
        }
    }
    fn complete(&self, _: u32, _: &[RxCompletion]) {}
    fn publish(&self, _: Direction, _: u32) {}
    fn set_asleep(&self, is_asleep: bool) {
        self.is_falling_asleep.set(is_asleep);
        self.words.asleep.store(is_asleep.into(), Ordering::SeqCst);
    }
    fn set_status(&self, _: Status) {}
    fn full_barrier(&self) {
        if self.words.has_barrier {
            fence(Ordering::SeqCst);
        }
    }
}

/// Slots of the ring of vectors: so few that it is full.
const RING: u32 = 1;

/// The page of vectors.
struct VectorWords {
    producer: AtomicU32,
    consumer: AtomicU32,
    asleep: AtomicU32,
    slots: [AtomicU32; RING as usize],
    /// What the two sides leave out.
    leaves_out: LeavesOut,
}

/// A part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LeavesOut {
    Nothing,
    CardsBarrier,
    HypervisorsBarrier,
    HypervisorsFinalCheck,
    /// The card takes the ring for empty.
    CardsCheckOfTheConsumer,
}

impl VectorWords {
    fn new(leaves_out: LeavesOut) -> Arc<Self> {
        let zero = || AtomicU32::new(0);
        let (producer, consumer, asleep, slots) = (zero(), zero(), zero(), [zero()]);
        Arc::new(Self { producer, consumer, asleep, slots, leaves_out })
    }

    fn slot(&self, index: u32) -> &AtomicU32 {
        &self.slots[index as usize % self.slots.len()]
    }
}

/// The card's side.
struct Vectors(Arc<VectorWords>);

impl VectorPage for Vectors {
    fn write(&self, index: u32, vector: &Vector) {
        self.0.slot(index).store(vector.0[0], Ordering::Relaxed);
    }
    fn publish(&self, producer: u32) {
        self.0.producer.store(producer, Ordering::Release);
    }
    fn consumer(&self) -> u32 {
        let (consumer, producer) = (&self.0.consumer, self.0.producer.load(Ordering::Relaxed));
        let consumer = match self.0.leaves_out {
            LeavesOut::CardsCheckOfTheConsumer => producer,
            _ => consumer.load(Ordering::Acquire),
        };
        // The card's ring is longer: it is full when this one is.
        if producer.wrapping_sub(consumer) < RING {
            producer
        } else {
            producer.wrapping_sub(vectors::SLOTS)
        }
    }
    fn is_hypervisor_asleep(&self) -> bool {
        if self.0.leaves_out != LeavesOut::CardsBarrier {
            fence(Ordering::SeqCst);
        }
        self.0.asleep.load(Ordering::Relaxed) != 0
    }
}

/// The hypervisor's side.
struct Ring {
    words: Arc<VectorWords>,
    /// What it saw before it fell asleep.
    seen: Cell<u32>,
    is_falling_asleep: Cell<bool>,
}

impl VectorRing for Ring {
    fn producer(&self) -> u32 {
        let checks = self.words.leaves_out != LeavesOut::HypervisorsFinalCheck;
        if checks || !self.is_falling_asleep.get() {
            self.seen.set(self.words.producer.load(Ordering::Acquire));
        }
        self.seen.get()
    }
    fn vector(&self, index: u32) -> Vector {
        let mut vector = Vector::EMPTY;
        vector.0[0] = self.words.slot(index).load(Ordering::Relaxed);
        vector
    }
    fn give_back(&self, consumer: u32) {
        self.words.consumer.store(consumer, Ordering::Release);
    }
    fn set_asleep(&self, is_asleep: bool) {
        self.is_falling_asleep.set(is_asleep);
        self.words.asleep.store(is_asleep.into(), Ordering::Relaxed);
    }
    fn full_barrier(&self) {
        if self.words.leaves_out != LeavesOut::HypervisorsBarrier {
            fence(Ordering::SeqCst);
        }
    }
}

struct NoMemory;

impl Bus for NoMemory {
    type Pages = Pages;
    type Vectors = Vectors;

    fn read(&mut self, _: ContextId, _: u64, dest: &mut [u8]) -> Result<(), BusFault> {
        dest.fill(0);
        Ok(())
    }
    fn write(&mut self, _: ContextId, _: u64, _: &[u8]) -> Result<(), BusFault> {
        Ok(())
    }
}

/// Counts frames.
#[derive(Default)]
struct Counter(u32);

impl Wire for Counter {
    fn send(&mut self, _: &[u8], _: &[u8], _: Metadata) -> Sent {
        self.0 += 1;
        Sent::Sent
    }
    fn receive(&mut self, _: &mut [u8]) -> Option<(usize, Metadata)> {
        None
    }
}

/// A card whose contexts from 1 on have these words.
fn card(contexts: &[Arc<Words>], vectors: &Arc<VectorWords>) -> Card<NoMemory, Counter> {
    let config = Config { contexts: contexts.len() + 1, ..Config::default() };
    let mut card = Card::new(config, NoMemory, Counter::default(), Vectors(vectors.clone()));
    for (number, words) in (1..).zip(contexts) {
        let assignment = Assignment {
            context: ContextId::new(number),
            generation: 1,
            mac: MacAddr([2, 0, 0, 0, 0, number]),
            permissions: Permissions::ANY_SOURCE,
            protection: Protection::Hypervisor,
            start: 0,
        };
        let pages = Pages { words: words.clone(), is_falling_asleep: Cell::new(false) };
        assert!(card.assign(assignment, pages).is_ok());
    }
    card
}

/// Writes descriptors and the mailbox, and rings if the card sleeps.
fn guest(words: &Words, total: u32, has_barrier: bool, doorbell: &Notify) {
    for n in 0..total {
        words.sequence[n as usize].store(n, Ordering::Relaxed);
        words.producer.store(n + 1, Ordering::Release);
        words.events.fetch_or(Mailbox::TxProducer.event().word(), Ordering::SeqCst);
        if has_barrier {
            fence(Ordering::SeqCst);
        }
        if words.asleep.load(Ordering::Relaxed) != 0 {
            doorbell.notify();
        }
    }
}

/// A guest sends frames to a card that sleeps whenever it can.
fn mailboxes(total: u32, guest_has_barrier: bool, card_has_barrier: bool, checks_again: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let words = Words::new(card_has_barrier, checks_again);
        let doorbell = Arc::new(Notify::new());
        let (theirs, bell) = (words.clone(), doorbell.clone());
        let other = thread::spawn(move || guest(&theirs, total, guest_has_barrier, &bell));
        let vectors = VectorWords::new(LeavesOut::Nothing);
        let mut card = card(&[words], &vectors);
        loop {
            let step = card.step(Duration::ZERO);
            assert_eq!(card.faults().count(), 0, "a descriptor was read before it was written");
            if card.wire().0 == total {
                break;
            }
            if step.next == Next::Event && card.fall_asleep() {
                doorbell.wait();
            }
        }
        other.join().unwrap();
    });
}

#[test]
fn no_mailbox_write_is_missed() {
    mailboxes(2, true, true, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_guests_barrier_a_mailbox_write_is_missed() {
    mailboxes(1, false, true, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_cards_barrier_a_mailbox_write_is_missed() {
    mailboxes(1, true, false, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_final_check_a_mailbox_write_is_missed() {
    mailboxes(1, true, true, false);
}

/// The daemon's loop, until each of `contexts` was interrupted.
fn hypervisor(ring: Ring, contexts: usize, interrupt: &Notify) {
    let mut vectors = VectorConsumer::of(ring);
    let mut interrupted = Vec::new();
    while interrupted.len() < contexts {
        let mut now = Vec::new();
        vectors.deliver(|context| now.push(context)).unwrap();
        if now.is_empty() && vectors.arm() {
            interrupt.wait();
            vectors.disarm();
        }
        for context in now {
            assert!(!interrupted.contains(&context), "interrupted twice");
            interrupted.push(context);
        }
    }
}

/// Two contexts of a card each send a frame. The hypervisor sleeps whenever it can. The ring is full after the first vector.
fn interrupts(leaves_out: LeavesOut) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let contexts = [0; 2].map(|_| Words::new(true, true));
        let vectors = VectorWords::new(leaves_out);
        let interrupt = Arc::new(Notify::new());
        let (seen, is_falling_asleep) = (Cell::new(0), Cell::new(false));
        let (words, bell) = (vectors.clone(), interrupt.clone());
        let other = thread::spawn(move || {
            let ring = Ring { words, seen, is_falling_asleep };
            hypervisor(ring, 2, &bell);
        });
        let mut card = card(&contexts, &vectors);
        let mut step = || {
            let step = card.step(Duration::ZERO);
            if step.interrupts {
                interrupt.notify();
            }
            step.next
        };
        for words in &contexts {
            // The guest, in the same thread.
            guest(words, 1, true, &Notify::new());
            step();
        }
        // While the ring is full, the card keeps the vector and tries again.
        while step() != Next::Event {
            thread::yield_now();
        }
        other.join().unwrap();
    });
}

#[test]
fn no_vector_is_missed_or_overwritten() {
    interrupts(LeavesOut::Nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_cards_barrier_a_vector_is_missed() {
    interrupts(LeavesOut::CardsBarrier);
}

// In the next two the hypervisor sleeps for ever before a full ring, and the card tries again for ever: loom gives up.
#[test]
#[should_panic(expected = "maximum number of branches")]
fn without_the_hypervisors_barrier_a_vector_is_missed() {
    interrupts(LeavesOut::HypervisorsBarrier);
}

#[test]
#[should_panic(expected = "maximum number of branches")]
fn without_the_hypervisors_final_check_a_vector_is_missed() {
    interrupts(LeavesOut::HypervisorsFinalCheck);
}

#[test]
#[should_panic]
fn without_the_cards_check_of_the_consumer_index_a_vector_is_overwritten() {
    interrupts(LeavesOut::CardsCheckOfTheConsumer);
}
