//! Segmentation against etherparse: every segment is what the original's headers and payload make it.

use std::ops::Range;

use crate::common::{Network, Tcp, network, parse, payload, tcp, transport_checksums};
use etherparse::{LinkExtHeader, NetHeaders, PacketHeaders, TcpHeader, TransportHeader};
use offload::{Error, Gso, GsoKind, MAX_HEADER, Segmenter, complete_checksum};
use proptest::prelude::*;
use wire::headers::Headers;

/// All segments, each gathered into a frame.
fn segments(frame: &[u8], gso: Gso) -> Result<Vec<Vec<u8>>, Error> {
    let headers = Headers::parse(frame).expect("whole headers");
    Ok(gathered(frame, Segmenter::new(frame, &headers, gso)?))
}

/// The same from the headers alone, with partial checksums.
fn segments_of_header(frame: &[u8], gso: Gso) -> Result<Vec<Vec<u8>>, Error> {
    let headers = Headers::parse(frame).expect("whole headers");
    let header = &frame[..headers.payload_offset.into()];
    Ok(gathered(frame, Segmenter::of_header(header, frame.len(), &headers, gso)?))
}

fn gathered(frame: &[u8], mut segmenter: Segmenter<'_>) -> Vec<Vec<u8>> {
    let expected = segmenter.segments();
    let mut header = [0xee; MAX_HEADER];
    let mut segments = Vec::new();
    while let Some(segment) = segmenter.next(&mut header) {
        segments.push([&header[..segment.header_len], &frame[segment.payload]].concat());
        assert_eq!(segmenter.segments(), expected - segments.len());
    }
    assert_eq!(segments.len(), expected);
    assert_eq!(segmenter.next(&mut header), None);
    segments
}

/// A partial checksum, finished the way a NIC does: over all from the transport header on.
fn finish_partial(segment: &mut [u8]) {
    let headers = Headers::parse(segment).expect("whole headers");
    let at = headers.checksum_location().expect("TCP");
    let sum = wire::checksum::Sum::of(&segment[at.start.into()..]).finish();
    let field = usize::from(at.start + at.offset);
    segment[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

fn kind(network: &Network) -> GsoKind {
    if network.v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 }
}

/// A frame of TCP with `payload_len` bytes of payload, and what its network header is.
fn frame(payload_len: Range<usize>) -> impl Strategy<Value = (Network, Vec<u8>)> {
    (network(), tcp(), payload_len).prop_map(|(network, tcp, payload_len)| {
        let frame = network.tcp_frame(&tcp, &payload(payload_len));
        (network, frame)
    })
}

fn gso() -> impl Strategy<Value = Gso> {
    let kind = prop_oneof![Just(GsoKind::TcpV4), Just(GsoKind::TcpV6)];
    (kind, any::<u16>()).prop_map(|(kind, size)| Gso { kind, size })
}

fn tcp_of<'a>(headers: &'a PacketHeaders<'_>) -> &'a TcpHeader {
    let Some(TransportHeader::Tcp(tcp)) = &headers.transport else { panic!("no TCP: {headers:?}") };
    tcp
}

/// The original's network header as segment `index` of `len` payload bytes must have it.
fn expected_net(original: &PacketHeaders<'_>, index: u16, len: u16) -> NetHeaders {
    let tcp_len = tcp_of(original).header_len_u16() + len;
    match original.net.clone().expect("IP") {
        NetHeaders::Ipv4(mut ip, extensions) => {
            ip.total_len = u16::try_from(ip.header_len()).expect("at most 60") + tcp_len;
            ip.identification = ip.identification.wrapping_add(index);
            ip.header_checksum = ip.calc_header_checksum();
            NetHeaders::Ipv4(ip, extensions)
        }
        NetHeaders::Ipv6(mut ip, extensions) => {
            let extensions_len = u16::try_from(extensions.header_len()).expect("short");
            ip.payload_length = extensions_len + tcp_len;
            NetHeaders::Ipv6(ip, extensions)
        }
        NetHeaders::Arp(arp) => panic!("no IP: {arp:?}"),
    }
}

fn expected_tcp(original: &TcpHeader, offset: usize, is_last: bool, checksum: u16) -> TcpHeader {
    let mut tcp = original.clone();
    let offset_u32 = u32::try_from(offset).expect("short");
    tcp.sequence_number = tcp.sequence_number.wrapping_add(offset_u32);
    tcp.fin &= is_last;
    tcp.psh &= is_last;
    tcp.cwr &= offset == 0;
    tcp.checksum = checksum;
    tcp
}

fn vlans(headers: &PacketHeaders<'_>) -> Vec<LinkExtHeader> {
    headers.link_exts.iter().cloned().collect()
}

proptest! {
    #[test]
    fn segments_are_the_original_cut_up(
        network in network(),
        tcp in tcp(),
        payload_len in 0usize..12_000,
        size in 1u16..3000,
        padding in 0usize..8,
    ) {
        // Keeps one-byte segments from making the test slow.
        let size = size.max(u16::try_from(payload_len / 100).expect("short"));
        let body = payload(payload_len);
        let mut frame = network.tcp_frame(&tcp, &body);
        frame.extend(vec![0xff; padding]);
        let original = parse(&frame);
        let segments = segments(&frame, Gso { kind: kind(&network), size }).expect("a good frame");
        prop_assert_eq!(segments.len(), payload_len.div_ceil(size.into()).max(1));

        let mut offset = 0;
        for (index, segment) in segments.iter().enumerate() {
            let headers = parse(segment);
            let len = headers.payload.slice().len();
            let is_last = index + 1 == segments.len();
            prop_assert!(len == usize::from(size) || is_last);
            prop_assert_eq!(&headers.link, &original.link);
            prop_assert_eq!(vlans(&headers), vlans(&original));
            let index = u16::try_from(index).expect("few");
            let len_u16 = u16::try_from(len).expect("short");
            prop_assert_eq!(headers.net.clone(), Some(expected_net(&original, index, len_u16)));
            let (computed, held) = transport_checksums(&headers);
            prop_assert_eq!(held, computed);
            let expected = expected_tcp(tcp_of(&original), offset, is_last, computed);
            prop_assert_eq!(tcp_of(&headers), &expected);
            prop_assert_eq!(headers.payload.slice(), &body[offset..offset + len]);
            offset += len;
        }
        prop_assert_eq!(offset, payload_len);
    }

    #[test]
    fn headers_are_enough(
        (network, mut frame) in frame(0..6000),
        size in 60u16..3000,
        padding in 0usize..8,
    ) {
        frame.extend(vec![0xff; padding]);
        let gso = Gso { kind: kind(&network), size };
        let mut segments_of_header = segments_of_header(&frame, gso).expect("a good frame");
        let segments = segments(&frame, gso).expect("a good frame");
        prop_assert_ne!(&segments_of_header, &segments);
        segments_of_header.iter_mut().for_each(|segment| finish_partial(segment));
        prop_assert_eq!(segments_of_header, segments);
    }

    /// Frames too long for IP's length field carry zero in it; what they say of themselves is then the frame's end.
    #[test]
    fn a_part_is_what_is_left_after_the_segments_before_it(
        (network, frame) in frame(0..12_000),
        size in 100u16..3000,
        start in 0usize..130,
        len in 0usize..130,
        inner in 0usize..130,
    ) {
        let gso = Gso { kind: kind(&network), size };
        let headers = Headers::parse(&frame).expect("whole headers");
        let header = &frame[..headers.payload_offset.into()];
        let partial = Segmenter::of_header(header, frame.len(), &headers, gso).expect("good");
        for segmenter in [Segmenter::new(&frame, &headers, gso).expect("good"), partial] {
            let all = gathered(&frame, segmenter.clone());
            let from = start.min(all.len());
            let to = (start + len).min(all.len());
            let part = segmenter.clone().part(start..start + len);
            prop_assert_eq!(part.behind(), all.len() - to);
            prop_assert!(gathered(&frame, part.clone()) == all[from..to]);
            // A part of a part, and one that begins behind segments that have been made.
            let inner = inner.min(to - from);
            prop_assert!(gathered(&frame, part.clone().part(inner..200)) == all[from + inner..to]);
            let mut begun = segmenter;
            for _ in 0..inner {
                begun.next(&mut [0; MAX_HEADER]);
            }
            prop_assert!(gathered(&frame, begun.part(1..2)) == all[(inner + 1).min(all.len())..(inner + 2).min(all.len())]);
        }
    }

    #[test]
    fn a_zero_ip_length_means_the_whole_frame((network, mut frame) in frame(0..5000)) {
        let gso = Gso { kind: kind(&network), size: 1000 };
        let with_length = segments(&frame, gso);
        let field = crate::common::l3_offset(&network) + if network.v6 { 4 } else { 2 };
        frame[field..field + 2].fill(0);
        prop_assert_eq!(segments(&frame, gso), with_length);
    }

    /// Any bytes with any metadata: an error or segments of the frame's own payload.
    #[test]
    fn nothing_panics(
        (_, mut frame) in frame(300..301),
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        parsed_from in any::<prop::sample::Index>(),
        gso in gso(),
    ) {
        let other = Headers::parse(&frame);
        for (at, byte) in noise {
            let at = at.index(120.min(frame.len()));
            frame[at] = byte;
        }
        let own = Headers::parse(&frame);
        frame.truncate(cut.index(frame.len() + 1));
        for headers in [other, own, Headers::parse(&frame[parsed_from.index(frame.len() + 1)..])] {
            let Ok(headers) = headers else { continue };
            exhaust(&frame, &headers, gso);
            let _ = complete_checksum(&mut frame.clone(), &headers);
        }
    }

    #[test]
    fn nothing_panics_on_arbitrary_bytes(
        frame in prop::collection::vec(any::<u8>(), 0..200),
        offsets in any::<[u8; 3]>(),
        v6 in any::<bool>(),
        size in any::<u16>(),
    ) {
        let (network, kind) = match v6 {
            true => (wire::headers::Network::Ipv6, GsoKind::TcpV6),
            false => (wire::headers::Network::Ipv4, GsoKind::TcpV4),
        };
        let headers = Headers {
            network,
            transport: wire::headers::Transport::Tcp,
            vlan: None,
            l3_offset: offsets[0],
            l4_offset: offsets[1],
            payload_offset: offsets[2],
        };
        exhaust(&frame, &headers, Gso { kind, size });
        let _ = complete_checksum(&mut frame.clone(), &headers);
    }
}

/// Takes all segments, and checks that their payloads follow each other within the frame.
fn exhaust(frame: &[u8], headers: &Headers, gso: Gso) {
    let short = &frame[..frame.len().min(headers.payload_offset.into())];
    let of_header = Segmenter::of_header(short, frame.len(), headers, gso);
    for segmenter in [Segmenter::new(frame, headers, gso), of_header].into_iter().flatten() {
        exhaust_one(frame, headers, segmenter);
    }
}

fn exhaust_one(frame: &[u8], headers: &Headers, mut segmenter: Segmenter<'_>) {
    let mut header = [0; MAX_HEADER];
    let mut end = usize::from(headers.payload_offset);
    while let Some(segment) = segmenter.next(&mut header) {
        assert_eq!(
            (segment.header_len, segment.payload.start),
            (headers.payload_offset.into(), end)
        );
        end = segment.payload.end;
    }
    assert!(end <= frame.len());
}

fn plain() -> (Network, Tcp) {
    let network = Network { vlan_tags: 0, v6: false, options: 0, ident: 0xffff, addresses: 0 };
    (network, Tcp { seq: u32::MAX, flags: 0x18, options: 0 })
}

fn refusal(frame: &[u8], gso: Gso) -> Error {
    segments(frame, gso).expect_err("a contradiction")
}

#[test]
fn identification_and_sequence_wrap() {
    let (network, tcp) = plain();
    let frame = network.tcp_frame(&tcp, &payload(30));
    let segments = segments(&frame, Gso { kind: GsoKind::TcpV4, size: 10 }).expect("a good frame");
    let idents: Vec<_> = segments.iter().map(|segment| segment[18..20].to_vec()).collect();
    assert_eq!(idents, [[0xff, 0xff], [0, 0], [0, 1]]);
    let sequences: Vec<_> = segments.iter().map(|segment| segment[38..42].to_vec()).collect();
    assert_eq!(sequences, [[0xff; 4], [0, 0, 0, 9], [0, 0, 0, 19]]);
}

#[test]
fn a_frame_without_payload_is_one_segment() {
    let (network, tcp) = plain();
    let frame = network.tcp_frame(&tcp, &[]);
    let segments = segments(&frame, Gso { kind: GsoKind::TcpV4, size: 10 });
    assert_eq!(segments, Ok(vec![frame]));
}

/// Congestion marks: CWR responds to one ECE and is sent once, ECE repeats until it is answered.
#[test]
fn cwr_is_on_the_first_and_fin_psh_on_the_last() {
    let (network, tcp) = plain();
    let tcp = Tcp { flags: 0xd9, ..tcp };
    let frame = network.tcp_frame(&tcp, &payload(30));
    let segments = segments(&frame, Gso { kind: GsoKind::TcpV4, size: 10 }).expect("a good frame");
    let flags: Vec<_> = segments.iter().map(|segment| segment[47]).collect();
    assert_eq!(flags, [0xd0, 0x50, 0x59]);
}

#[test]
fn contradictions_are_refused() {
    let (network, tcp) = plain();
    let v4 = network.tcp_frame(&tcp, &payload(100));
    let v6 = Network { v6: true, ..network.clone() }.tcp_frame(&tcp, &payload(100));
    let udp = network.udp_frame((1, 2), &payload(100));
    let (tcp_v4, tcp_v6) =
        (Gso { kind: GsoKind::TcpV4, size: 50 }, Gso { kind: GsoKind::TcpV6, size: 50 });
    assert_eq!(refusal(&v4, tcp_v6), Error::GsoKind);
    assert_eq!(refusal(&v6, tcp_v4), Error::GsoKind);
    assert_eq!(refusal(&udp, tcp_v4), Error::GsoKind);
    assert_eq!(refusal(&v4, Gso { size: 0, ..tcp_v4 }), Error::GsoSize);
    assert_eq!(refusal(&v4[..v4.len() - 1], tcp_v4), Error::Length);
    assert_eq!(refusal(&v6[..v6.len() - 1], tcp_v6), Error::Length);
}

#[test]
fn headers_of_another_frame_are_refused() {
    let (network, tcp) = plain();
    let frame = network.tcp_frame(&tcp, &payload(100));
    let tagged = Network { vlan_tags: 1, ..network }.tcp_frame(&tcp, &payload(100));
    let headers = Headers::parse(&tagged).expect("whole headers");
    let gso = Gso { kind: GsoKind::TcpV4, size: 50 };
    assert_eq!(Segmenter::new(&frame, &headers, gso).err(), Some(Error::Headers));
    assert_eq!(Segmenter::new(&tagged[..60], &headers, gso).err(), Some(Error::Length));
    assert_eq!(Segmenter::new(&tagged[..57], &headers, gso).err(), Some(Error::Headers));
    let of_header =
        |header, frame_len| Segmenter::of_header(header, frame_len, &headers, gso).err();
    assert_eq!(of_header(&tagged[..58], tagged.len()), None);
    assert_eq!(of_header(&tagged[..57], tagged.len()), Some(Error::Headers));
    assert_eq!(of_header(&tagged[..58], 57), Some(Error::Length));
}

/// The offsets fit the frame, but its variable-length headers say otherwise.
#[test]
fn offsets_that_the_headers_deny_are_refused() {
    let (network, tcp) = plain();
    let frame = network.tcp_frame(&tcp, &payload(100));
    let headers = Headers::parse(&frame).expect("whole headers");
    let (ihl, data_offset) = (14, 14 + 20 + 12);
    for (at, byte) in [(ihl, 0x4f), (data_offset, 0xf0)] {
        let mut changed = frame.clone();
        changed[at] = byte;
        let gso = Gso { kind: GsoKind::TcpV4, size: 50 };
        assert_eq!(Segmenter::new(&changed, &headers, gso).err(), Some(Error::Headers));
        assert_eq!(complete_checksum(&mut changed, &headers), Err(Error::Headers));
    }
}

/// A frame may be longer than an IP packet; its segments may not.
#[test]
fn a_segment_too_long_for_ip_is_refused() {
    let (network, tcp) = plain();
    let mut frame = network.tcp_frame(&tcp, &[]);
    frame[16..18].fill(0);
    frame.extend(payload(70_000));
    let longest = u16::MAX - 40;
    let gso = |size| Gso { kind: GsoKind::TcpV4, size };
    assert_eq!(segments(&frame, gso(longest)).map(|segments| segments.len()), Ok(2));
    assert_eq!(refusal(&frame, gso(longest + 1)), Error::TooLong);
}
