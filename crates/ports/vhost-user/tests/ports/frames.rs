//! Frames between two virtual machines: bytes and offload metadata, in every layout.

use std::time::Duration;

use offload::Checksum;
use port::{Armed, Body, DropReason, FRAME_MAX, Merging, Outcome};
use port_testing::{merged, offer};

use crate::common::{
    EVENT_IDX, GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, HOST_TSO6, LINUX, MRG_RXBUF, RING_PACKED,
    VERSION_1, Vm, pass, pass_at, plain, tcp, tcp_v6, tso, tso_v6, was_notified,
};

/// Every layout that drivers use.
const LAYOUTS: [u64; 6] = [
    LINUX,
    LINUX | RING_PACKED,
    LINUX & !EVENT_IDX,
    (LINUX | RING_PACKED) & !EVENT_IDX,
    LINUX & !MRG_RXBUF,
    LINUX & !(MRG_RXBUF | VERSION_1),
];

#[test]
fn frames_of_every_size_arrive_whole() {
    for features in LAYOUTS {
        let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(features));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        for (n, payload) in
            [6, 10, 74, 75, 1446, 1460, 4000, 20_000, 60_000].into_iter().enumerate()
        {
            let frame = tcp(payload);
            let metadata = if payload > 1460 { tso(&red, 1448) } else { plain(&red) };
            // Linux puts the metadata into a buffer of its own, or in front of the frame.
            let cuts: &[usize] = match n % 3 {
                0 => &[12],
                1 => &[],
                _ => &[5, 12, 13, 100, 5000],
            };
            if features & MRG_RXBUF != 0 {
                blue.post(64, 1526);
            } else {
                blue.post_large();
            }
            red.send(&metadata, &frame, cuts, n % 2 == 0);
            assert!(from.ingress.has_work());
            let (received, outcomes) = pass(&mut from, &mut to).unwrap();
            assert!(!from.ingress.has_work(), "{payload}");
            assert_eq!((received.fresh, received.malformed), (1, 0), "{payload}");
            assert_eq!(outcomes, [Outcome::Delivered], "{features:#x} {payload}");
            let (seen, bytes) = blue.receive().unwrap();
            assert!(bytes == frame, "{features:#x} {payload}");
            assert_eq!(seen[..10], metadata[..10], "the offloads are left to the receiver");
            assert!(red.tx.take().is_some(), "the sender has its buffers again");
            if features & MRG_RXBUF != 0 {
                continue;
            }
            assert!(blue.rx.take().is_none());
        }
    }
}

#[test]
fn a_receiver_without_offloads_gets_segments_with_checksums() {
    let without = LINUX & !(GUEST_CSUM | GUEST_TSO4);
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(without));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(64, 1526);
    red.send(&tso(&red, 1448), &tcp(4000), &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    let mut payload = Vec::new();
    for _ in 0..3 {
        let (metadata, frame) = blue.receive().unwrap();
        assert_eq!(metadata[..10], [0; 10]);
        assert!(frame.len() <= 1514);
        assert!(frame[50..52] != [0, 0], "a checksum");
        payload.extend_from_slice(&frame[54..]);
    }
    assert!(blue.receive().is_none());
    assert_eq!(payload, tcp(4000)[54..]);
}

#[test]
fn tcp_over_ipv6_is_carried_whole_to_who_takes_it_and_cut_for_others() {
    const SIZE: u16 = 1428;
    let sender = LINUX | GUEST_TSO6 | HOST_TSO6;
    for (features, takes_it) in [(sender, true), (LINUX, false)] {
        let (mut red, mut blue) = (Vm::boot(sender), Vm::boot(features));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        blue.post(64, 1526);
        let (metadata, frame) = (tso_v6(&red, SIZE), tcp_v6(20_000));
        red.send(&metadata, &frame, &[12], false);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
        let came: Vec<_> = std::iter::from_fn(|| blue.receive()).collect();
        if takes_it {
            assert!(came.len() == 1 && came[0].1 == frame);
            assert_eq!(came[0].0[..10], metadata[..10]);
            continue;
        }
        assert_eq!(came.len(), 20_000usize.div_ceil(SIZE.into()));
        assert!(came.iter().all(|(metadata, _)| metadata[..10] == [0; 10]));
        assert!(came.iter().all(|(_, bytes)| bytes[70..72] != [0, 0]), "checksums");
        let payload: Vec<u8> = came.iter().flat_map(|(_, bytes)| bytes[74..].to_vec()).collect();
        assert!(payload == frame[74..]);
    }
}

#[test]
fn segments_for_which_there_is_no_room_wait_together() {
    let without = LINUX & !GUEST_TSO4;
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(without));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(2, 1526);
    red.send(&tso(&red, 1448), &tcp(4000), &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Waiting]);
    assert!(blue.receive().is_none(), "all or none");
    blue.post(1, 1526);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    let frames = std::iter::from_fn(|| blue.receive());
    assert_eq!(frames.count(), 3);
}

#[test]
fn a_burst_costs_one_notification_and_none_if_none_is_wanted() {
    for features in [LINUX, LINUX | RING_PACKED, LINUX & !EVENT_IDX] {
        let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(features));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        let mut burst = |red: &mut Vm, blue: &mut Vm| {
            blue.post(16, 1526);
            for _ in 0..16 {
                red.send(&plain(red), &tcp(6), &[12], false);
            }
            assert_eq!(pass(&mut from, &mut to).unwrap().0.fresh, 16);
            while blue.receive().is_some() {}
            while red.tx.take().is_some() {}
        };
        blue.rx.arm();
        burst(&mut red, &mut blue);
        assert!(was_notified(&blue.calls[0]));
        blue.rx.disarm();
        burst(&mut red, &mut blue);
        assert!(!was_notified(&blue.calls[0]), "{features:#x}");
        blue.rx.arm();
        burst(&mut red, &mut blue);
        let mut count = [0; 8];
        rustix::io::read(&blue.calls[0], &mut count).unwrap();
        assert_eq!(u64::from_le_bytes(count), 1);
    }
}

#[test]
fn a_guest_that_posts_no_buffers_is_stalled_and_holds_up_nobody() {
    let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    red.send(&plain(&red), &tcp(6), &[12], false);
    let at = |ms| Duration::from_millis(ms);
    assert_eq!(pass_at(&mut from, &mut to, at(1)).unwrap().1, [Outcome::Waiting]);
    assert!(!to.egress.is_stalled());
    let dropped = Outcome::Dropped(DropReason::Stalled);
    assert_eq!(pass_at(&mut from, &mut to, at(300)).unwrap().1, [dropped]);
    assert!(to.egress.is_stalled());
    blue.post(256, 1526);
    for _ in 0..256 {
        red.send(&plain(&red), &tcp(6), &[12], false);
        assert_eq!(pass_at(&mut from, &mut to, at(300)).unwrap().1, [Outcome::Delivered]);
        while red.tx.take().is_some() {}
    }
    assert!(!to.egress.is_stalled(), "a whole ring ends it");
}

#[test]
fn a_queue_sleeps_and_is_woken_up() {
    for features in [LINUX, LINUX | RING_PACKED, LINUX & !EVENT_IDX] {
        let mut red = Vm::boot(features);
        let mut from = red.served(1);
        assert_eq!(from.ingress.arm().unwrap(), Armed::Asleep);
        red.send(&plain(&red), &tcp(6), &[12], false);
        assert_eq!(from.ingress.arm().unwrap(), Armed::Ready, "a frame that came before");
    }
}

#[test]
fn a_merged_frame_arrives_whole_in_buffers_of_any_kind() {
    for features in [LINUX, LINUX | RING_PACKED, LINUX & !MRG_RXBUF] {
        for (count, buffer) in [(2, 1526), (2, 4096), (45, 1526), (20, 40_000)] {
            let mut blue = Vm::boot(features);
            let mut to = blue.served(1);
            let (frame, regions, whole) = merged(count, 1448);
            if features & MRG_RXBUF == 0 {
                blue.post_large();
            } else if buffer > 2048 {
                blue.post(1, buffer);
            } else {
                blue.post(64, buffer);
            }
            let outcome = offer(&mut *to.egress, Body::Regions(&regions), &frame, Duration::ZERO);
            assert_eq!(outcome, Ok(Outcome::Delivered), "{features:#x} {count} {buffer}");
            let (metadata, bytes) = blue.receive().unwrap();
            assert!(bytes == whole, "{features:#x} {count} {buffer}");
            let expected = [1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0];
            assert_eq!(
                (metadata[..10].to_vec(), frame.checksum),
                (expected.into(), Checksum::Partial)
            );
        }
    }
}

#[test]
fn a_merged_frame_is_no_longer_than_half_a_ring_has_room_for() {
    let longest = |features| {
        let merging: Merging = Vm::boot(features).served(1).egress.merging().unwrap();
        (merging.longest, merging.features.tso_v4)
    };
    assert_eq!(longest(LINUX), (FRAME_MAX, true));
    assert_eq!(longest(LINUX & !crate::common::GUEST_TSO4), (FRAME_MAX, false));
    assert_eq!(longest(LINUX & !MRG_RXBUF), (FRAME_MAX, true));
}
