//! Any frame is segmented or refused, and segments are good frames that carry its payload in order. A checksum at any place is completed or
//! refused, and changes nothing that was parsed.
//!
//! Input: GSO size, `csum_start` and `csum_offset` (2 bytes each, little-endian), then the frame. Run with `cargo fuzz run --features libfuzzer --sanitizer none offload_segment`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use offload::vnet::{Unsupported, decode};
use offload::{Gso, GsoKind, MAX_HEADER, Segmenter, complete_checksum, complete_checksum_at};
use wire::headers::{Headers, Network, Transport};
use wire::virtio_net::{VirtioNetHdr, flags};

/// Bytes of a frame's private header.
const PRIVATE: usize = 128;

fuzz_target!(|input: &[u8]| {
    let Some((&[s0, s1, start0, start1, offset0, offset1], frame)) = input.split_first_chunk()
    else {
        return;
    };
    let Ok(headers) = Headers::parse(frame) else { return };
    let kind = match (headers.network, headers.transport) {
        (Network::Ipv6, Transport::Udp) => GsoKind::UdpV6,
        (Network::Ipv6, _) => GsoKind::TcpV6,
        (_, Transport::Udp) => GsoKind::UdpV4,
        _ => GsoKind::TcpV4,
    };
    let gso = Gso { kind, size: u16::from_le_bytes([s0, s1]) };
    if let Ok(segmenter) = Segmenter::new(frame, &headers, gso) {
        check_segments(frame, &headers, segmenter);
    }
    let _ = complete_checksum(&mut frame.to_vec(), &headers);
    let place = [[start0, start1], [offset0, offset1]].map(u16::from_le_bytes);
    check_place(frame, &headers, place);
});

fn check_place(frame: &[u8], headers: &Headers, [start, offset]: [u16; 2]) {
    let asked = VirtioNetHdr {
        flags: flags::NEEDS_CSUM,
        csum_start: start.into(),
        csum_offset: offset.into(),
        ..VirtioNetHdr::default()
    };
    let Err(asked) = decode(&asked, headers) else { return };
    assert_eq!(asked, Unsupported::Checksum { start, offset });
    let private = PRIVATE.min(frame.len());
    let Some(at) = asked.checksum_elsewhere(headers, private) else { return };
    let mut completed = frame.to_vec();
    assert_eq!(complete_checksum_at(&mut completed, at), Ok(()));
    let field = usize::from(start) + usize::from(offset);
    assert!(field + 2 <= private);
    assert_eq!(completed[..field], frame[..field]);
    assert_eq!(completed[field + 2..], frame[field + 2..]);
    assert_eq!(Headers::parse(&completed), Ok(*headers));
}

fn check_segments(frame: &[u8], headers: &Headers, mut segmenter: Segmenter<'_>) {
    let mut header = [0; MAX_HEADER];
    let mut end = usize::from(headers.payload_offset);
    while let Some(segment) = segmenter.next(&mut header) {
        assert_eq!(segment.payload.start, end);
        end = segment.payload.end;
        let bytes = [&header[..segment.header_len], &frame[segment.payload]].concat();
        assert_eq!(Headers::parse(&bytes), Ok(*headers));
        let mut again = bytes.clone();
        assert_eq!(complete_checksum(&mut again, headers), Ok(()));
        assert_eq!(again, bytes, "the checksum was not complete");
    }
    assert!(end <= frame.len());
}
