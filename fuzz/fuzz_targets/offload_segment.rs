//! Any frame is segmented or refused, and segments are good frames that carry its payload in order.
//!
//! Input: GSO size (2 bytes, little-endian), then the frame. Run with `cargo fuzz run --sanitizer none offload_segment`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use offload::{Gso, GsoKind, MAX_HEADER, Segmenter, complete_checksum};
use wire::headers::{Headers, Network, Transport};

fuzz_target!(|input: &[u8]| {
    let Some((size, frame)) = input.split_first_chunk() else { return };
    let Ok(headers) = Headers::parse(frame) else { return };
    let kind = match (headers.network, headers.transport) {
        (Network::Ipv6, Transport::Udp) => GsoKind::UdpV6,
        (Network::Ipv6, _) => GsoKind::TcpV6,
        (_, Transport::Udp) => GsoKind::UdpV4,
        _ => GsoKind::TcpV4,
    };
    let gso = Gso { kind, size: u16::from_le_bytes(*size) };
    if let Ok(segmenter) = Segmenter::new(frame, &headers, gso) {
        check_segments(frame, &headers, segmenter);
    }
    let _ = complete_checksum(&mut frame.to_vec(), &headers);
});

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
