//! Frames that were merged from segments, on their way to a virtual machine.

use std::sync::Arc;
use std::time::Duration;

use offload::{Checksum, Gso, GsoKind};
use port::{Body, FRAME_MAX, Frame, HEADER_MAX, Merging, Offer, Outcome, Piece};
use shm::Region;

use crate::common::{LINUX, MRG_RXBUF, RING_PACKED, Vm, tcp};

/// Bytes of a segment's headers, and of its payload.
const HEADER: usize = 54;
const SIZE: u16 = 1448;

/// A frame of so many segments, each of which has a private header and a body in the region, and its bytes.
fn merged(count: usize) -> (Frame, Arc<[Region]>, Vec<u8>) {
    let whole = tcp(count * usize::from(SIZE));
    let region = Region::anonymous(count * 2048).unwrap();
    let segment = |n: usize| {
        let start = HEADER + n * usize::from(SIZE);
        [&whole[..HEADER], &whole[start..start + usize::from(SIZE)]].concat()
    };
    let mut merged = Frame::empty();
    for n in 0..count {
        let bytes = segment(n);
        let mut frame = Frame::empty();
        frame.set_header(&bytes[..HEADER_MAX]).unwrap();
        frame.len = u32::try_from(bytes.len()).unwrap();
        region.copy_in(n * 2048, &bytes[HEADER_MAX..]).unwrap();
        let len = u16::try_from(bytes.len() - HEADER_MAX).unwrap();
        frame.pieces.push(Piece::in_region(0, n as u64 * 2048, len));
        match n {
            0 => merged.begin_merge(&frame),
            _ => assert!(merged.append(&frame)),
        }
    }
    merged.end_merge(Gso { kind: GsoKind::TcpV4, size: SIZE });
    (merged, [region].into(), whole)
}

#[test]
fn a_merged_frame_arrives_whole_in_buffers_of_any_kind() {
    for features in [LINUX, LINUX | RING_PACKED, LINUX & !MRG_RXBUF] {
        for (count, buffer) in [(2, 1526), (2, 4096), (45, 1526), (20, 40_000)] {
            let mut blue = Vm::boot(features);
            let mut to = blue.served(1);
            let (frame, regions, whole) = merged(count);
            if features & MRG_RXBUF == 0 {
                blue.post_large();
            } else if buffer > 2048 {
                blue.post(1, buffer);
            } else {
                blue.post(64, buffer);
            }
            let mut offers = [Offer::new(&frame)];
            to.egress.deliver(Body::Regions(&regions), &mut offers, Duration::ZERO).unwrap();
            assert_eq!(offers[0].outcome, Outcome::Delivered, "{features:#x} {count} {buffer}");
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
