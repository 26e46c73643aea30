//! Tags that come and go, beside a naive model that moves bytes.

use frame::{Frame, HEADER_MAX};
use offload::vnet::Unsupported;
use offload::{Checksum, Features};
use proptest::prelude::*;
use wire::headers::{ChecksumLocation, Headers};

/// A frame of these bytes, with as much of them in the private header as a port puts there. The rest has no memory.
fn framed(bytes: &[u8]) -> Option<Frame> {
    let mut frame = Frame::empty();
    let header = &bytes[..bytes.len().min(HEADER_MAX)];
    frame.bytes[..header.len()].copy_from_slice(header);
    frame.header_len = header.len().try_into().unwrap();
    frame.len = bytes.len().try_into().unwrap();
    frame.headers = Headers::parse_start(header, bytes.len()).ok()?;
    Some(frame)
}

/// The model: four bytes after the addresses.
fn tagged(bytes: &[u8], vlan: u16) -> Vec<u8> {
    let [high, low] = vlan.to_be_bytes();
    [&bytes[..12], &[0x81, 0x00, high, low], &bytes[12..]].concat()
}

/// Frames of TCP and UDP over both IPs, ARP, and noise, perhaps with tags.
fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
    let ethertypes = [[0x08, 0x00], [0x86, 0xdd], [0x08, 0x06], [0x88, 0xb5]];
    let tags = prop::collection::vec((prop::bool::ANY, 0u16..4096), 0..3);
    let packet = (0..ethertypes.len(), prop_oneof![Just(6u8), Just(17u8), any::<u8>()]);
    (tags, packet, prop::collection::vec(any::<u8>(), 60..400)).prop_map(
        move |(tags, (kind, protocol), mut rest)| {
            match kind {
                0 => {
                    let len = u16::try_from(rest.len()).unwrap();
                    rest[..4].copy_from_slice(&[
                        0x45,
                        0,
                        len.to_be_bytes()[0],
                        len.to_be_bytes()[1],
                    ]);
                    rest[6..8].copy_from_slice(&[0, 0]);
                    rest[9] = protocol;
                    rest[32] = 0x50;
                }
                1 => {
                    let len = u16::try_from(rest.len() - 40).unwrap().to_be_bytes();
                    rest[..7].copy_from_slice(&[0x60, 0, 0, 0, len[0], len[1], protocol]);
                    rest[52] = 0x50;
                }
                _ => {}
            }
            let mut bytes = vec![2; 12];
            for (is_service, tag) in tags {
                bytes.extend(if is_service { [0x88, 0xa8] } else { [0x81, 0x00] });
                bytes.extend(tag.to_be_bytes());
            }
            bytes.extend(ethertypes[kind]);
            bytes.extend(rest);
            bytes
        },
    )
}

proptest! {
    /// A tag is four bytes; all that is known of the frame is as if it had come with them.
    #[test]
    fn a_frame_with_a_tag_is_as_if_it_had_come_so(bytes in any_bytes(), vlan in 1u16..4095) {
        let Some(frame) = framed(&bytes) else { return Ok(()) };
        let with = frame.with_tag(vlan).unwrap();
        let model = tagged(&bytes, vlan);
        prop_assert_eq!(with.len as usize, model.len());
        prop_assert_eq!(with.header(), &model[..with.header_len.into()]);
        prop_assert_eq!(usize::from(with.header_len), bytes.len().min(HEADER_MAX) + 4);
        prop_assert_eq!(with.vlan(), Some(vlan));
        prop_assert_eq!((with.is_tagged_twice(), with.gso, with.checksum), (frame.is_tagged(), frame.gso, frame.checksum));
        let came = Headers::parse_start(&model[..with.header_len.into()], model.len()).unwrap();
        prop_assert_eq!(with.headers, came);
        prop_assert_eq!(with.flow_hash(), frame.flow_hash(), "its queue is the same");
        for csum in [false, true] {
            let features = Features { sg: true, csum_v4: csum, csum_v6: csum, tso_v4: csum, tso_v6: csum, tagged: true, ..Features::NONE };
            prop_assert_eq!(with.need(features), frame.need(features));
        }
        let places = [&with, &frame].map(|one| one.headers.checksum_location().map(|at| at.start));
        prop_assert_eq!(places[0], places[1].map(|start| start + 4));
        // And back.
        let back = with.without_tag();
        prop_assert_eq!(back.header(), frame.header());
        prop_assert_eq!((back.len, back.headers), (frame.len, frame.headers));
    }

    #[test]
    fn a_tag_that_is_taken_out_leaves_what_was_inside(bytes in any_bytes(), vlan in 1u16..4095) {
        let model = tagged(&bytes, vlan);
        let Some(frame) = framed(&model) else { return Ok(()) };
        let without = frame.without_tag();
        prop_assert_eq!(without.len as usize, bytes.len());
        prop_assert_eq!(without.header(), &bytes[..without.header_len.into()]);
        prop_assert_eq!(without.is_tagged(), frame.is_tagged_twice());
        if let Some(inner) = framed(&bytes) {
            prop_assert_eq!(without.headers, inner.headers);
        }
    }
}

/// It covers the same bytes, in each form of the frame.
#[test]
fn a_checksum_elsewhere_moves_with_the_tags() {
    let bytes = [&[2; 12][..], &[0x81, 0, 0, 7, 0x88, 0x47], &[5; 110]].concat();
    let at = |start| ChecksumLocation { start, offset: 16 };
    let mut frame = framed(&bytes).unwrap();
    // The last bytes of the private header.
    assert!(frame.set_checksum_elsewhere(Unsupported::Checksum { start: 110, offset: 16 }));
    let with = frame.with_tag(9).unwrap();
    for (frame, start) in [(&with, 114), (&with.without_tag(), 110), (&frame.without_tag(), 106)] {
        assert_eq!((frame.checksum, frame.checksum_at), (Checksum::Elsewhere, at(start)));
        assert_eq!(frame.header_len, u8::try_from(start + 18).unwrap());
    }
    assert_eq!(frame.without_tag().without_tag().checksum_at, at(106));
}

#[test]
fn a_frame_without_room_gets_no_tag() {
    let mut frame = framed(&[2; 60]).unwrap();
    frame.len = 65_532;
    assert!(frame.with_tag(1).is_none());
    frame.len = 65_531;
    assert_eq!(frame.with_tag(1).unwrap().len, 65_535);
}

#[test]
fn tags_of_other_kinds_name_no_vlan() {
    let tag = |kind: u16, tag: u16| {
        let rest = [&kind.to_be_bytes()[..], &tag.to_be_bytes(), &[0x88, 0xb5], &[0; 50]].concat();
        framed(&[&[2; 12][..], &rest].concat()).unwrap()
    };
    assert_eq!((tag(0x8100, 0xe00a).vlan(), tag(0x8100, 0xe00a).is_tagged()), (Some(10), true));
    assert_eq!((tag(0x88a8, 10).vlan(), tag(0x88a8, 10).is_tagged()), (None, true));
    assert_eq!((tag(0x88b5, 10).vlan(), framed(&[2; 60]).unwrap().vlan()), (None, None));
}
