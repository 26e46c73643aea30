//! UDP segmentation against a segmenter that builds each datagram byte by byte, and against frames that contradict themselves.

use crate::common::{Network, l3_offset, network, parse, payload, transport_checksums};
use offload::{Error, Gso, GsoKind, MAX_HEADER, Segmenter};
use proptest::prelude::*;
use wire::headers::Headers;

const HEADER_LEN: usize = 8;

fn kind(network: &Network) -> GsoKind {
    if network.v6 { GsoKind::UdpV6 } else { GsoKind::UdpV4 }
}

fn segmenter(frame: &[u8], gso: Gso) -> Result<Segmenter<'_>, Error> {
    Segmenter::new(frame, &Headers::parse(frame).expect("whole headers"), gso)
}

fn gathered(frame: &[u8], mut segmenter: Segmenter<'_>) -> Vec<Vec<u8>> {
    let mut header = [0xee; MAX_HEADER];
    let next = || {
        let segment = segmenter.next(&mut header)?;
        Some([&header[..segment.header_len], &frame[segment.payload]].concat())
    };
    std::iter::from_fn(next).collect()
}

/// The ones' complement sum of big-endian words.
fn sum(bytes: &[u8]) -> u32 {
    let words =
        bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0)));
    // The carry goes round: all ones stay all ones, so that a header with this sum has the checksum 0.
    words.fold(0, |sum, word| (sum + word) % 0x1_0000 + (sum + word) / 0x1_0000)
}

fn put(bytes: &mut [u8], at: usize, value: usize) {
    bytes[at..at + 2].copy_from_slice(&u16::try_from(value).expect("16 bits").to_be_bytes());
}

/// Where the datagram begins.
fn l4_offset(network: &Network) -> usize {
    let options = usize::from(network.options);
    l3_offset(network) + if network.v6 { 40 + 8 * options } else { 20 + 4 * options }
}

/// What Linux's `__udp_gso_segment` and its callers for IPv4 and IPv6 make of a frame.
fn naive(frame: &[u8], network: &Network, size: usize, payload_len: usize) -> Vec<Vec<u8>> {
    let (l3, l4) = (l3_offset(network), l4_offset(network));
    let payload = &frame[l4 + HEADER_LEN..][..payload_len];
    let mut chunks: Vec<_> = payload.chunks(size).collect();
    if chunks.is_empty() {
        chunks.push(&[]);
    }
    let mut segments = Vec::new();
    for (n, chunk) in chunks.into_iter().enumerate() {
        let mut bytes = [&frame[..l4 + HEADER_LEN], chunk].concat();
        let len = HEADER_LEN + chunk.len();
        let addresses = if network.v6 {
            put(&mut bytes, l3 + 4, l4 - l3 - 40 + len);
            l3 + 8..l3 + 40
        } else {
            put(&mut bytes, l3 + 2, l4 - l3 + len);
            put(&mut bytes, l3 + 4, (usize::from(network.ident) + n) & 0xffff);
            put(&mut bytes, l3 + 10, 0);
            let checksum = 0xffff - sum(&bytes[l3..l4]);
            put(&mut bytes, l3 + 10, checksum as usize);
            l3 + 12..l3 + 20
        };
        put(&mut bytes, l4 + 4, len);
        put(&mut bytes, l4 + 6, 0);
        let pseudo =
            [&bytes[addresses], &[0, 17], &u16::try_from(len).expect("short").to_be_bytes()]
                .concat();
        let checksum = 0xffff - (sum(&pseudo) + sum(&bytes[l4..])) % 0xffff;
        put(&mut bytes, l4 + 6, checksum as usize);
        segments.push(bytes);
    }
    segments
}

proptest! {
    #[test]
    fn segments_are_what_a_naive_segmenter_makes(
        network in network(),
        ports in any::<(u16, u16)>(),
        payload_len in 0usize..12_000,
        size in 1u16..3000,
        padding in 0usize..8,
    ) {
        let size = size.max(u16::try_from(payload_len / 100).expect("short"));
        let mut frame = network.udp_frame(ports, &payload(payload_len));
        frame.extend(vec![0xff; padding]);
        let gso = Gso { kind: kind(&network), size };
        let segmenter = segmenter(&frame, gso).expect("a good frame");
        prop_assert_eq!(segmenter.segments(), payload_len.div_ceil(size.into()).max(1));
        let segments = gathered(&frame, segmenter.clone());
        prop_assert_eq!(&segments, &naive(&frame, &network, size.into(), payload_len));
        for segment in &segments {
            let (computed, held) = transport_checksums(&parse(segment));
            prop_assert_eq!(held, computed);
            prop_assert!(held != 0, "a checksum that says that there is none");
        }
        // In parts.
        let cut = segments.len() / 2;
        prop_assert_eq!(gathered(&frame, segmenter.clone().part(0..cut)), &segments[..cut]);
        prop_assert_eq!(gathered(&frame, segmenter.part(cut..usize::MAX)), &segments[cut..]);
    }

    #[test]
    fn headers_are_enough(
        network in network(),
        ports in any::<(u16, u16)>(),
        payload_len in 0usize..6000,
        size in 60u16..3000,
    ) {
        let frame = network.udp_frame(ports, &payload(payload_len));
        let headers = Headers::parse(&frame).expect("whole headers");
        let header = &frame[..headers.payload_offset.into()];
        let gso = Gso { kind: kind(&network), size };
        let partial = Segmenter::of_header(header, frame.len(), &headers, gso).expect("a good frame");
        let mut partial = gathered(&frame, partial);
        for segment in &mut partial {
            // As a NIC finishes it: over all from the transport's header on.
            let l4 = l4_offset(&network);
            let checksum = match 0xffff - sum(&segment[l4..]) {
                0 => 0xffff,
                checksum => checksum,
            };
            put(segment, l4 + 6, checksum as usize);
        }
        prop_assert_eq!(partial, naive(&frame, &network, size.into(), payload_len));
    }

    /// Any bytes with any metadata: an error or segments of the frame's own payload.
    #[test]
    fn nothing_panics(
        network in network(),
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        v6 in any::<bool>(),
        size in any::<u16>(),
    ) {
        let mut frame = network.udp_frame((1, 2), &payload(300));
        let other = Headers::parse(&frame);
        for (at, byte) in noise {
            let at = at.index(frame.len().min(100));
            frame[at] = byte;
        }
        let own = Headers::parse(&frame);
        frame.truncate(cut.index(frame.len() + 1));
        let kind = if v6 { GsoKind::UdpV6 } else { GsoKind::UdpV4 };
        for headers in [other, own].into_iter().flatten() {
            let Ok(segmenter) = Segmenter::new(&frame, &headers, Gso { kind, size }) else { continue };
            let bytes: usize = gathered(&frame, segmenter).iter().map(Vec::len).sum();
            prop_assert!(bytes <= frame.len() * (frame.len() + 1));
        }
    }
}

fn plain() -> Network {
    Network { vlan_tags: 0, v6: false, options: 0, ident: 0xffff, addresses: 0 }
}

fn refusal(frame: &[u8], gso: Gso) -> Error {
    segmenter(frame, gso).expect_err("a contradiction")
}

#[test]
fn identifications_wrap() {
    let frame = plain().udp_frame((1, 2), &payload(30));
    let gso = Gso { kind: GsoKind::UdpV4, size: 10 };
    let segments = gathered(&frame, segmenter(&frame, gso).unwrap());
    let idents: Vec<_> = segments.iter().map(|segment| &segment[18..20]).collect();
    assert_eq!(idents, [[0xff, 0xff], [0, 0], [0, 1]]);
}

#[test]
fn contradictions_are_refused() {
    let v4 = plain().udp_frame((1, 2), &payload(100));
    let v6 = Network { v6: true, ..plain() }.udp_frame((1, 2), &payload(100));
    let tcp_frame = |tcp: crate::common::Tcp| plain().tcp_frame(&tcp, &payload(100));
    let tcp = tcp_frame(crate::common::Tcp { seq: 1, flags: 0x18, options: 0 });
    let (udp_v4, udp_v6) =
        (Gso { kind: GsoKind::UdpV4, size: 50 }, Gso { kind: GsoKind::UdpV6, size: 50 });
    assert_eq!(refusal(&v4, udp_v6), Error::GsoKind);
    assert_eq!(refusal(&v6, udp_v4), Error::GsoKind);
    assert_eq!(refusal(&tcp, udp_v4), Error::GsoKind);
    assert_eq!(refusal(&v4, Gso { kind: GsoKind::TcpV4, size: 50 }), Error::GsoKind);
    assert_eq!(refusal(&v4, Gso { size: 0, ..udp_v4 }), Error::GsoSize);
    assert_eq!(refusal(&v4[..v4.len() - 1], udp_v4), Error::Length);
    assert_eq!(refusal(&v6[..v6.len() - 1], udp_v6), Error::Length);
}

/// The UDP length is neither shorter nor longer than what IP says, and not zero.
#[test]
fn a_udp_length_that_ip_denies_is_refused() {
    for (network, kind) in
        [(plain(), GsoKind::UdpV4), (Network { v6: true, ..plain() }, GsoKind::UdpV6)]
    {
        let good = network.udp_frame((1, 2), &payload(100));
        for len in [0, 7, 8, 107, 109, 65_535] {
            let mut frame = good.clone();
            put(&mut frame, l4_offset(&network) + 4, len);
            assert_eq!(refusal(&frame, Gso { kind, size: 50 }), Error::Length, "{len}");
        }
    }
}

/// A frame may be longer than an IP packet where IP says zero; a datagram cannot.
#[test]
fn a_datagram_too_long_for_its_length_is_refused() {
    let mut frame = plain().udp_frame((1, 2), &[]);
    frame[16..18].fill(0);
    frame.extend(payload(70_000));
    assert_eq!(refusal(&frame, Gso { kind: GsoKind::UdpV4, size: 1000 }), Error::Length);
}
