//! A guest's queue against a card that checks every descriptor.

use std::collections::BTreeSet;
use std::sync::mpsc;

use cdna::{Direction, Enable, Flags, Mailbox, Offload, Status};
use cdnafront::{CardQueue, Config, Fault, open};
use netdev::{Burst, Device, Metadata, Queue as _, Refused};
use offload::{Checksum, Gso, GsoKind};
use proptest::prelude::*;

use crate::model::{BASE, Card, PROTECTIONS, Protection, bytes, card};
use crate::{receive, send};

fn opened(protection: Protection, start: u32) -> (Card, CardQueue) {
    let (mut card, context) = card(protection, start);
    let (interface, queue) = open(context, &Config::default());
    card.interface = Some(interface);
    card.take_events();
    (card, queue)
}

#[test]
fn frames_go_both_ways_under_every_protection() {
    for protection in PROTECTIONS {
        let (mut card, mut queue) = opened(protection, u32::MAX - 3);
        for (n, len) in [14, 64, 1514, 4096, 4097, 65_535].into_iter().cycle().take(300).enumerate()
        {
            let frame = bytes(len, n);
            send(&mut queue, &frame, Metadata::default()).unwrap();
            queue.kick();
            let sent = card.send(usize::MAX);
            assert_eq!(sent.len(), 1, "{protection:?}");
            assert_eq!(sent[0].2, frame);
            queue.reclaim().unwrap();
            assert!(card.receive(&frame, Flags::CSUM_VALIDATED, 0));
            let (received, metadata) = receive(&mut queue).unwrap().unwrap();
            assert_eq!(received, frame);
            assert_eq!((metadata.checksum, metadata.gso), (Checksum::Validated, None));
            assert!(receive(&mut queue).unwrap().is_none());
            queue.give_back();
        }
    }
}

#[test]
fn offloads_are_said_on_both_sides() {
    let (mut card, mut queue) = opened(Protection::None, 0);
    let gso = Some(Gso { kind: GsoKind::TcpV6, size: 1428 });
    let metadata = Metadata { len: 0, checksum: Checksum::Partial, gso };
    send(&mut queue, &bytes(20_000, 1), metadata).unwrap();
    send(&mut queue, &bytes(100, 2), Metadata { gso: None, ..metadata }).unwrap();
    queue.kick();
    let sent = card.send(usize::MAX);
    let (flags, field, _) = &sent[0];
    assert!(flags.contains(Flags::GSO | Flags::CSUM_BLANK));
    let offload = Offload::from_field(*field).unwrap();
    assert_eq!((offload.kind, offload.size.get()), (wire::netif::GsoKind::TcpV6, 1428));
    assert_eq!(sent[1].0, Flags::CSUM_BLANK | Flags::EOP);
    let flags = Flags::GSO | Flags::GSO_V6 | Flags::CSUM_BLANK;
    assert!(card.receive(&bytes(20_000, 3), flags, 1428));
    let (_, metadata) = receive(&mut queue).unwrap().unwrap();
    assert_eq!((metadata.checksum, metadata.gso), (Checksum::Partial, gso));
}

#[test]
fn what_cannot_be_a_frame_is_refused() {
    let (mut card, mut queue) = opened(Protection::None, 0);
    let no_size = Some(Gso { kind: GsoKind::TcpV4, size: 0 });
    for metadata in [
        Metadata { len: 13, ..Metadata::default() },
        Metadata { len: 65_536, ..Metadata::default() },
        Metadata { len: 3000, gso: no_size, ..Metadata::default() },
    ] {
        assert_eq!(queue.submit(metadata), Err(Refused));
    }
    queue.kick();
    assert!(card.send(usize::MAX).is_empty());
}

#[test]
fn a_batch_is_one_mailbox_write_and_one_call_for_64_descriptors() {
    let (mut card, mut queue) = opened(Protection::Hypervisor, 0);
    assert_eq!(card.calls.lock().unwrap().enqueued, [vec![], vec![64; 4]]);
    let before = card.event_words;
    for n in 0..100 {
        send(&mut queue, &bytes(60, n), Metadata::default()).unwrap();
    }
    queue.kick();
    assert_eq!(card.send(usize::MAX).len(), 100);
    assert_eq!(card.event_words, before + 1);
    assert_eq!(card.calls.lock().unwrap().enqueued[0], [64, 36]);
    // Received one by one: buffers are posted by the batch.
    for n in 0..64 {
        assert!(card.receive(&bytes(60, n), Flags::NONE, 0));
        assert!(receive(&mut queue).unwrap().is_some());
        queue.give_back();
    }
    assert_eq!(card.calls.lock().unwrap().enqueued[1][4..], [64]);
}

/// Fills the TX ring. Returns the frames that fitted.
fn fill(queue: &mut CardQueue) -> usize {
    let fitted = (0..).take_while(|n| {
        queue.has_room() && send(queue, &bytes(60, *n), Metadata::default()).is_ok()
    });
    let fitted = fitted.count();
    queue.kick();
    fitted
}

#[test]
fn a_full_ring_is_refilled_by_the_call_and_sleeps_until_then() {
    for protection in [Protection::Hypervisor, Protection::MapEach] {
        let (mut card, mut queue) = opened(protection, u32::MAX - 20);
        let burst = queue.burst();
        assert_eq!((burst.frames, burst.bytes / 1514), (64, 64), "a call of full-sized frames");
        let fitted = fill(&mut queue);
        assert!(fitted > 200);
        let calls = |card: &Card| {
            let calls = card.calls.lock().unwrap();
            calls.enqueued[0].len() + calls.map_calls.len() + calls.unmap_calls.len()
        };
        let before = calls(&card);
        // The card sends one frame at a time, and the guest checks for room after each.
        let mut sent = 0;
        while !queue.has_room() {
            assert_eq!(calls(&card), before);
            assert!(!queue.arm(true).unwrap(), "{protection:?}: it would not sleep");
            card.take_events();
            let interrupts = card.interrupts;
            sent += card.send(1).len();
            let is_enough = sent == fitted / 4;
            assert_eq!(card.interrupts - interrupts, u32::from(is_enough), "after {sent} frames");
            queue.reclaim().unwrap();
        }
        assert_eq!(sent, fitted / 4, "a quarter of those in the ring");
        let _ = fill(&mut queue);
        assert!(calls(&card) - before <= 2, "one for the frames, one to unmap those before");
    }
}

#[test]
fn a_ring_without_calls_is_refilled_at_once() {
    let (mut card, mut queue) = opened(Protection::None, 0);
    assert_eq!(queue.burst(), Burst::SHORT);
    fill(&mut queue);
    card.send(1);
    assert!(!queue.arm(true).unwrap(), "a guest that waits for room waits for a quarter");
    queue.reclaim().unwrap();
    assert!(queue.has_room());
    for (received, posted) in [(31, 256), (32, 256 + 32)] {
        while card.consumer(Direction::Rx) < received {
            assert!(card.receive(&bytes(60, 0), Flags::NONE, 0));
            receive(&mut queue).unwrap().unwrap();
            queue.give_back();
        }
        card.take_events();
        assert_eq!(card.mailbox(Mailbox::RxProducer), posted);
    }
}

#[test]
fn pages_are_mapped_in_runs_and_only_while_the_card_uses_them() {
    let (mut card, mut queue) = opened(Protection::MapEach, 0);
    for n in 0..160 {
        send(&mut queue, &bytes(1514, n), Metadata::default()).unwrap();
        if n % 40 == 39 {
            queue.kick();
        }
    }
    assert_eq!(card.calls.lock().unwrap().mapped.each_ref().map(BTreeSet::len), [160, 256]);
    assert_eq!(card.send(usize::MAX).len(), 160);
    queue.reclaim().unwrap();
    for n in 0..32 {
        assert!(card.receive(&bytes(1514, n), Flags::NONE, 0));
    }
    assert!(receive(&mut queue).unwrap().is_some());
    let calls = card.calls.lock().unwrap();
    assert_eq!(calls.mapped.each_ref().map(BTreeSet::len), [0, 224]);
    assert_eq!(calls.map_calls, [1; 4 + 4], "four fill the RX ring");
    assert_eq!(calls.unmap_calls, [1; 2]);
}

#[test]
fn a_sleeping_card_is_woken_for_frames_and_not_for_arming() {
    let (card, mut queue) = opened(Protection::None, 0);
    let flags = Enable::TX | Enable::RX | Enable::ONE_SHOT | Enable::INTERRUPTS;
    assert!(card.is_enabled(flags) && !card.is_enabled(Enable::PROMISCUOUS));
    assert_eq!(card.mailbox(Mailbox::RxProducer), 256);
    assert!(!card.was_rung(), "it was awake");
    card.set_asleep(true);
    assert!(!queue.arm(true).unwrap());
    assert!(!card.was_rung());
    queue.kick();
    assert!(!card.was_rung(), "nothing new");
    send(&mut queue, &bytes(60, 0), Metadata::default()).unwrap();
    queue.kick();
    assert!(card.was_rung());
    card.set_asleep(false);
    send(&mut queue, &bytes(60, 0), Metadata::default()).unwrap();
    queue.kick();
    assert!(!card.was_rung());
}

#[test]
fn one_interrupt_per_arming() {
    let (mut card, mut queue) = opened(Protection::None, 7);
    card.receive(&bytes(60, 0), Flags::NONE, 0);
    card.receive(&bytes(60, 1), Flags::NONE, 0);
    assert_eq!(card.interrupts, 1);
    assert!(queue.arm(false).unwrap(), "there are frames");
    while receive(&mut queue).unwrap().is_some() {}
    assert!(!queue.arm(false).unwrap());
    card.take_events();
    assert_eq!(card.interrupts, 1, "all were seen");
    card.receive(&bytes(60, 2), Flags::NONE, 0);
    assert_eq!(card.interrupts, 2);
    assert_eq!(card.mailbox(Mailbox::RxSeen), 9);
}

#[test]
fn the_interface_follows_the_status() {
    let (card, context) = card(Protection::None, 0);
    let (interface, _queue) = open(context, &Config::default());
    assert!(interface.is_open());
    for status in [Status::Faulted, Status::Revoked, Status::Down] {
        card.set_status(status);
        assert!(!interface.is_open());
    }
    Box::new(interface).close(std::time::Duration::ZERO);
    let mut card = card;
    card.take_events();
    assert_eq!(card.mailbox(Mailbox::Enable), 0);
}

#[test]
fn an_interface_is_given_back_once_closed_or_not() {
    for is_closed in [true, false] {
        let (mut card, mut context) = card(Protection::None, 0);
        let (given, back) = mpsc::channel();
        context.release = Box::new(move |_| given.send(()).unwrap());
        let (interface, _queue) = open(context, &Config::default());
        card.take_events();
        assert!(back.try_recv().is_err());
        if is_closed {
            Box::new(interface).close(std::time::Duration::ZERO);
        } else {
            drop(interface);
        }
        card.take_events();
        assert_eq!(card.mailbox(Mailbox::Enable), 0);
        assert_eq!(back.iter().count(), 1);
    }
}

#[test]
fn a_lying_card_is_a_fault() {
    type Lie = fn(&mut Card);
    let lies: [(Lie, &str); 8] = [
        (|card| card.set_consumer(Direction::Tx, 129), "Tx consumer 129 is outside 0 to 128"),
        (|card| card.set_consumer(Direction::Tx, u32::MAX), "Tx consumer 4294967295"),
        (|card| card.set_consumer(Direction::Rx, 257), "Rx consumer 257 is outside 0 to 256"),
        (|card| card.set_consumer(Direction::Rx, u32::MAX), "Rx consumer 4294967295"),
        (
            |card| {
                card.write_completion(0, 0, Flags::EOP, 0);
                card.set_consumer(Direction::Rx, 1);
            },
            "0 bytes in buffer 0",
        ),
        (
            |card| {
                card.write_completion(0, 4097, Flags::EOP, 0);
                card.set_consumer(Direction::Rx, 1);
            },
            "4097 bytes in buffer 0",
        ),
        (
            |card| {
                (0..200).for_each(|n| card.write_completion(n, 4096, Flags::NONE, 0));
                card.set_consumer(Direction::Rx, 200);
            },
            "the frame that starts in buffer 0 has no end",
        ),
        (
            |card| {
                card.write_completion(0, 4000, Flags::EOP | Flags::GSO, 0);
                card.set_consumer(Direction::Rx, 1);
            },
            "segments of 0 bytes",
        ),
    ];
    for (lie, fault) in lies {
        let (mut card, mut queue) = opened(Protection::None, 0);
        for n in 0..128 {
            send(&mut queue, &bytes(60, n), Metadata::default()).unwrap();
        }
        queue.kick();
        lie(&mut card);
        let found = queue.reclaim().err().or_else(|| receive(&mut queue).err()).unwrap();
        assert!(found.to_string().contains(fault), "{found}");
    }
}

#[test]
fn a_call_that_is_refused_is_a_fault() {
    for protection in [Protection::Hypervisor, Protection::MapEach] {
        let (mut card, mut queue) = opened(protection, 0);
        card.calls.lock().unwrap().refuses = true;
        send(&mut queue, &bytes(60, 0), Metadata::default()).unwrap();
        queue.kick();
        assert!(matches!(queue.reclaim(), Err(Fault::Call(_))));
        card.take_events();
        assert_eq!(card.available(Direction::Tx), 0, "the card does not know of it");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Send(usize),
    Kick,
    CardSends(usize),
    Reclaim,
    CardReceives(usize),
    Receive(usize),
    GiveBack,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let len = prop_oneof![4 => 14usize..2000, 1 => 14usize..=65_535];
    let step = prop_oneof![
        6 => len.clone().prop_map(Step::Send),
        2 => Just(Step::Kick),
        2 => (0usize..100).prop_map(Step::CardSends),
        2 => Just(Step::Reclaim),
        6 => len.prop_map(Step::CardReceives),
        2 => (0usize..100).prop_map(Step::Receive),
        2 => Just(Step::GiveBack),
    ];
    prop::collection::vec(step, 0..600)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    /// Rings wrap, completions are partial, and every frame arrives once, in order and intact.
    #[test]
    fn every_frame_arrives_once(start: u32, which in 0usize..3, steps in steps()) {
        let (mut card, mut queue) = opened(PROTECTIONS[which], start);
        let (mut sent, mut received) = (Vec::new(), Vec::new());
        let (mut outgoing, mut incoming) = (0, 0);
        for step in steps {
            match step {
                Step::Send(len) => {
                    let has_room = queue.has_room();
                    let result = send(&mut queue, &bytes(len, outgoing), Metadata::default());
                    prop_assert!(result.is_ok() || !has_room);
                    if result.is_ok() {
                        sent.push(len);
                        outgoing += 1;
                    }
                }
                Step::Kick => queue.kick(),
                Step::CardSends(most) => {
                    for (_, _, frame) in card.send(most) {
                        let seed = outgoing - sent.len();
                        prop_assert_eq!(frame, bytes(sent.remove(0), seed));
                    }
                }
                Step::Reclaim => queue.reclaim().unwrap(),
                Step::CardReceives(len) => {
                    if card.receive(&bytes(len, incoming), Flags::NONE, 0) {
                        received.push(len);
                        incoming += 1;
                    }
                }
                Step::Receive(most) => {
                    for _ in 0..most {
                        let Some((frame, _)) = receive(&mut queue).unwrap() else {
                            prop_assert!(received.is_empty());
                            break;
                        };
                        let seed = incoming - received.len();
                        prop_assert_eq!(frame, bytes(received.remove(0), seed));
                    }
                }
                Step::GiveBack => queue.give_back(),
            }
        }
        // After both sides have caught up, the longest frame passes.
        queue.kick();
        card.send(usize::MAX);
        queue.reclaim().unwrap();
        prop_assert!(queue.has_room());
        while receive(&mut queue).unwrap().is_some() {}
        queue.give_back();
        prop_assert!(card.receive(&bytes(65_535, 0), Flags::NONE, 0));
        let mut addresses = queue.buffers().map(|buffer| BASE + buffer.offset as u64);
        prop_assert!(addresses.all(|address| address.is_multiple_of(4096)));
    }
}
