//! No parser panics on any bytes, and no accessor on bytes that `new_checked` accepted.

use proptest::prelude::*;
use wire::checksum::Sum;
use wire::headers::Headers;
use wire::netif::{CtrlRequest, Extra, ExtraInfo};
use wire::toeplitz::{MICROSOFT_KEY, Table};
use wire::{arp, ethernet, icmp, ipv4, ipv6, ndp, tcp, udp};
use zerocopy::FromBytes;

static TOEPLITZ: Table = Table::new(&MICROSOFT_KEY);

/// Ethernet alone, and the start of IP packets after zero, one and two tags.
const FRAME_PREFIXES: &[&[u8]] = &[
    b"",
    b"ddddddssssss\x08\x00",
    b"ddddddssssss\x08\x00\x45\0\0\0\0\0\0\0\x40\x06",
    b"ddddddssssss\x81\0\0\x01\x08\x00\x46",
    b"ddddddssssss\x88\xa8\0\x01\x81\0\0\x02\x86\xdd\x60",
    b"ddddddssssss\x86\xdd\x60\0\0\0\0\0\0",
    b"ddddddssssss\x86\xdd\x60\0\0\0\0\x80\x2b",
];

/// Segments up to the data offset.
const TCP_PREFIXES: &[&[u8]] =
    &[b"", b"ppppssssaaaa\x50", b"ppppssssaaaa\x80", b"ppppssssaaaa\xf0"];

/// Bytes after a prefix that passes a parser's first checks, with frequent small values:
/// lengths and offsets then often point near an end.
fn bytes_after(prefixes: &'static [&'static [u8]]) -> impl Strategy<Value = Vec<u8>> {
    // One draw for each: a choice of strategies takes twice the time.
    let byte = any::<u16>().prop_map(u16::to_le_bytes).prop_map(|[kind, byte]| match kind % 3 {
        0 => byte,
        1 => byte % 64,
        _ => 0,
    });
    (prop::sample::select(prefixes), prop::collection::vec(byte, 0..200))
        .prop_map(|(prefix, rest)| [prefix, &rest].concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_headers_or_an_error(
        bytes in bytes_after(FRAME_PREFIXES),
        other in prop::collection::vec(any::<u8>(), 0..100),
        longer in prop_oneof![Just(0usize), 0usize..70_000],
    ) {
        if let Ok(headers) = Headers::parse_start(&bytes, bytes.len() + longer) {
            prop_assert!(headers.l3_offset <= headers.l4_offset);
            prop_assert!(headers.l4_offset <= headers.payload_offset);
            prop_assert!(usize::from(headers.payload_offset) <= bytes.len());
            if let Some(checksum) = headers.checksum_location() {
                let end = checksum.start + checksum.offset + 2;
                prop_assert!(end <= headers.payload_offset.into());
            }
            let addresses = headers.addresses(&bytes).unwrap_or_default();
            let flow = [addresses, headers.ports(&bytes).unwrap_or_default()].concat();
            let expected = TOEPLITZ.hash(&flow);
            prop_assert_eq!(headers.flow_hash(&bytes, &TOEPLITZ), expected);
            let _ = headers.flow_hash(&other, &TOEPLITZ);
        }
    }

    #[test]
    fn any_bytes_are_an_ethernet_frame_or_an_error(bytes in bytes_after(&[&[]])) {
        if let Ok(mut frame) = ethernet::Frame::new_checked(bytes) {
            let _ = (frame.dst(), frame.src(), frame.ethertype());
            prop_assert_eq!(frame.payload().len(), frame.payload_mut().len());
        }
    }

    #[test]
    fn any_bytes_are_an_arp_packet_or_an_error(bytes in bytes_after(&[&[], b"\0\x01\x08\0\x06\x04"])) {
        if let Ok(packet) = arp::Packet::new_checked(bytes) {
            let _ = (packet.operation(), packet.sender_mac(), packet.sender_ip());
            let _ = (packet.target_mac(), packet.target_ip());
        }
    }

    #[test]
    fn any_bytes_are_an_ipv4_packet_or_an_error(bytes in bytes_after(&[&[], b"\x45\0\0", b"\x46\0\0", b"\x4f\0\0"])) {
        if let Ok(mut packet) = ipv4::Packet::new_checked(bytes) {
            let lens = packet.header_len() + packet.payload().len();
            prop_assert_eq!(lens, usize::from(packet.total_len()));
            let _ = (packet.traffic_class(), packet.is_fragment(), packet.checksum());
            packet.fill_checksum();
            prop_assert!(packet.verify_checksum());
            prop_assert_eq!(packet.payload().len(), packet.payload_mut().len());
        }
    }

    #[test]
    fn any_bytes_are_an_ipv6_packet_or_an_error(bytes in bytes_after(&[&[], b"\x60\0\0\0\0", b"\x60\0\0\0\0\x80\0"])) {
        if let Ok(mut packet) = ipv6::Packet::new_checked(bytes) {
            let _ = (packet.version(), packet.src(), packet.dst());
            prop_assert_eq!(packet.payload().len(), packet.payload_mut().len());
        }
    }

    #[test]
    fn any_bytes_are_an_ndp_message_or_an_error(bytes in bytes_after(&[&[], b"\x85\0\0\0\0\0\0\0\x01\x01", b"\x86", b"\x87", b"\x88"])) {
        if let Ok(packet) = ndp::Packet::new_checked(bytes) {
            let _ = (packet.flags(), packet.target());
            for option in packet.options().flatten() {
                let _ = option.link_address();
            }
        }
    }

    #[test]
    fn a_walk_over_any_bytes_ends(
        next: u8,
        bytes in bytes_after(&[&[], b"\x2b\0", b"\x3c\x01"]),
        offset in 0usize..300,
    ) {
        let walk = ipv6::walk_extensions(wire::ip::Protocol(next), &bytes, offset);
        if let Ok(upper) = walk {
            prop_assert!(upper.offset <= offset.max(bytes.len()));
        }
    }

    #[test]
    fn any_bytes_are_a_tcp_segment_or_an_error(bytes in bytes_after(TCP_PREFIXES)) {
        if let Ok(mut segment) = tcp::Packet::new_checked(bytes) {
            let _ = (segment.checksum(), segment.urgent());
            segment.fill_checksum(Sum::new());
            prop_assert_eq!(segment.payload().len(), segment.payload_mut().len());
        }
    }

    #[test]
    fn any_bytes_are_a_udp_datagram_or_an_error(bytes in bytes_after(&[&[], b"pppp\0"])) {
        if let Ok(mut datagram) = udp::Packet::new_checked(bytes) {
            datagram.fill_checksum(Sum::new());
            prop_assert!(datagram.checksum() != 0);
            prop_assert_eq!(datagram.payload().len(), datagram.payload_mut().len());
        }
    }

    #[test]
    fn any_bytes_are_an_icmp_message_or_an_error(bytes in bytes_after(&[&[], &[8, 0], &[129, 0]])) {
        if let Ok(mut message) = icmp::Packet::new_checked(bytes) {
            let _ = message.checksum();
            message.fill_checksum(Sum::new());
            prop_assert_eq!(message.payload().len(), message.payload_mut().len());
            for version in [icmp::Version::V4, icmp::Version::V6] {
                if let Some(repr) = icmp::Repr::parse(&message, version) {
                    repr.emit(&mut message, version);
                    prop_assert_eq!(icmp::Repr::parse(&message, version), Some(repr));
                }
            }
        }
    }

    #[test]
    fn any_netif_slot_that_decodes_encodes_to_the_same(bytes: [u8; 16]) {
        let extra = ExtraInfo::read_from_prefix(&bytes).unwrap().0;
        if let Ok(decoded) = Extra::decode(&extra) {
            let encoded = decoded.encode(extra.more()).unwrap();
            prop_assert_eq!(Extra::decode(&encoded), Ok(decoded));
        }
        let mut request = CtrlRequest::read_from_bytes(&bytes).unwrap();
        request.kind %= 12;
        if let Ok(message) = request.message() {
            prop_assert_eq!(message.request(request.id).message(), Ok(message));
        }
    }
}
