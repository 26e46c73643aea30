//! When the hypervisor is interrupted for a context, and when a guest must ring.

use std::time::Duration;

use crate::common::guest::{Guest, mac, usual};
use cdna::{ContextId, Direction, Enable, Mailbox, vectors};
use firmware::{Config, Next};
use proptest::prelude::*;

use crate::common::{Host, PEER, frame};

const GUEST: u8 = 33;

/// A guest that wants interrupts, with these mailboxes.
fn one(flags: Enable, mailboxes: &[(Mailbox, u32)]) -> (Host, Guest) {
    let mut host = Host::new(Config { contexts: 64, ..Config::default() });
    let mut guest = host.guest(GUEST);
    guest.enable(usual() | Enable::INTERRUPTS | flags);
    mailboxes.iter().for_each(|(mailbox, value)| guest.write(*mailbox, *value));
    guest.post(256, 2048);
    host.run();
    assert!(!host.is_interrupted(GUEST), "nothing has happened");
    (host, guest)
}

fn arrive(host: &mut Host, count: u32) {
    (0..count).for_each(|_| host.arrive(&frame(mac(GUEST), PEER, 1, 60)));
    host.step();
}

#[test]
fn without_coalescing_every_step_interrupts_once() {
    let (mut host, mut guest) = one(Enable::default(), &[]);
    for count in 1..20 {
        arrive(&mut host, count);
        assert!(host.is_interrupted(GUEST));
        assert_eq!(guest.received().len(), count as usize);
    }
    assert!(!host.is_interrupted(GUEST));
    guest.send(&frame(PEER, mac(GUEST), 1, 60));
    host.step();
    assert!(host.is_interrupted(GUEST), "a frame was sent");
    assert_eq!(host.card.statistics(ContextId::new(GUEST)).interrupts, 20);
    guest.enable(usual());
    arrive(&mut host, 1);
    assert!(!host.is_interrupted(GUEST), "not enabled");
    guest.enable(usual() | Enable::INTERRUPTS);
    host.step();
    assert!(host.is_interrupted(GUEST), "what came meanwhile");
}

#[test]
fn sent_and_received_frames_have_separate_limits() {
    let limits = [(Mailbox::TxFrames, 3), (Mailbox::RxFrames, 5)];
    let (mut host, mut guest) = one(Enable::default(), &limits);
    arrive(&mut host, 4);
    for _ in 0..2 {
        guest.send(&frame(PEER, mac(GUEST), 1, 60));
        host.step();
        assert!(!host.is_interrupted(GUEST));
    }
    guest.send(&frame(PEER, mac(GUEST), 1, 60));
    host.step();
    assert!(host.is_interrupted(GUEST), "the third sent frame");
    arrive(&mut host, 4);
    assert!(!host.is_interrupted(GUEST), "the interrupt was for received frames too");
    arrive(&mut host, 1);
    assert!(host.is_interrupted(GUEST));
}

#[test]
fn one_shot_interrupts_come_only_when_armed() {
    let (mut host, mut guest) = one(Enable::ONE_SHOT, &[]);
    arrive(&mut host, 1);
    assert!(host.is_interrupted(GUEST), "it begins armed");
    arrive(&mut host, 1);
    assert!(!host.is_interrupted(GUEST));
    // The guest takes both, and arms with the index that it has seen.
    guest.received();
    guest.write(Mailbox::RxSeen, guest.rx_consumer);
    host.step();
    assert!(!host.is_interrupted(GUEST));
    arrive(&mut host, 1);
    assert!(host.is_interrupted(GUEST));
    // A frame came after the guest polled and before it armed.
    arrive(&mut host, 1);
    guest.write(Mailbox::RxSeen, guest.rx_consumer);
    host.step();
    assert!(host.is_interrupted(GUEST));
    // Sent frames are reclaimed without an interrupt, as long as nobody asks for one.
    guest.received();
    guest.write(Mailbox::RxSeen, guest.rx_consumer);
    guest.send(&frame(PEER, mac(GUEST), 1, 60));
    host.step();
    assert!(!host.is_interrupted(GUEST));
    guest.write(Mailbox::TxSeen, guest.consumer(Direction::Tx) - 1);
    host.step();
    assert!(host.is_interrupted(GUEST));
}

/// The line is shared, so each frame is sent long after the one before it.
#[test]
fn a_guest_that_waits_for_room_is_interrupted_when_there_is_enough() {
    const WANTED: u32 = 50;
    let limits = [(Mailbox::TxFrames, 64), (Mailbox::TxMicros, 200)];
    let (mut host, mut guest) = one(Enable::ONE_SHOT, &limits);
    guest.write(Mailbox::TxSeen, guest.consumer(Direction::Tx).wrapping_add(WANTED - 1));
    let mut interrupts = Vec::new();
    for sent in 1..=2 * WANTED {
        guest.send(&frame(PEER, mac(GUEST), 1, 60));
        host.step();
        host.now += Duration::from_micros(100);
        host.step();
        assert!(!host.is_interrupted(GUEST), "100 µs after frame {sent}");
        host.now += Duration::from_micros(450);
        host.step();
        interrupts.extend(host.is_interrupted(GUEST).then_some(sent));
    }
    assert_eq!(interrupts, [WANTED]);
    // The index that the guest names is past already: it polled too early.
    guest.write(Mailbox::TxSeen, guest.consumer(Direction::Tx).wrapping_sub(WANTED));
    host.step();
    host.now += Duration::from_micros(200);
    host.step();
    assert!(host.is_interrupted(GUEST));
}

#[test]
fn a_full_ring_of_vectors_loses_no_context() {
    let (mut host, mut guest) = one(Enable::default(), &[]);
    let other = host.guest(7);
    other.enable(usual() | Enable::INTERRUPTS);
    for _ in 0..vectors::SLOTS {
        arrive(&mut host, 1);
    }
    guest.received();
    // The ring is full: three steps of two contexts become one vector.
    arrive(&mut host, 2);
    guest.send(&frame(PEER, mac(GUEST), 1, 60));
    host.step();
    let mut other = other;
    other.send(&frame(PEER, mac(7), 1, 60));
    assert_eq!(host.step().next, Next::At(host.now + Duration::from_micros(50)));
    for n in 0..vectors::SLOTS {
        let vector = host.vector().unwrap();
        assert!(vector.contexts().eq([ContextId::new(GUEST)]), "{n}");
        if n == 0 {
            assert_eq!(host.step().next, Next::Event);
        }
    }
    assert!(host.vector().unwrap().contexts().eq([7, GUEST].map(ContextId::new)));
    assert_eq!(host.vector(), None);
}

#[test]
fn only_a_hypervisor_that_sleeps_is_interrupted() {
    let (mut host, _guest) = one(Enable::default(), &[]);
    for is_asleep in [false, true, false] {
        host.set_hypervisor_asleep(is_asleep);
        host.arrive(&frame(mac(GUEST), PEER, 1, 60));
        assert_eq!(host.step().interrupts, is_asleep);
        assert!(!host.step().interrupts, "nothing happened");
    }
}

#[test]
fn a_card_that_falls_asleep_checks_the_events_again() {
    let (mut host, mut guest) = one(Enable::default(), &[]);
    assert!(host.card.fall_asleep() && guest.is_card_asleep());
    let late = host.guest(5);
    assert!(late.is_card_asleep(), "a context that is assigned meanwhile");
    host.step();
    assert!(!guest.is_card_asleep() && !late.is_card_asleep());
    guest.send(&frame(PEER, mac(GUEST), 1, 60));
    assert!(!host.card.fall_asleep() && !guest.is_card_asleep());
    host.step();
    assert_eq!(host.sent().len(), 1);
    assert!(host.card.fall_asleep());
}

#[test]
fn the_bus_sleeps_with_the_card() {
    let (mut host, guest) = one(Enable::default(), &[]);
    host.card.bus().is_busy = true;
    assert!(!host.card.fall_asleep() && !guest.is_card_asleep());
    host.card.bus().is_busy = false;
    assert!(host.card.fall_asleep() && host.card.bus().is_asleep);
    let served = host.card.bus().served;
    host.step();
    assert!(!host.card.bus().is_asleep);
    assert_eq!(host.card.bus().served, served + 1);
}

#[test]
fn the_card_comes_back_when_an_interrupt_is_due() {
    let (mut host, _guest) = one(Enable::default(), &[(Mailbox::RxMicros, 100)]);
    host.arrive(&frame(mac(GUEST), PEER, 1, 60));
    let due = host.now + Duration::from_micros(100);
    assert_eq!(host.run().next, Next::At(due));
    host.now += Duration::from_micros(60);
    host.arrive(&frame(mac(GUEST), PEER, 1, 60));
    assert_eq!(host.run().next, Next::At(due), "the first frame's time counts");
    assert!(!host.is_interrupted(GUEST));
    host.now = due;
    assert_eq!(host.run().next, Next::Event);
    assert!(host.is_interrupted(GUEST));
}

/// The default of the driver: a lone frame costs no wait.
#[test]
fn adaptive_interrupts_hold_back_frames_in_a_row_only() {
    let limits = [(Mailbox::RxFrames, 32), (Mailbox::RxMicros, 50)];
    let (mut host, mut guest) = one(Enable::ONE_SHOT | Enable::ADAPTIVE, &limits);
    let arm = |guest: &mut Guest| {
        let received = u32::try_from(guest.received().len()).unwrap();
        guest.post(received, 2048);
        guest.write(Mailbox::RxSeen, guest.rx_consumer);
    };
    for n in 0..10 {
        host.now += Duration::from_micros(50);
        arrive(&mut host, 1);
        assert!(host.is_interrupted(GUEST), "frame {n} after a pause");
        arm(&mut guest);
        host.step();
    }
    let last = host.now;
    host.now += Duration::from_micros(10);
    host.arrive(&frame(mac(GUEST), PEER, 1, 60));
    let due = last + Duration::from_micros(50);
    assert_eq!(host.run().next, Next::At(due), "after the last interrupt");
    assert!(!host.is_interrupted(GUEST));
    host.now = due;
    host.run();
    assert!(host.is_interrupted(GUEST));
    arm(&mut guest);
    host.step();
    arrive(&mut host, 31);
    assert!(!host.is_interrupted(GUEST));
    arrive(&mut host, 1);
    assert!(host.is_interrupted(GUEST), "the number is reached");
}

proptest! {
    /// No interrupt comes too early or too late, for any arrivals and limits.
    #[test]
    fn coalescing_is_exact(
        frames in 0u32..8,
        micros in 0u32..50,
        steps in prop::collection::vec((0u64..40, 0u32..4), 1..100),
    ) {
        let limits = [(Mailbox::RxFrames, frames), (Mailbox::RxMicros, micros)];
        let (mut host, mut guest) = one(Enable::default(), &limits);
        // When the frames came that no interrupt has announced.
        let mut waiting: Vec<Duration> = Vec::new();
        let mut next = Next::Event;
        for (wait, count) in steps {
            let end = host.now + Duration::from_micros(wait);
            while let Next::At(at) = next && at < end {
                host.now = at;
                next = host.run().next;
                prop_assert!(host.is_interrupted(GUEST), "the card came back for nothing");
                waiting.clear();
            }
            host.now = end;
            (0..count).for_each(|_| host.arrive(&frame(mac(GUEST), PEER, 1, 60)));
            waiting.extend((0..count).map(|_| host.now));
            next = host.run().next;
            let by_frames = frames > 0 && waiting.len() >= frames as usize;
            let limit = Duration::from_micros(micros.into());
            let by_time = micros > 0 && waiting.first().is_some_and(|at| *at + limit <= host.now);
            let at_once = frames == 0 && micros == 0 && !waiting.is_empty();
            let is_due = by_frames || by_time || at_once;
            prop_assert_eq!(host.is_interrupted(GUEST), is_due);
            if is_due {
                waiting.clear();
            }
            guest.received();
            guest.post(count, 2048);
            host.run();
        }
    }
}
