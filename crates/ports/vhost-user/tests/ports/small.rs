//! Frames without a body, which are written in a loop of their own, among others and in buffers of every kind.

use std::time::Duration;

use offload::Checksum;
use port::{Body, Broken, DropReason, Frame, Offer, Outcome, Queue};
use port_testing::{FakeEgress, Sender, Sent, transport_sum};
use shm::Region;

use crate::common::{
    EVENT_IDX, GUEST_CSUM, GUEST_TSO4, LINUX, MRG_RXBUF, RING_PACKED, RX_DATA, VERSION_1, Vm, pass,
    plain, tcp, tso, was_notified,
};

const BOTH: [u64; 2] = [LINUX, LINUX | RING_PACKED];
const DELIVERED: Outcome = Outcome::Delivered;
/// The metadata of a TCP segment over IPv4 whose checksum is to be finished.
const PARTIAL: [u8; 10] = [1, 0, 0, 0, 0, 0, 34, 0, 16, 0];
/// `VIRTIO_NET_HDR_F_DATA_VALID`
const DATA_VALID: u8 = 2;
/// What the memory has where nothing was written.
const UNTOUCHED: u8 = 0xee;

/// A TCP segment with a number, so that it is like no other of its length.
fn numbered(n: u8, payload: usize) -> Vec<u8> {
    let mut bytes = tcp(payload);
    bytes[19] = n;
    bytes
}

/// Sends such segments of six bytes.
fn send_numbered(red: &mut Vm, numbers: std::ops::Range<u8>) {
    for n in numbers {
        red.send(&plain(red), &numbered(n, 6), &[12], false);
    }
}

/// The metadata of such a segment.
fn partial(vm: &Vm) -> Vec<u8> {
    let mut metadata = plain(vm);
    metadata[..10].copy_from_slice(&PARTIAL);
    metadata
}

/// Delivers frames without a body in one batch.
fn deliver(to: &mut Queue, frames: &[Vec<u8>]) -> (Vec<Outcome>, Result<(), Broken>) {
    let frame = |bytes: &Vec<u8>| {
        let mut frame = Frame::empty();
        frame.set_header(bytes).unwrap();
        frame
    };
    let frames: Vec<_> = frames.iter().map(frame).collect();
    let mut offers: Vec<_> = frames.iter().map(Offer::new).collect();
    let none = [Region::anonymous(4096).unwrap()].into();
    let result = to.egress.deliver(Body::Regions(&none), &mut offers, Duration::ZERO);
    (offers.iter().map(|offer| offer.outcome).collect(), result)
}

/// The bytes of all frames that came.
fn received(vm: &mut Vm) -> Vec<Vec<u8>> {
    std::iter::from_fn(|| vm.receive()).map(|(_, bytes)| bytes).collect()
}

/// In how many buffers each frame came, and the bytes of all frames.
fn received_in_buffers(vm: &mut Vm) -> (Vec<u8>, Vec<Vec<u8>>) {
    std::iter::from_fn(|| vm.receive()).map(|(metadata, bytes)| (metadata[10], bytes)).unzip()
}

#[test]
fn frames_for_which_there_is_no_buffer_wait_and_come_in_order() {
    for features in BOTH.into_iter().flat_map(|both| [both, both & !EVENT_IDX]) {
        let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(features));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        blue.post(5, 1526);
        send_numbered(&mut red, 0..8);
        blue.rx.arm();
        let outcomes = pass(&mut from, &mut to).unwrap().1;
        assert_eq!(outcomes, [[DELIVERED; 5].as_slice(), &[Outcome::Waiting; 3]].concat());
        assert!(was_notified(&blue.calls[0]), "{features:#x}");
        assert_eq!(received(&mut blue), [0, 1, 2, 3, 4].map(|n| numbered(n, 6)));
        blue.rx.arm();
        assert!(blue.post(3, 1526), "the device wants to know of buffers");
        let (taken, outcomes) = pass(&mut from, &mut to).unwrap();
        assert_eq!((taken.fresh, outcomes), (0, vec![DELIVERED; 3]), "{features:#x}");
        assert!(was_notified(&blue.calls[0]), "{features:#x}");
        assert_eq!(received(&mut blue), [5, 6, 7].map(|n| numbered(n, 6)));
        assert!(!blue.post(1, 1526), "{features:#x}: no frame waits any more");
    }
}

#[test]
fn small_frames_keep_their_place_among_others() {
    let others = [!MRG_RXBUF, !(MRG_RXBUF | VERSION_1)].map(|without| LINUX & without);
    for features in BOTH.into_iter().chain(others).chain([(LINUX | RING_PACKED) & !MRG_RXBUF]) {
        let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(features));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        if features & MRG_RXBUF != 0 {
            blue.post(64, 1526);
        } else {
            let buffers: Vec<_> = (0..6).map(|n| (RX_DATA + n * (256 << 10), 70_000)).collect();
            blue.post_at(&buffers);
        }
        let batch = [
            (plain(&red), numbered(0, 6)),
            (partial(&red), numbered(1, 6)),
            (plain(&red), numbered(2, 1000)),
            (plain(&red), numbered(3, 6)),
            (tso(&red, 1448), numbered(4, 20_000)),
            (partial(&red), numbered(5, 74)),
        ];
        for (metadata, frame) in &batch {
            red.send(metadata, frame, &[12], false);
        }
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [DELIVERED; 6], "{features:#x}");
        for (n, (metadata, frame)) in batch.iter().enumerate() {
            let (seen, bytes) = blue.receive().unwrap();
            assert!(bytes == *frame, "{features:#x}: frame {n}");
            assert_eq!(seen[..10], metadata[..10], "{features:#x}: frame {n}");
        }
        assert!(blue.receive().is_none());
    }
}

/// More than are taken off the ring ahead, and often enough that the ring begins anew.
#[test]
fn a_large_batch_of_small_frames_comes_in_order() {
    for features in BOTH {
        let mut blue = Vm::boot(features);
        let mut to = blue.served(1);
        // Some buffers are left from each batch to the next.
        blue.post(6, 1526);
        for round in 0..10 {
            blue.post(64, 1526);
            let batch: Vec<_> = (0..64).map(|n| numbered(n + round, n.into())).collect();
            assert_eq!(deliver(&mut to, &batch), (vec![DELIVERED; 64], Ok(())));
            assert!(received(&mut blue) == batch, "{features:#x}: round {round}");
        }
    }
}

#[test]
fn a_single_buffer_has_the_header_that_the_guest_knows() {
    for (features, header) in [
        (LINUX & !(MRG_RXBUF | VERSION_1), [0; 10].as_slice()),
        (LINUX & !MRG_RXBUF, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
        ((LINUX | RING_PACKED) & !MRG_RXBUF, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]),
    ] {
        let mut blue = Vm::boot(features);
        let mut to = blue.served(1);
        blue.post(3, 1526);
        let batch = [0, 6, 74].map(|payload| numbered(1, payload));
        assert_eq!(deliver(&mut to, &batch), (vec![DELIVERED; 3], Ok(())));
        for frame in batch {
            assert_eq!(blue.receive().unwrap(), (header.to_vec(), frame), "{features:#x}");
        }
    }
}

#[test]
fn a_partial_checksum_is_finished_among_frames_that_stay_as_they_are() {
    for features in BOTH.map(|both| both & !(GUEST_CSUM | GUEST_TSO4)) {
        let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(features));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        blue.post(8, 1526);
        let batch = [(0, true), (1, false), (2, false), (3, true), (4, false)];
        for (n, is_partial) in batch {
            let metadata = if is_partial { partial(&red) } else { plain(&red) };
            red.send(&metadata, &numbered(n, 6), &[12], false);
        }
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [DELIVERED; 5]);
        for (n, is_partial) in batch {
            let (metadata, mut bytes) = blue.receive().unwrap();
            assert_eq!(metadata[..10], [0; 10], "{features:#x}: frame {n}");
            if is_partial {
                assert_eq!(transport_sum(&bytes), 0xffff, "{features:#x}: frame {n}");
                bytes[50..52].copy_from_slice(&numbered(n, 6)[50..52]);
            }
            assert_eq!(bytes, numbered(n, 6), "{features:#x}");
        }
        assert!(blue.receive().is_none());
    }
}

#[test]
fn frames_before_a_bad_buffer_are_the_guests() {
    for features in BOTH {
        let mut blue = Vm::boot(features);
        let mut to = blue.served(1);
        blue.post(3, 1526);
        blue.post(1, 11);
        blue.rx.arm();
        let batch = [0, 1, 2, 3, 4].map(|n| numbered(n, 6));
        let (outcomes, result) = deliver(&mut to, &batch);
        assert_eq!(result.unwrap_err().0, "a receive buffer of 11 bytes");
        assert_eq!(outcomes, [[DELIVERED; 3].as_slice(), &[Outcome::Waiting; 2]].concat());
        assert!(was_notified(&blue.calls[0]), "{features:#x}");
        assert_eq!(received(&mut blue), batch[..3], "{features:#x}");
    }
}

/// Posts buffers of these lengths, with untouched memory around them. Returns where they are.
fn post_apart<const N: usize>(vm: &mut Vm, lens: [u32; N]) -> [(usize, u32); N] {
    vm.memory.copy_in(RX_DATA, &[UNTOUCHED; 1 << 16]).unwrap();
    let mut at = RX_DATA;
    let buffers = lens.map(|len| {
        at += 1024;
        (at, len)
    });
    vm.post_at(&buffers);
    buffers
}

/// Nothing was written behind these buffers.
fn assert_none_overflows(vm: &Vm, buffers: &[(usize, u32)]) {
    for (at, len) in buffers {
        let behind = vm.memory.read::<[u8; 64]>(at + *len as usize);
        assert_eq!(behind, Ok([UNTOUCHED; 64]), "behind a buffer of {len} bytes");
    }
}

#[test]
fn a_frame_that_fills_its_buffer_needs_no_other_and_one_byte_more_does() {
    for features in BOTH {
        let mut blue = Vm::boot(features);
        let mut to = blue.served(1);
        // Metadata, headers and payload.
        let needed = 12 + 54 + 20;
        let buffers = post_apart(&mut blue, [needed, needed, needed - 1, 100, needed]);
        let batch = [0, 1, 2, 3].map(|n| numbered(n, 20));
        assert_eq!(deliver(&mut to, &batch), (vec![DELIVERED; 4], Ok(())));
        let (counts, frames) = received_in_buffers(&mut blue);
        assert_eq!((counts, frames), (vec![1, 1, 2, 1], batch.to_vec()), "{features:#x}");
        assert_none_overflows(&blue, &buffers);
        // The last byte of the third frame is alone.
        assert_none_overflows(&blue, &[(buffers[3].0, 1)]);
    }
}

#[test]
fn a_frame_that_is_a_byte_too_long_for_the_only_buffer_leaves_it_to_the_next() {
    for features in BOTH.map(|both| both & !MRG_RXBUF) {
        let mut blue = Vm::boot(features);
        let mut to = blue.served(1);
        let needed = 12 + 54 + 20;
        let buffers = post_apart(&mut blue, [needed, needed - 1, needed]);
        let batch = [(0, 20), (1, 20), (2, 19), (3, 20)].map(|(n, len)| numbered(n, len));
        let too_large = Outcome::Dropped(DropReason::TooLarge);
        let outcomes = vec![DELIVERED, too_large, DELIVERED, DELIVERED];
        assert_eq!(deliver(&mut to, &batch), (outcomes, Ok(())), "{features:#x}");
        assert_eq!(received(&mut blue), [0, 2, 3].map(|n| batch[n].clone()), "{features:#x}");
        assert_none_overflows(&blue, &buffers);
    }
}

#[test]
fn buffers_may_be_too_short_for_small_frames_and_become_large() {
    for features in BOTH {
        let (mut red, mut blue) = (Vm::boot(LINUX), Vm::boot(features));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        // A frame has 72 bytes with its header. Two buffers each, and one is left.
        blue.post(5, 70);
        send_numbered(&mut red, 0..6);
        let outcomes = pass(&mut from, &mut to).unwrap().1;
        assert_eq!(outcomes, [[DELIVERED; 2].as_slice(), &[Outcome::Waiting; 4]].concat());
        blue.post(6, 1526);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [DELIVERED; 4], "{features:#x}");
        while red.tx.take().is_some() {}
        red.send(&plain(&red), &numbered(6, 1000), &[12], false);
        send_numbered(&mut red, 7..9);
        assert_eq!(pass(&mut from, &mut to).unwrap().1, [DELIVERED, DELIVERED, Outcome::Waiting]);
        let (counts, frames) = received_in_buffers(&mut blue);
        assert_eq!(counts, [2, 2, 2, 1, 1, 1, 1, 1], "{features:#x}");
        let sent = (0..8).map(|n| numbered(n, if n == 6 { 1000 } else { 6 }));
        assert!(frames.into_iter().eq(sent), "{features:#x}");
    }
}

/// Segments with these payloads whose checksums a device found right, as an uplink has them.
fn validated(payloads: &[usize]) -> Queue {
    let (source, ingress) = Sender::new();
    for payload in payloads {
        let mut sent = Sent::from(tcp(*payload));
        sent.frame.checksum = Checksum::Validated;
        source.send(sent);
    }
    let egress = Box::new(FakeEgress::new(|_, _| Ok(DELIVERED)));
    Queue { ingress, egress }
}

/// Small frames, one with a body in one buffer, and one in several buffers are written in three places.
#[test]
fn a_guest_without_checksum_offload_gets_headers_without_flags() {
    for features in BOTH.into_iter().flat_map(|both| [both, both & !GUEST_CSUM & !GUEST_TSO4]) {
        let mut blue = Vm::boot(features);
        let mut to = blue.served(1);
        blue.post(16, 1000);
        let lengths = [6, 7, 800, 8, 1400];
        assert_eq!(pass(&mut validated(&lengths), &mut to).unwrap().1, [DELIVERED; 5]);
        let flags = if features & GUEST_CSUM == 0 { 0 } else { DATA_VALID };
        for payload in lengths {
            let (metadata, bytes) = blue.receive().unwrap();
            assert_eq!((metadata[0], bytes), (flags, tcp(payload)), "{features:#x} {payload}");
        }
    }
}

/// Its word would keep the receiver from verifying checksums that are wrong, and have such segments merged into one that is right.
#[test]
fn what_a_guest_says_of_its_own_checksum_is_not_passed_on() {
    for features in BOTH {
        let (mut red, mut blue) = (Vm::boot(features), Vm::boot(features));
        let (mut from, mut to) = (red.served(1), blue.served(1));
        blue.post(16, 1000);
        // In one buffer, which is read in another place, and in two.
        for cuts in [&[][..], &[12]] {
            let mut metadata = plain(&red);
            metadata[0] = DATA_VALID;
            red.send(&metadata, &tcp(6), cuts, false);
            assert_eq!(pass(&mut from, &mut to).unwrap().1, [DELIVERED]);
            let (metadata, bytes) = blue.receive().unwrap();
            assert_eq!((metadata[0], bytes), (0, tcp(6)), "{features:#x} {cuts:?}");
        }
    }
}
