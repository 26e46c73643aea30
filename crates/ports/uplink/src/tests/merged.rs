//! Frames that were merged from segments, on their way to a device.

use std::time::Duration;

use offload::{Features, Gso, GsoKind};
use port::{Body, Egress, FRAME_MAX, Frame, HEADER_MAX, Offer, Outcome, Piece};
use shm::Region;
use wire::virtio_net::gso;

use super::*;
use crate::TapEgress;

const SIZE: usize = 1448;
const HEADER: usize = 54;

#[test]
fn a_frame_of_the_most_segments_is_one_system_call() {
    let platform = platform();
    let count = (FRAME_MAX - HEADER) / SIZE;
    let whole = tcp_frame(count * SIZE);
    let region = Region::anonymous(count * 2048).unwrap();
    let mut merged = Frame::empty();
    for n in 0..count {
        let start = HEADER + n * SIZE;
        let bytes = [&whole[..HEADER], &whole[start..start + SIZE]].concat();
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
    merged.end_merge(Gso { kind: GsoKind::TcpV4, size: 1448 });
    let regions: Arc<[Region]> = [region].into();
    // In pieces where they lie, and copied whole.
    for features in [Features::ALL, Features { sg: false, ..Features::ALL }] {
        let (tap, behind) = tap();
        let mut egress = TapEgress::new(platform.meter().clone(), tap, features);
        assert_eq!(egress.merging().unwrap().longest, FRAME_MAX);
        let mut offers = [Offer::new(&merged)];
        egress.deliver(Body::Regions(&regions), &mut offers, Duration::ZERO).unwrap();
        assert_eq!(offers[0].outcome, Outcome::Delivered);
        let frames: Vec<_> = std::iter::from_fn(|| receive(&behind)).collect();
        if features.sg {
            let [(metadata, bytes)] = frames.as_slice() else { panic!("{}", frames.len()) };
            assert!(*bytes == whole);
            assert_eq!((metadata.gso_type, metadata.gso_size.get()), (gso::TCPV4, 1448));
        } else {
            assert_eq!(frames.len(), count, "it is cut again");
            let payloads: Vec<_> = frames.iter().flat_map(|(_, bytes)| &bytes[HEADER..]).collect();
            assert!(payloads.into_iter().eq(&whole[HEADER..]));
        }
    }
}
