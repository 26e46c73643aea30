//! Frames that were merged from segments, on their way to a device.

use std::time::Duration;

use offload::Features;
use port::{Body, Egress, FRAME_MAX, Outcome};
use wire::virtio_net::gso;

use super::*;
use crate::TapEgress;

const SIZE: u16 = 1448;
const HEADER: usize = 54;

#[test]
fn a_frame_of_the_most_segments_is_one_system_call() {
    let platform = platform();
    let count = (FRAME_MAX - HEADER) / usize::from(SIZE);
    let (merged, regions, whole) = port_testing::merged(count, SIZE);
    // In pieces where they lie, and copied whole.
    for features in [Features::ALL, Features { sg: false, ..Features::ALL }] {
        let (tap, behind) = tap();
        let mut egress = TapEgress::new(platform.meter().clone(), tap, features);
        assert_eq!(egress.merging().unwrap().longest, FRAME_MAX);
        let outcome = offer(&mut egress, Body::Regions(&regions), &merged, Duration::ZERO);
        assert_eq!(outcome, Ok(Outcome::Delivered));
        let frames: Vec<_> = std::iter::from_fn(|| receive(&behind)).collect();
        if features.sg {
            let [(metadata, bytes)] = frames.as_slice() else { panic!("{}", frames.len()) };
            assert!(*bytes == whole);
            assert_eq!((metadata.gso_type, metadata.gso_size.get()), (gso::TCPV4, SIZE));
        } else {
            assert_eq!(frames.len(), count, "it is cut again");
            let payloads: Vec<_> = frames.iter().flat_map(|(_, bytes)| &bytes[HEADER..]).collect();
            assert!(payloads.into_iter().eq(&whole[HEADER..]));
        }
    }
}
