//! Hostile guests: what they write stops their own context, with the reason, and no other.

use crate::common::guest::{Guest, MEMORY_LEN, mac, usual};
use cdna::message::Permissions;
use cdna::{ContextId, Descriptor, Direction, Flags, Mailbox, Reason, Status, ring};
use firmware::{Config, Next};
use wire::ethernet::MacAddr;

use crate::common::{Host, PEER, frame};

const BAD: u8 = 1;
const GOOD: u8 = 2;

/// A guest that will do something bad, and one that does not.
fn two(start: u32) -> (Host, Guest, Guest) {
    let mut host = Host::new(Config { tso: true, ..Config::default() });
    let bad = host.guest_with(BAD, start, Permissions::default());
    let mut good = host.guest(GOOD);
    bad.enable(usual());
    good.enable(usual());
    good.post(64, 2048);
    host.run();
    (host, bad, good)
}

/// The bad guest was stopped for this reason, once; the good one goes on.
#[track_caller]
fn expect(host: &mut Host, bad: &Guest, good: &mut Guest, reason: Reason, direction: Direction) {
    host.run();
    let [(generation, fault)] = host.faults[..] else { panic!("{:?}", host.faults) };
    assert_eq!((generation, fault.context), (1, ContextId::new(BAD)));
    assert_eq!((fault.reason, fault.direction), (reason, direction));
    assert_eq!(bad.status(), Some(Status::Faulted));
    assert_eq!(host.card.statistics(fault.context).faults, 1);
    host.sent();

    let (out, back) = (frame(PEER, mac(GOOD), 7, 60), frame(mac(GOOD), PEER, 8, 60));
    good.send(&out);
    host.arrive(&back);
    // A context that was stopped has no address here, and its mailboxes are not read.
    host.arrive(&frame(mac(BAD), PEER, 9, 60));
    bad.write(Mailbox::TxProducer, 77);
    assert_eq!(host.run().next, Next::Event);
    assert_eq!((host.sent(), good.received()), (vec![out], vec![back]));
    assert_eq!(host.faults.len(), 1);
    assert_eq!(host.card.counters().unclaimed, 1);

    // It is served again only after it was assigned again.
    let mut heir = host.guest(BAD);
    heir.enable(usual());
    heir.send(&frame(PEER, mac(BAD), 10, 60));
    host.run();
    assert_eq!(host.sent().len(), 1);
    assert_eq!(host.card.statistics(fault.context).faults, 0);
}

/// The bad guest writes one TX descriptor, whose `index` is right.
fn one_descriptor(descriptor: Descriptor, reason: Reason) {
    let (mut host, mut bad, mut good) = two(0);
    bad.put(Direction::Tx, 0, descriptor);
    bad.tx_producer = 1;
    bad.publish_tx();
    expect(&mut host, &bad, &mut good, reason, Direction::Tx);
}

#[test]
fn a_producer_that_jumps() {
    for by in [257, 1 << 16, 1 << 31] {
        let (mut host, bad, mut good) = two(5);
        bad.write(Mailbox::TxProducer, 5 + by);
        expect(&mut host, &bad, &mut good, Reason::ProducerAhead, Direction::Tx);
    }
}

#[test]
fn a_producer_that_runs_backwards() {
    let (mut host, mut bad, mut good) = two(100);
    bad.post(5, 2048);
    host.run();
    bad.write(Mailbox::RxProducer, 104);
    expect(&mut host, &bad, &mut good, Reason::ProducerBackwards, Direction::Rx);
    let (mut host, bad, mut good) = two(100);
    bad.write(Mailbox::TxProducer, 99);
    expect(&mut host, &bad, &mut good, Reason::ProducerBackwards, Direction::Tx);
}

#[test]
fn a_producer_beyond_the_last_descriptor_leads_to_a_stale_one() {
    for start in [0, 0xffff_ff80, u32::MAX] {
        for direction in [Direction::Tx, Direction::Rx] {
            let (mut host, mut bad, mut good) = two(start);
            // A round and a half of good ones.
            for n in 0..384 {
                bad.send(&frame(PEER, mac(BAD), 1, 60));
                bad.post(1, 2048);
                host.arrive(&frame(mac(BAD), PEER, 2, 60));
                host.run();
                assert_eq!(bad.received().len(), 1, "{n}");
            }
            assert_eq!(host.sent().len(), 384);
            let (mailbox, producer) = match direction {
                Direction::Tx => (Mailbox::TxProducer, bad.tx_producer),
                Direction::Rx => (Mailbox::RxProducer, bad.rx_producer),
            };
            bad.write(mailbox, producer.wrapping_add(1));
            // RX descriptors are checked when a frame comes.
            host.arrive(&frame(mac(BAD), PEER, 2, 60));
            expect_stale(&mut host, &bad, &mut good, direction, producer);
        }
    }
}

#[track_caller]
fn expect_stale(host: &mut Host, bad: &Guest, good: &mut Guest, direction: Direction, index: u32) {
    expect_after(host, bad, good, Reason::Sequence, direction);
    let fault = host.faults[0].1;
    assert_eq!(fault.index, index);
    assert_eq!(fault.value, u64::from(index.wrapping_sub(ring::SLOTS)));
}

/// As [`expect`], after a frame that was for the bad guest and that nobody counts.
#[track_caller]
fn expect_after(
    host: &mut Host,
    bad: &Guest,
    good: &mut Guest,
    reason: Reason,
    direction: Direction,
) {
    host.run();
    assert_eq!(host.faults.len(), 1);
    let fault = host.faults[0].1;
    assert_eq!((fault.reason, fault.direction), (reason, direction));
    assert_eq!(bad.status(), Some(Status::Faulted));
    host.sent();
    good.send(&frame(PEER, mac(GOOD), 7, 60));
    host.run();
    assert_eq!(host.sent().len(), 1);
}

#[test]
fn a_forged_descriptor_that_skips_a_number() {
    one_descriptor(
        Descriptor { seq: 1, ..Descriptor::buffer(0, 0, 60, Flags::EOP) },
        Reason::Sequence,
    );
}

#[test]
fn a_descriptor_without_a_buffer() {
    one_descriptor(Descriptor::buffer(0, 1 << 32, 0, Flags::EOP), Reason::Length);
    one_descriptor(Descriptor::default(), Reason::Length);
}

#[test]
fn a_descriptor_of_an_impossible_offload() {
    for addr in [0, 0x1_0000, 1448, 0x3_05a8, u64::MAX] {
        one_descriptor(
            Descriptor { addr, flags: Flags::GSO.0, ..Descriptor::default() },
            Reason::Offload,
        );
    }
    // With a buffer.
    let flags = Flags::GSO | Flags::EOP;
    one_descriptor(Descriptor::buffer(0, 1 << 32, 60, flags), Reason::Offload);
    // Alone.
    let alone = Descriptor { addr: 0x1_05a8, flags: flags.0, ..Descriptor::default() };
    one_descriptor(alone, Reason::FrameLength);
}

#[test]
fn a_frame_shorter_than_its_header() {
    one_descriptor(Descriptor::buffer(0, 1 << 32, 13, Flags::EOP), Reason::FrameLength);
}

#[test]
fn a_chain_that_is_too_long_or_has_no_end() {
    for (buffers, len, reason) in [
        (19, 60, Reason::Chain),
        (256, 60, Reason::Chain),
        (18, 4000, Reason::FrameLength),
        (2, u16::MAX, Reason::FrameLength),
    ] {
        let (mut host, mut bad, mut good) = two(0);
        for n in 1..=buffers {
            let flags = if n == buffers && buffers != 256 { Flags::EOP } else { Flags::NONE };
            bad.put_tx(bad.base, len, flags);
        }
        bad.publish_tx();
        expect(&mut host, &bad, &mut good, reason, Direction::Tx);
    }
}

#[test]
fn an_offload_inside_a_chain() {
    let (mut host, mut bad, mut good) = two(0);
    bad.put_tx(bad.base, 60, Flags::NONE);
    bad.put_tx(bad.base, 60, Flags::EOP | Flags::GSO);
    bad.publish_tx();
    expect(&mut host, &bad, &mut good, Reason::Offload, Direction::Tx);
}

#[test]
fn a_buffer_beyond_the_machines_end() {
    let (mut host, mut bad, mut good) = two(0);
    // Behind the memory of the two guests there is none.
    let last = (1 << 32) + 2 * MEMORY_LEN as u64 - 59;
    bad.put_tx(last - 1, 60, Flags::EOP);
    bad.publish_tx();
    host.run();
    assert!(host.faults.is_empty(), "the last bytes of the machine");
    bad.put_tx(last, 60, Flags::EOP);
    bad.publish_tx();
    expect(&mut host, &bad, &mut good, Reason::Outside, Direction::Tx);
    for addr in [0, u64::MAX, u64::MAX - 58] {
        one_descriptor(Descriptor::buffer(0, addr, 60, Flags::EOP), Reason::Outside);
    }
}

#[test]
fn receive_buffers_that_are_none() {
    for (addr, len, reason) in [
        (0, 2048, Reason::Outside),
        (u64::MAX, 2048, Reason::Outside),
        (1 << 32, 0, Reason::Length),
    ] {
        let (mut host, mut bad, mut good) = two(0);
        bad.put(Direction::Rx, 0, Descriptor::buffer(0, addr, len, Flags::NONE));
        bad.rx_producer = 1;
        bad.write(Mailbox::RxProducer, 1);
        host.arrive(&frame(mac(BAD), PEER, 1, 60));
        expect_after(&mut host, &bad, &mut good, reason, Direction::Rx);
    }
}

#[test]
fn without_protection_another_guests_memory_is_read() {
    // Protection `none` is the measure of the others: the attack must succeed here.
    let (mut host, mut bad, mut good) = two(0);
    let secret = frame(PEER, mac(BAD), 0x5e, 60);
    let theirs = good.place(&secret);
    bad.put_tx(theirs, 60, Flags::EOP);
    bad.publish_tx();
    host.run();
    assert_eq!(host.sent(), [secret]);
}

#[test]
fn a_buffer_beyond_its_guests_memory_is_refused_by_a_bus_that_protects() {
    for (protects, offset) in
        [(true, MEMORY_LEN as u64 - 59), (true, MEMORY_LEN as u64), (false, 0)]
    {
        for direction in [Direction::Tx, Direction::Rx] {
            let (mut host, mut bad, mut good) = two(0);
            host.card.bus().protects = protects;
            bad.put(direction, 0, Descriptor::buffer(0, bad.base + offset, 60, Flags::EOP));
            (bad.tx_producer, bad.rx_producer) = (1, 1);
            let mailbox =
                if direction == Direction::Tx { Mailbox::TxProducer } else { Mailbox::RxProducer };
            bad.write(mailbox, 1);
            host.arrive(&frame(mac(BAD), PEER, 1, 60));
            if protects {
                expect_after(&mut host, &bad, &mut good, Reason::Unmapped, direction);
            } else {
                host.run();
                assert!(host.faults.is_empty());
            }
        }
    }
}

#[test]
fn a_flood_of_mailbox_writes_costs_the_others_nothing_but_time() {
    let (mut host, mut bad, mut good) = two(0);
    for n in 0..1000 {
        // Everything, all the time, between any two steps.
        bad.enable(usual());
        bad.write(Mailbox::TxSeen, n);
        bad.raise(u32::MAX);
        good.send(&frame(PEER, mac(GOOD), 1, 60));
        let step = host.step();
        assert_eq!((step.frames, host.sent().len()), (1, 1));
    }
    assert!(host.faults.is_empty());
    assert!(host.card.statistics(ContextId::new(BAD)).events > 1000);
    bad.send(&frame(PEER, mac(BAD), 1, 60));
    host.run();
    assert_eq!(host.sent().len(), 1, "it can still send");
}

#[test]
fn a_step_is_bounded() {
    let (mut host, mut bad, _) = two(0);
    (0..256).for_each(|_| bad.queue(&frame(PEER, mac(BAD), 1, 60), 60, Flags::NONE));
    bad.publish_tx();
    (0..300).for_each(|_| host.arrive(&frame(mac(GOOD), PEER, 2, 60)));
    let steps: Vec<_> = (0..3).map(|_| host.step()).collect();
    let expected = [(256, Next::Now), (256, Next::Now), (44, Next::Event)];
    assert_eq!(steps.iter().map(|step| (step.frames, step.next)).collect::<Vec<_>>(), expected);
}

#[test]
fn a_flood_of_broadcasts_is_paid_for_by_its_sender() {
    let mut host = Host::new(Config::default());
    let mut guests: Vec<_> = (1..=8).map(|number| host.guest(number)).collect();
    guests.iter().for_each(|guest| guest.enable(usual()));
    let (mut flooded, mut sent) = (0, 0);
    for _ in 0..200 {
        let [bad, good, ..] = &mut guests[..] else { unreachable!() };
        while bad.room() > 0 {
            bad.send(&frame(MacAddr::BROADCAST, mac(1), 1, 1000));
        }
        while good.room() > 0 {
            good.send(&frame(PEER, mac(2), 2, 1000));
        }
        host.step();
        for frame in host.sent() {
            if frame[0] == 0xff { flooded += 1 } else { sent += 1 }
        }
    }
    // A flooded frame goes to seven guests and to the wire: it costs eight times as much.
    assert!(sent >= 7 * flooded && flooded > 100, "{flooded} flooded, {sent} sent");
}
