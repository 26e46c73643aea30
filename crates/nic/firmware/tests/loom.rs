//! The card's two wake-up protocols under loom: every interleaving (up to a bound on preemptions) and every reordering that the
//! memory model allows, of the whole card with a guest, and with a hypervisor.
//!
//! Shown: a mailbox that is written is read, though the card falls asleep at any moment, and it leads to the
//! descriptors that were written before it; every interrupt vector is taken, once. loom reports
//! the deadlock when a side sleeps for ever. The control tests leave out a barrier or a second look and must fail.
//!
//! Run with `make loom`.
#![cfg(loom)]

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use cdna::message::{Assignment, Permissions, Protection};
use cdna::vectors::Vector;
use cdna::{ContextId, Descriptor, Direction, Enable, Flags, Mailbox, RxCompletion, Status, ring};
use firmware::{Bus, BusFault, Card, Config, ContextPages, Metadata, Next, Sent, VectorPage, Wire};
use loom::sync::Notify;
use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::thread;
use wire::ethernet::MacAddr;

const CONTEXT: ContextId = ContextId::new(1);
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
    looks_again: bool,
}

impl Words {
    fn new(has_barrier: bool, looks_again: bool) -> Arc<Self> {
        let zero = || AtomicU32::new(0);
        // Slots of the last round.
        let sequence = [0, 1].map(|n| AtomicU32::new(n - ring::SLOTS));
        // The context was enabled.
        let events = AtomicU32::new(Mailbox::Enable.event().word());
        let (producer, asleep) = (zero(), zero());
        Arc::new(Self { producer, events, asleep, sequence, has_barrier, looks_again })
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
        if self.is_falling_asleep.get() && !self.words.looks_again {
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

/// The page of vectors. As many slots as vectors, so that it is never full.
struct VectorWords {
    producer: AtomicU32,
    asleep: AtomicU32,
    slots: [AtomicU32; 2],
    has_barrier: bool,
}

impl VectorWords {
    fn new(has_barrier: bool) -> Arc<Self> {
        let zero = || AtomicU32::new(0);
        let (producer, asleep, slots) = (zero(), zero(), [zero(), zero()]);
        Arc::new(Self { producer, asleep, slots, has_barrier })
    }
}

struct Vectors(Arc<VectorWords>);

impl VectorPage for Vectors {
    fn write(&self, index: u32, vector: &Vector) {
        self.0.slots[index as usize].store(vector.0[0], Ordering::Relaxed);
    }
    fn publish(&self, producer: u32) {
        self.0.producer.store(producer, Ordering::Release);
    }
    fn consumer(&self) -> u32 {
        0
    }
    fn is_hypervisor_asleep(&self) -> bool {
        if self.0.has_barrier {
            fence(Ordering::SeqCst);
        }
        self.0.asleep.load(Ordering::Relaxed) != 0
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

fn card(words: &Arc<Words>, vectors: &Arc<VectorWords>) -> Card<NoMemory, Counter> {
    let config = Config { contexts: 2, ..Config::default() };
    let mut card = Card::new(config, NoMemory, Counter::default(), Vectors(vectors.clone()));
    let assignment = Assignment {
        context: CONTEXT,
        generation: 1,
        mac: MacAddr([2; 6]),
        permissions: Permissions::ANY_SOURCE,
        protection: Protection::Hypervisor,
        start: 0,
    };
    let pages = Pages { words: words.clone(), is_falling_asleep: Cell::new(false) };
    assert!(card.assign(assignment, pages).is_ok());
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
fn mailboxes(total: u32, guest_has_barrier: bool, card_has_barrier: bool, looks_again: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let words = Words::new(card_has_barrier, looks_again);
        let doorbell = Arc::new(Notify::new());
        let (theirs, bell) = (words.clone(), doorbell.clone());
        let other = thread::spawn(move || guest(&theirs, total, guest_has_barrier, &bell));
        let mut card = card(&words, &VectorWords::new(true));
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
fn without_the_second_look_a_mailbox_write_is_missed() {
    mailboxes(1, true, true, false);
}

/// Takes vectors until there were `total`, and sleeps in between.
fn hypervisor(words: &VectorWords, total: u32, looks_again: bool, interrupt: &Notify) {
    let mut consumer = 0;
    while consumer < total {
        while consumer != words.producer.load(Ordering::Acquire) {
            let vector = words.slots[consumer as usize].load(Ordering::Relaxed);
            assert_eq!(vector, 1 << CONTEXT.index(), "a vector was read before it was written");
            consumer += 1;
        }
        if consumer < total {
            words.asleep.store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !looks_again || consumer == words.producer.load(Ordering::Acquire) {
                interrupt.wait();
            }
            words.asleep.store(0, Ordering::Relaxed);
        }
    }
}

/// A card interrupts a hypervisor that sleeps whenever it can.
fn interrupts(total: u32, has_barrier: bool, looks_again: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let (words, vectors) = (Words::new(true, true), VectorWords::new(has_barrier));
        let interrupt = Arc::new(Notify::new());
        let (theirs, bell) = (vectors.clone(), interrupt.clone());
        let other = thread::spawn(move || hypervisor(&theirs, total, looks_again, &bell));
        let mut card = card(&words, &vectors);
        for n in 0..total {
            // The guest, in the same thread.
            guest(&words, n + 1, true, &Notify::new());
            if card.step(Duration::ZERO).interrupts {
                interrupt.notify();
            }
        }
        other.join().unwrap();
    });
}

#[test]
fn no_vector_is_missed() {
    interrupts(2, true, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_cards_barrier_a_vector_is_missed() {
    interrupts(1, false, true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_hypervisors_second_look_a_vector_is_missed() {
    interrupts(1, true, false);
}
