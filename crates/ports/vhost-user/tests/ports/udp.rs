//! Unsegmented UDP between two virtual machines.

use port::{DropReason, Outcome};
use port_testing::transport_sum;
use wire::checksum::Sum;

use crate::common::{
    GUEST_CSUM, GUEST_USO4, GUEST_USO6, HOST_USO, LINUX, RING_PACKED, Vm, pass, plain, udp, udp_v6,
    uso,
};

const SENDS: u64 = LINUX | HOST_USO;

/// The frames over both IP versions, where their UDP headers begin, and the feature of who receives them whole.
fn frames(payload: usize) -> [(Vec<u8>, usize, u64); 2] {
    [(udp(payload), 34, GUEST_USO4), (udp_v6(payload), 54, GUEST_USO6)]
}

fn metadata(vm: &Vm, start: usize, size: u16) -> Vec<u8> {
    uso(vm, u16::try_from(start).unwrap(), size)
}

/// Checks a datagram's lengths and its checksum. Returns its payload.
fn payload(frame: &[u8], start: usize) -> &[u8] {
    let word = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let len = frame.len() - start;
    assert_eq!(usize::from(word(start + 4)), len, "the UDP length");
    let ip_len = if start == 34 { usize::from(word(16)) - 20 } else { usize::from(word(18)) };
    assert_eq!(ip_len, len, "the IP length");
    assert_eq!(transport_sum(frame), 0xffff, "the UDP checksum");
    if start == 34 {
        assert_eq!(Sum::of(&frame[14..34]).fold(), 0xffff, "the IP checksum");
    }
    &frame[start + 8..]
}

#[test]
fn a_receiver_that_takes_it_gets_it_whole_and_another_in_datagrams() {
    for layout in [0, RING_PACKED] {
        for (n, (frame, start, feature)) in frames(4000).into_iter().enumerate() {
            let mut red = Vm::boot(SENDS | layout);
            let mut from = red.served(1);
            let both = GUEST_USO4 | GUEST_USO6;
            for (features, is_whole) in [
                (LINUX | feature, true),
                (LINUX | both, true),
                (LINUX, false),
                (LINUX | both & !feature, false),
                // Without its checksums it cannot have it.
                (LINUX & !GUEST_CSUM & !(1 << 7) | both, false),
            ] {
                let mut blue = Vm::boot(features | layout);
                let mut to = blue.served(1);
                blue.post(64, 1526);
                let metadata = metadata(&red, start, 1200);
                red.send(&metadata, &frame, &[12, 100, 2000], false);
                let (received, outcomes) = pass(&mut from, &mut to).unwrap();
                assert_eq!((received.fresh, received.malformed), (1, 0), "{features:#x} {n}");
                assert_eq!(outcomes, [Outcome::Delivered], "{features:#x} {n}");
                assert!(red.tx.take().is_some());
                let arrived: Vec<_> = std::iter::from_fn(|| blue.receive()).collect();
                if is_whole {
                    assert_eq!(arrived.len(), 1, "{features:#x} {n}");
                    assert!(arrived[0].1 == frame);
                    assert_eq!(arrived[0].0[..10], metadata[..10]);
                    continue;
                }
                let payloads: Vec<_> = arrived
                    .iter()
                    .map(|(metadata, frame)| {
                        assert_eq!(metadata[..10], [0; 10]);
                        payload(frame, start)
                    })
                    .collect();
                let lens: Vec<_> = payloads.iter().map(|payload| payload.len()).collect();
                assert_eq!(lens, [1200, 1200, 1200, 400], "{features:#x} {n}");
                assert!(payloads.concat() == frame[start + 8..]);
            }
        }
    }
}

#[test]
fn more_datagrams_than_software_makes_cost_their_sender_the_frame() {
    let (mut red, mut blue) = (Vm::boot(SENDS), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(256, 1526);
    red.send(&metadata(&red, 34, 8), &udp(8 * 193), &[12], false);
    let dropped = Outcome::Dropped(DropReason::TooLarge);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [dropped]);
    red.send(&metadata(&red, 34, 8), &udp(8 * 192), &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    assert_eq!(std::iter::from_fn(|| blue.receive()).count(), 192);
}

#[test]
fn a_datagram_that_is_not_to_be_segmented_is_carried_as_before() {
    let (mut red, mut blue) = (Vm::boot(SENDS), Vm::boot(LINUX));
    let (mut from, mut to) = (red.served(1), blue.served(1));
    blue.post(4, 1526);
    red.send(&plain(&red), &udp(100), &[12], false);
    assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
    assert!(blue.receive().unwrap().1 == udp(100));
}

/// Its client reads it from a raw socket, and drops it otherwise.
#[test]
fn a_reply_of_a_dhcp_server_has_a_finished_checksum() {
    for layout in [0, RING_PACKED] {
        let (mut red, mut blue) = (Vm::boot(SENDS | layout), Vm::boot(LINUX | layout));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        blue.post(16, 1526);
        let mut unfinished = plain(&red);
        (unfinished[0], unfinished[6], unfinished[8]) = (1, 34, 6);
        for len in [6, 300] {
            for (ports, finished) in [([0, 67, 0, 68], true), ([0, 68, 0, 67], false)] {
                let mut frame = udp(len);
                frame[34..38].copy_from_slice(&ports);
                red.send(&unfinished, &frame, &[12], false);
                assert_eq!(pass(&mut from, &mut to).unwrap().1, [Outcome::Delivered]);
                let (metadata, arrived) = blue.receive().unwrap();
                let (expected, sum) = match finished {
                    true => (vec![0; 10], 0xffff),
                    false => (unfinished[..10].to_vec(), transport_sum(&frame)),
                };
                assert_eq!(metadata[..10], expected, "{len} {ports:?}");
                assert_eq!(transport_sum(&arrived), sum, "{len} {ports:?}");
            }
        }
    }
}
