//! Frames between guests, and between guests and the wire.

use crate::common::guest::{Guest, mac, usual};
use cdna::message::Permissions;
use cdna::{ContextId, Direction, DropReason, Enable, Flags, Mailbox, Status};
use firmware::{Config, Metadata, Next};
use offload::{Checksum, Features, Gso};
use wire::checksum::{Sum, pseudo_v4};
use wire::ethernet::MacAddr;
use wire::netif::GsoKind;

use crate::common::{Host, PEER, frame};

/// The addresses of the two guests.
const A: MacAddr = mac(1);
const B: MacAddr = mac(2);

/// Two guests that receive, and a card.
fn two() -> (Host, Guest, Guest) {
    let mut host = Host::new(Config { tso: true, ..Config::default() });
    let (mut a, mut b) = (host.guest(1), host.guest(2));
    for guest in [&mut a, &mut b] {
        guest.enable(usual());
        guest.post(64, 2048);
    }
    (host, a, b)
}

fn drops(host: &Host, context: u8, reason: DropReason) -> u64 {
    host.card.statistics(ContextId::new(context)).drops[reason as usize]
}

/// A TCP segment over IPv4 with the pseudo-header's sum in its checksum field.
fn tcp(destination: MacAddr, source: MacAddr, payload: usize) -> Vec<u8> {
    let mut frame = frame(destination, source, 0, 14);
    (frame[12], frame[13]) = (8, 0);
    let total = u16::try_from(40 + payload).unwrap();
    frame.extend([0x45, 0]);
    frame.extend(total.to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend([0, 80, 0, 81, 0, 0, 0, 7, 0, 0, 0, 0, 0x50, 0x18, 1, 0, 0, 0, 0, 0]);
    frame.extend((0..251).cycle().take(payload));
    let mut header = Sum::default();
    header.add_bytes(&frame[14..34]);
    frame[24..26].copy_from_slice(&header.finish().to_be_bytes());
    frame
}

/// Whether the TCP checksum of a frame is complete and right.
fn is_right(frame: &[u8]) -> bool {
    let len = u16::try_from(frame.len() - 34).unwrap();
    let mut sum = pseudo_v4([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, len);
    sum.add_bytes(&frame[34..]);
    sum.finish() == 0
}

#[test]
fn a_guest_reaches_the_wire_and_the_wire_reaches_it() {
    let (mut host, mut a, mut b) = two();
    let (out, back) = (frame(PEER, A, 1, 60), frame(A, PEER, 2, 1514));
    a.send(&out);
    host.arrive(&back);
    host.run();
    assert_eq!(host.sent(), [out]);
    assert_eq!(a.received(), [back]);
    assert!(b.received().is_empty());
    assert_eq!(a.consumer(Direction::Tx), 1);
    let statistics = host.card.statistics(ContextId::new(1));
    assert_eq!((statistics.tx_frames, statistics.tx_bytes), (1, 60));
    assert_eq!((statistics.rx_frames, statistics.rx_bytes), (1, 1514));
    assert_eq!(a.status(), Some(Status::Up));
    assert_eq!(host.run().next, Next::Event);
}

#[test]
fn guests_of_one_card_reach_each_other_without_the_wire() {
    let (mut host, mut a, mut b) = two();
    let one = frame(B, A, 3, 600);
    a.send(&one);
    host.run();
    assert_eq!(b.received(), [one]);
    assert!(host.sent().is_empty());
    // Nobody hears itself.
    a.send(&frame(A, A, 3, 60));
    host.run();
    assert!(a.received().is_empty() && host.sent().is_empty());
    assert_eq!(drops(&host, 1, DropReason::NotForwarded), 1);
}

/// Pause frames, spanning tree, LACP, LLDP: a guest's reach neither the wire nor another guest, and the wire's reach no guest.
#[test]
fn link_local_groups_end_at_the_card() {
    let (mut host, mut a, _) = two();
    let mut all =
        host.guest_with(0, 0, Permissions(Permissions::PROMISCUOUS.0 | Permissions::ANY_SOURCE.0));
    all.enable(usual() | Enable::MULTICAST | Enable::PROMISCUOUS);
    all.post(64, 2048);
    let group = |last| MacAddr([0x01, 0x80, 0xc2, 0, 0, last]);
    for last in 0..=0x0f {
        a.send(&frame(group(last), A, last, 60));
        all.send(&frame(group(last), B, last, 60));
        host.arrive(&frame(group(last), PEER, last, 60));
    }
    host.run();
    assert!(host.sent().is_empty() && all.received().is_empty());
    assert_eq!([0, 1].map(|n| drops(&host, n, DropReason::NotForwarded)), [16; 2]);
    assert_eq!(host.card.counters().unclaimed, 16);
    assert_eq!(a.consumer(Direction::Tx), 16, "their buffers are free");
    // The first group that bridges forward.
    let beyond = frame(group(0x10), A, 1, 60);
    a.send(&beyond);
    host.run();
    assert_eq!((host.sent(), all.received()), (vec![beyond.clone()], vec![beyond]));
}

#[test]
fn groups_are_received_by_those_who_want_them() {
    let (mut host, mut a, mut b) = two();
    let mut manager = host.guest_with(0, 0, Permissions::PROMISCUOUS);
    let mut c = host.guest(3);
    // B is not permitted to be promiscuous.
    b.enable(usual() | Enable::PROMISCUOUS);
    c.enable(Enable::TX | Enable::RX | Enable::MULTICAST);
    manager.enable(Enable::TX | Enable::RX | Enable::PROMISCUOUS);
    c.post(8, 2048);
    manager.post(8, 2048);
    let multicast = MacAddr([1, 0, 0x5e, 0, 0, 1]);
    let broadcast = frame(MacAddr::BROADCAST, A, 1, 60);
    let to_group = frame(multicast, A, 2, 60);
    let to_unknown = frame(PEER, A, 3, 60);
    for sent in [&broadcast, &to_group, &to_unknown] {
        a.send(sent);
    }
    host.run();
    let all = [broadcast.clone(), to_group.clone(), to_unknown.clone()];
    assert_eq!(host.sent(), all);
    assert_eq!(manager.received(), all);
    assert_eq!((a.received().len(), b.received()), (0, vec![broadcast.clone()]));
    assert_eq!(c.received(), std::slice::from_ref(&to_group));
    // From the wire, the sender hears them too.
    for arrived in &all {
        host.arrive(arrived);
    }
    host.run();
    assert_eq!((a.received(), b.received()), (vec![broadcast.clone()], vec![broadcast]));
    assert_eq!((c.received(), manager.received()), (vec![to_group], all.to_vec()));
    assert!(host.sent().is_empty());
    assert_eq!(host.card.counters().unclaimed, 0);
    host.card.revoke(ContextId::MANAGEMENT, 1);
    host.arrive(&to_unknown);
    host.run();
    assert_eq!(host.card.counters().unclaimed, 1);
}

#[test]
fn a_false_source_is_dropped_unless_it_is_permitted() {
    let (mut host, mut a, _) = two();
    let mut bridge = host.guest_with(0, 0, Permissions::ANY_SOURCE);
    bridge.enable(usual());
    let forged = frame(PEER, B, 1, 60);
    a.send(&forged);
    bridge.send(&forged);
    host.run();
    assert_eq!(host.sent(), [forged]);
    assert_eq!(drops(&host, 1, DropReason::FalseSource), 1);
    assert_eq!(a.consumer(Direction::Tx), 1, "its buffer is free");
}

#[test]
fn fragments_are_gathered_and_long_frames_scattered() {
    let (mut host, mut a, mut b) = two();
    let long = frame(B, A, 4, 65_535);
    a.queue(&long, 4096, Flags::NONE);
    a.publish_tx();
    host.run();
    let received = b.receive();
    assert_eq!((received[0].buffers, &received[0].bytes), (32, &long));
    // The guest has 32 buffers left, and uses them for a frame that fills them exactly.
    let exact = frame(B, A, 5, 32 * 2048 - 2048);
    a.queue(&exact, 7000, Flags::NONE);
    a.send(&frame(B, A, 6, 2049));
    a.send(&frame(B, A, 7, 2048));
    host.run();
    let received = b.received();
    assert_eq!(received.len(), 2);
    assert_eq!(
        (&received[0], received[1][20]),
        (&exact, 7),
        "one for which there was no room is missing"
    );
    assert_eq!(drops(&host, 2, DropReason::NoDescriptors), 1);
}

#[test]
fn a_frame_waits_for_its_last_fragment() {
    let (mut host, mut a, _) = two();
    let whole = frame(PEER, A, 1, 3000);
    let (one, two) = whole.split_at(1000);
    let (first, second) = (a.place(one), a.place(two));
    a.put_tx(first, 1000, Flags::NONE);
    a.publish_tx();
    assert_eq!(host.run().next, Next::Event);
    assert!(host.sent().is_empty());
    a.put_tx(second, 2000, Flags::EOP);
    a.publish_tx();
    host.run();
    assert_eq!(host.sent(), [whole]);
}

#[test]
fn checksums_are_completed_where_the_receiver_cannot() {
    let (mut host, mut a, mut b) = two();
    let blank = tcp(B, A, 100);
    assert!(!is_right(&blank));
    let send = |a: &mut Guest, host: &mut Host, frame: &[u8]| {
        a.queue(frame, 4096, Flags::CSUM_BLANK);
        a.publish_tx();
        host.run();
    };
    send(&mut a, &mut host, &blank);
    let received = b.receive();
    assert!(is_right(&received[0].bytes));
    assert_eq!(received[0].first.flags(), Flags::EOP | Flags::CSUM_VALIDATED);
    b.enable(usual() | Enable::BLANK_CHECKSUMS);
    send(&mut a, &mut host, &blank);
    let received = b.receive();
    assert_eq!(received[0].bytes, blank);
    let flags = Flags::EOP | Flags::CSUM_BLANK | Flags::CSUM_VALIDATED;
    assert_eq!(received[0].first.flags(), flags);
    send(&mut a, &mut host, &tcp(PEER, A, 77));
    assert!(is_right(&host.sent()[0]));
    // A blank checksum where there is none.
    send(&mut a, &mut host, &frame(PEER, A, 1, 60));
    assert!(host.sent().is_empty());
    assert_eq!(drops(&host, 1, DropReason::Offload), 1);
}

#[test]
fn tcp_is_segmented_for_the_wire_and_not_for_a_guest_that_wants_it_whole() {
    let (mut host, mut a, mut b) = two();
    let send = |a: &mut Guest, host: &mut Host, frame: &[u8], size| {
        a.queue_offload(GsoKind::TcpV4, size);
        a.queue(frame, 4096, Flags::NONE);
        a.publish_tx();
        host.run();
    };
    send(&mut a, &mut host, &tcp(PEER, A, 3000), 1448);
    let sent = host.sent();
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [1502, 1502, 158]);
    assert!(sent.iter().all(|segment| is_right(segment)));
    assert_eq!(host.card.counters().wire_tx, 3);
    let whole = tcp(B, A, 3000);
    send(&mut a, &mut host, &whole, 1448);
    assert!(b.receive().iter().all(|segment| is_right(&segment.bytes)));
    b.enable(usual() | Enable::BLANK_CHECKSUMS | Enable::UNSEGMENTED);
    send(&mut a, &mut host, &whole, 1448);
    let received = b.receive();
    assert_eq!((received.len(), &received[0].bytes), (1, &whole));
    assert_eq!(received[0].first.gso(), Some((GsoKind::TcpV4, 1448)));
    // Too many segments, and another protocol than the offload's.
    send(&mut a, &mut host, &tcp(PEER, A, 3000), 1);
    send(&mut a, &mut host, &frame(PEER, A, 1, 3000), 1448);
    assert!(host.sent().is_empty());
    assert_eq!(drops(&host, 1, DropReason::Offload), 2);
}

#[test]
fn a_card_without_tso_announces_and_takes_none() {
    let mut host = Host::new(Config::default());
    let mut a = host.guest(1);
    a.enable(usual());
    a.queue_offload(GsoKind::TcpV4, 1448);
    a.queue(&tcp(PEER, A, 3000), 4096, Flags::NONE);
    a.publish_tx();
    host.run();
    assert!(host.sent().is_empty());
    assert_eq!(drops(&host, 1, DropReason::Offload), 1);
    let announcement = host.card.announcement();
    assert_eq!((announcement.features, announcement.contexts), (3, 32));
}

#[test]
fn what_the_wire_says_of_a_frame_reaches_the_guest() {
    let (mut host, _, mut b) = two();
    host.wire.0.borrow_mut().features = Features::ALL;
    let gso = Some(Gso { kind: GsoKind::TcpV4.into(), size: 1000 });
    let partial = Metadata { checksum: Checksum::Partial, gso };
    host.arrive_with(&tcp(B, A, 2500), partial);
    let validated = Metadata { checksum: Checksum::Validated, gso: None };
    host.arrive_with(&tcp(B, A, 10), validated);
    host.run();
    let received = b.receive();
    assert_eq!(received.len(), 4);
    assert!(received[..3].iter().all(|segment| is_right(&segment.bytes)));
    assert_eq!(received[3].first.flags(), Flags::EOP | Flags::CSUM_VALIDATED);
}

#[test]
fn a_wire_that_takes_offloads_gets_frames_as_they_are() {
    let (mut host, mut a, _) = two();
    host.wire.0.borrow_mut().features = Features::ALL;
    let whole = tcp(PEER, A, 3000);
    a.queue_offload(GsoKind::TcpV4, 1448);
    a.queue(&whole, 1000, Flags::NONE);
    a.publish_tx();
    host.run();
    let sent = host.wire.0.borrow_mut().sent.pop().unwrap();
    let gso = Some(Gso { kind: GsoKind::TcpV4.into(), size: 1448 });
    assert_eq!(sent, (whole, Metadata { checksum: Checksum::Partial, gso }));
}

#[test]
fn a_busy_wire_gets_every_frame_and_segment_once() {
    let (mut host, mut a, _) = two();
    a.queue_offload(GsoKind::TcpV4, 500);
    a.queue(&tcp(PEER, A, 2400), 4096, Flags::NONE);
    a.queue(&frame(PEER, A, 9, 60), 4096, Flags::NONE);
    a.publish_tx();
    for _ in 0..6 {
        host.wire.0.borrow_mut().room = Some(0);
        assert!(host.run().is_wire_busy);
        host.wire.0.borrow_mut().room = Some(1);
        host.run();
    }
    let sent = host.sent();
    assert_eq!(sent.iter().map(Vec::len).collect::<Vec<_>>(), [554, 554, 554, 554, 454, 60]);
    assert!(sent[..5].iter().all(|segment| is_right(segment)));
    host.wire.0.borrow_mut().longest = Some(100);
    host.wire.0.borrow_mut().room = None;
    a.send(&frame(PEER, A, 9, 101));
    a.send(&frame(PEER, A, 9, 100));
    host.run();
    assert_eq!(host.sent().len(), 1);
    assert_eq!(drops(&host, 1, DropReason::Wire), 1);
}

#[test]
fn the_line_rate_holds_both_ways() {
    let mut host = Host::new(Config { rate_mbps: 100, ..Config::default() });
    let mut a = host.guest(1);
    a.enable(usual());
    let (start, mut sent, mut received) = (host.now, 0, 0);
    while host.now < start + std::time::Duration::from_millis(500) {
        while a.room() > 0 {
            a.send(&frame(PEER, A, 1, 1514));
        }
        a.post(256 - (a.rx_producer.wrapping_sub(a.rx_consumer)), 2048);
        while host.wire.0.borrow().incoming.len() < 64 {
            host.arrive(&frame(A, PEER, 2, 1514));
        }
        host.run();
        sent += host.sent().len();
        received += a.received().len();
        host.now += std::time::Duration::from_micros(300);
    }
    // 100 Mbit/s for half a second in frames of 1538 bytes on the wire, and the first burst.
    let (full, burst) = (50_000_000 / 8 / 1538, 131_072 / 1538 + 2);
    for count in [sent, received] {
        assert!((full..=full + burst).contains(&count), "{count} of {full}");
    }
}

#[test]
fn a_context_that_is_not_enabled_neither_sends_nor_receives() {
    let (mut host, mut a, mut b) = two();
    a.enable(Enable::RX);
    b.enable(Enable::TX);
    a.send(&frame(B, A, 1, 60));
    b.send(&frame(A, B, 2, 60));
    b.send(&frame(MacAddr::BROADCAST, B, 3, 60));
    host.run();
    assert_eq!((a.received().len(), b.received().len()), (1, 0), "no broadcasts either");
    a.enable(usual());
    host.run();
    assert_eq!(drops(&host, 2, DropReason::NoDescriptors), 1);
    b.enable(usual());
    a.send(&frame(B, A, 4, 60));
    host.run();
    assert_eq!(b.received().len(), 1);
    // A mailbox without a meaning.
    a.raise(1 << 23 | 1 << 31);
    a.write(Mailbox::TxProducer, a.tx_producer);
    assert_eq!(host.run().next, Next::Event);
    assert!(host.faults.is_empty());
}
