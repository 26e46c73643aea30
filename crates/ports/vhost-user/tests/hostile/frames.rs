//! Frames and buffers to receive into that cannot be: what becomes of each, and what it costs the neighbours on the worker.

use port::{Budget, DropReason, Outcome, Received};
use virtqueue::driver::Offered;

use crate::bed::{Bed, dropped, wait};
use crate::common::{
    GUEST, LEN, LINUX, MRG_RXBUF, RING_PACKED, RINGS, RX_DATA, SIZE, TX_DATA, Vm, pass, plain,
    table_at, tcp, tso,
};

/// Two machines, and what one sends does not arrive; and beside others it costs them nothing.
fn refused(metadata: impl Fn(&Vm) -> Vec<u8>, frame: &[u8], cuts: &[usize]) {
    let bed = &mut Bed::new();
    for features in [LINUX, LINUX | RING_PACKED] {
        dropped(bed, features, |vm| vm.send(&metadata(vm), frame, cuts, false));
    }
    for features in [LINUX, LINUX | RING_PACKED] {
        let (mut red, mut blue) = (Vm::boot(features), Vm::boot(LINUX));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        blue.post(64, 1526);
        red.send(&metadata(&red), frame, cuts, false);
        let (received, outcomes) = pass(&mut from, &mut to).unwrap();
        assert_eq!((received.fresh, received.malformed), (0, 1));
        assert!(outcomes.is_empty());
        assert!(blue.receive().is_none());
        // Its buffers come back, and its next frame goes through.
        assert!(red.tx.take().is_some());
        red.send(&plain(&red), &tcp(6), &[], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
        assert_eq!(blue.receive().unwrap().1, tcp(6));
    }
}

#[test]
fn a_small_frame_that_claims_to_be_large_is_refused() {
    let mut frame = tcp(10);
    frame[16..18].copy_from_slice(&64_986u16.to_be_bytes());
    assert_eq!(frame.len(), 64);
    refused(|vm| tso(vm, 1448), &frame, &[12]);
}

#[test]
fn metadata_that_points_outside_is_refused() {
    let with = |at: usize, value: u16| {
        move |vm: &Vm| {
            let mut metadata = tso(vm, 1448);
            metadata[at..at + 2].copy_from_slice(&value.to_le_bytes());
            metadata
        }
    };
    // gso_size, csum_start and csum_offset.
    for (at, value) in [(4, 0), (6, 0), (6, 33), (6, 65_535), (8, 0), (8, 65_535)] {
        refused(with(at, value), &tcp(4000), &[12]);
    }
    // Flags and types that were not offered.
    for (flags, kind) in [(0, 1), (1, 3), (1, 4), (1, 5), (1, 0x7f), (2, 1)] {
        refused(with(0, u16::from_le_bytes([flags, kind])), &tcp(4000), &[12]);
    }
}

#[test]
fn a_frame_without_metadata_or_header_is_refused() {
    for len in [1, 5, 11, 12, 13, 20, 25] {
        let bytes = vec![0; len];
        refused(|_| bytes.clone(), &[], &[3]);
    }
}

#[test]
fn a_frame_that_is_too_long_is_refused() {
    let mut frame = tcp(60_000);
    frame.resize(70_000, 0);
    refused(|vm| tso(vm, 1448), &frame, &[12]);
    // In buffers that are not.
    refused(|vm| tso(vm, 1448), &frame, &[12, 40_000]);
}

#[test]
fn a_frame_in_too_many_buffers_is_refused() {
    let cuts: Vec<_> = (0..40).map(|n| 200 + n * 20).collect();
    refused(plain, &tcp(1400), &cuts);
}

#[test]
fn a_frame_outside_of_the_memory_is_refused() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(64, 1526);
    for (address, len) in [
        (0, 100),
        (GUEST - 50, 100),
        (GUEST + LEN as u64 - 50, 100),
        (u64::MAX - 5, 100),
        (GUEST, u32::MAX),
    ] {
        red.tx.offer(&[Offered { address, len, writable: false }], None).unwrap();
        red.tx.publish();
        let (received, _) = pass(&mut from, &mut to).unwrap();
        assert_eq!((received.fresh, received.malformed), (0, 1), "{address:#x}");
    }
    assert!(blue.receive().is_none());
}

#[test]
fn a_header_in_as_many_buffers_as_it_has_bytes_is_a_header() {
    let bed = &mut Bed::new();
    let mut green = bed.green(LINUX);
    let mut frame = tcp(6);
    frame[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 3]);
    green.send(&plain(&green), &frame, &Vec::from_iter(1..12), false);
    green.kick();
    wait("the frame's buffer", || green.tx.take().is_some());
    assert!(bed.is_whole());
}

#[test]
fn a_flood_of_refused_frames_costs_nobody_a_frame() {
    let bed = &mut Bed::new();
    let mut green = bed.green(LINUX);
    for _ in 0..200 {
        let buffer = Offered { address: 0, len: 64, writable: false };
        while green.tx.offer(&[buffer], None).is_some() {}
        green.tx.publish();
        green.kick();
        while green.tx.take().is_some() {}
    }
    assert!(bed.is_whole());
}

#[test]
fn receive_buffers_that_cannot_be_end_the_guests_own_port() {
    let with = |buffers: &[Offered]| {
        let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        blue.rx.offer(buffers, None).unwrap();
        blue.rx.publish();
        red.send(&plain(&red), &tcp(6), &[12], false);
        pass(&mut from, &mut to).unwrap_err().0
    };
    let buffer = |address, len, writable| Offered { address, len, writable };
    let outside = with(&[buffer(GUEST + LEN as u64 - 10, 1526, true)]);
    assert!(outside.contains("outside of the guest's memory"), "{outside}");
    let small = with(&[buffer(GUEST + RX_DATA as u64, 11, true)]);
    assert!(small.contains("a receive buffer of 11 bytes"), "{small}");
    let readable = with(&[buffer(GUEST + RX_DATA as u64, 1526, false)]);
    assert!(readable.contains("a receive buffer of 0 bytes"), "{readable}");
    // A chain may have 256 descriptors, but a frame's chains together no more than a thousand.
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    let mut chain = vec![buffer(GUEST + RX_DATA as u64, 0, true); 255];
    chain.push(buffer(GUEST + RX_DATA as u64, 12, true));
    for _ in 0..5 {
        blue.rx.offer(&chain, Some(table_at(TX_DATA as u64))).unwrap();
    }
    blue.rx.publish();
    red.send(&plain(&red), &tcp(6), &[12], false);
    let empty = pass(&mut from, &mut to).unwrap_err().0;
    assert!(empty.contains("1280 descriptors"), "{empty}");
    let bed = &mut Bed::new();
    for bad in [
        buffer(GUEST + LEN as u64 - 10, 1526, true),
        buffer(GUEST + RX_DATA as u64, 11, true),
        buffer(GUEST + RX_DATA as u64, 1526, false),
    ] {
        let mut green = bed.green(LINUX);
        green.rx.offer(&[bad], None).unwrap();
        green.rx.publish();
        bed.send_to_green(6);
        let why = bed.failure();
        assert!(why.contains("a receive buffer"), "{why}");
        green.front.end();
    }
}

/// A worker's turn ends by what was read, whether it made a frame or not.
#[test]
fn descriptors_that_make_no_buffer_are_charged_to_the_turn() {
    for features in [LINUX, LINUX | RING_PACKED] {
        let mut red = Vm::boot(features);
        let mut from = red.served(1);
        let empty = Offered { address: GUEST + TX_DATA as u64, len: 0, writable: false };
        for _ in 0..40 {
            red.tx.offer(&[empty; 256], Some(table_at(TX_DATA as u64))).unwrap();
        }
        red.tx.publish();
        let (mut budget, mut received) = (Budget::TURN, Received::default());
        from.ingress.receive(&mut budget, &mut received).unwrap();
        // What is taken ahead is not given back.
        assert_eq!((received.malformed, budget.is_spent()), (16, true));
    }
}

#[test]
fn a_guest_without_buffers_delays_no_neighbour() {
    let bed = &mut Bed::new();
    for features in [LINUX, LINUX | RING_PACKED] {
        let mut green = bed.green(features);
        for _ in 0..4 {
            (0..12).for_each(|_| bed.send_to_green(1000));
            bed.carries();
        }
        // One buffer now and then is no supply.
        for _ in 0..8 {
            green.post(1, 1526);
            bed.send_to_green(1000);
            bed.carries();
        }
        assert!(bed.is_whole());
        green.front.end();
    }
}

#[test]
fn tiny_receive_buffers_cost_their_guest_the_frame() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(200, 13);
    red.send(&plain(&red), &tcp(1400), &[12], false);
    let outcome = pass(&mut from, &mut to).unwrap().1;
    assert_eq!(outcome, [Outcome::Dropped(DropReason::TooLarge)]);
    // They were put back: a small frame takes some of them.
    red.send(&plain(&red), &tcp(6), &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    assert_eq!(blue.receive().unwrap().1, tcp(6));
    let bed = &mut Bed::new();
    let mut green = bed.green(LINUX);
    green.post(200, 13);
    (0..8).for_each(|_| bed.send_to_green(1400));
    assert!(bed.is_whole());
    assert!(green.receive().is_none());
    bed.send_to_green(6);
    wait("the small frame", || green.receive().is_some());
    assert!(bed.is_whole());
}

#[test]
fn one_buffer_that_is_too_small_costs_a_guest_without_mergeable_buffers_the_frame() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX & !MRG_RXBUF));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(4, 1526);
    red.send(&tso(&red, 1448), &tcp(4000), &[12], false);
    let outcome = pass(&mut from, &mut to).unwrap().1;
    assert_eq!(outcome, [Outcome::Dropped(DropReason::TooLarge)]);
    red.send(&plain(&red), &tcp(6), &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    let bed = &mut Bed::new();
    let mut green = bed.green(LINUX & !MRG_RXBUF);
    green.post(4, 1526);
    for _ in 0..4 {
        bed.send_all_to_green(&bed.tso(1448), &tcp(4000));
    }
    assert!(bed.is_whole());
    assert!(green.receive().is_none());
    bed.send_to_green(6);
    wait("the small frame", || green.receive().is_some());
    assert!(bed.is_whole());
}

#[test]
fn a_frame_that_changes_while_it_is_sent_keeps_the_header_that_was_checked() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    let frame = tcp(1000);
    red.send(&plain(&red), &frame, &[12], false);
    // No buffers: the frame has been read, and waits.
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Waiting]);
    red.memory.zero(TX_DATA, 2000).unwrap();
    blue.post(4, 1526);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    let (_, bytes) = blue.receive().unwrap();
    assert_eq!(bytes[..128], frame[..128]);
}

#[test]
fn memory_that_is_cut_short_ends_its_guests_port_and_not_the_daemon() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(64, 1526);
    // A file without seals, which its owner cuts short under traffic.
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let file = rustix::fs::memfd_create("unsealed", flags).unwrap();
    rustix::fs::ftruncate(&file, LEN as u64).unwrap();
    let mut green = Vm::boot_in(LINUX, file.try_clone().unwrap());
    let mut theirs = green.served(1);
    green.send(&plain(&green), &tcp(1000), &[12], false);
    green.post(64, 1526);
    assert_eq!(pass(&mut theirs, &mut to).unwrap().1, [Outcome::Delivered]);
    green.send(&plain(&green), &tcp(1000), &[12], false);
    // The test's own mapping must not be touched any more.
    rustix::fs::ftruncate(&file, 4096).unwrap();
    let sent = pass(&mut theirs, &mut to);
    let after = pass(&mut theirs, &mut to).map(drop).unwrap_err().0;
    assert!(after.contains("the guest's memory is gone"), "{after} {sent:?}");
    red.send(&plain(&red), &tcp(6), &[12], false);
    let received = pass(&mut from, &mut theirs).map(drop).unwrap_err().0;
    assert!(received.contains("the guest's memory is gone"), "{received}");
    // Others go on.
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
}

/// What breaks a ring is tested in `virtqueue/tests/rings/hostile.rs`.
#[test]
fn a_ring_that_cannot_be_ends_the_guests_own_port() {
    let bed = &mut Bed::new();
    let green = bed.green(LINUX);
    // The index and the first entry of what is available.
    green.memory.write(RINGS[1] + 0x4000 + 2, [1, SIZE]).unwrap();
    green.kick();
    assert_eq!(bed.failure(), "descriptor 256 of a table of 256");
    green.front.end();
    let green = bed.green(LINUX | RING_PACKED);
    // Available in the first lap.
    green.memory.write(RINGS[1] + 12, [SIZE, 1 << 7]).unwrap();
    green.kick();
    assert_eq!(bed.failure(), "buffer id 256 in a ring of 256");
}
