//! Frames that were merged from segments, on their way to a virtual machine.

use std::time::Duration;

use offload::Checksum;
use port::{Body, FRAME_MAX, Merging, Outcome};
use port_testing::{merged, offer};

use crate::common::{LINUX, MRG_RXBUF, RING_PACKED, Vm};

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
