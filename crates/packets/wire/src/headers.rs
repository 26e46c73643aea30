//! The datapath's one parse of a frame.
//!
//! A backend copies the first bytes of a frame out of the guest's memory once, and parses that
//! copy. Everything after it (lookup, steering, checksum and segmentation offload) uses the
//! [`Headers`] and the copy, never the guest's bytes again.

mod transport;

use core::ops::Range;

use transport::TransportHeader;

use crate::bytes::{array, be16};
use crate::error::{Layer, ParseError};
use crate::ethernet::{EtherType, HEADER_LEN, VLAN_TAG_LEN};
use crate::{ipv4, ipv6, tcp, toeplitz, udp};

pub use transport::Transport;

/// The most bytes of a frame that a parse reads: offsets are `u8`.
pub const MAX_LEN: usize = u8::MAX as usize;

/// The protocol after the Ethernet header and its tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the protocols' own")]
pub enum Network {
    Ipv4,
    Ipv6,
    Arp,
    /// Any other EtherType, a ninth VLAN tag's among them.
    Other,
}

/// A frame's headers: their protocols and offsets.
///
/// Offsets count bytes from the start of the frame and never decrease in the order of the fields.
/// The offset of an absent header equals the next one: a frame that is not IP has all three at the
/// end of its Ethernet header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Headers {
    /// Protocol after the Ethernet header.
    pub network: Network,
    /// Protocol after the IP header.
    pub transport: Transport,
    /// Tag control information (priority, drop eligibility, 12-bit VLAN identifier) of the
    /// outermost tag.
    pub vlan: Option<u16>,
    /// Start of the network header.
    pub l3_offset: u8,
    /// Start of the transport header: after IPv4 options and IPv6 extension headers. Of an opaque
    /// one: where IPv6 extension headers start.
    pub l4_offset: u8,
    /// Start of the transport's payload.
    pub payload_offset: u8,
}

/// Which bytes a transport checksum covers and where it is stored, as in `virtio_net_hdr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChecksumLocation {
    /// `csum_start`: the first byte covered, from the start of the frame. The checksum covers all
    /// bytes from there.
    pub start: u16,
    /// `csum_offset`: the checksum's offset from `start`.
    pub offset: u16,
}

impl Headers {
    /// Parses a whole frame. Reads at most [`MAX_LEN`] bytes of it.
    #[inline]
    pub fn parse(frame: &[u8]) -> Result<Self, ParseError> {
        Self::parse_start(frame, frame.len())
    }

    /// Parses `header`, the first bytes of a frame of `frame_len` bytes. Reads at most [`MAX_LEN`]
    /// bytes.
    ///
    /// Payload lengths in headers are not checked. The body of an ARP packet is not read. Where
    /// the headers of an IP packet go on behind the bytes at hand, its transport is
    /// [`Transport::Opaque`].
    ///
    /// # Errors
    /// The frame ends inside its headers, they are malformed, or `header` ends inside the Ethernet
    /// header, its tags or the IP header. In XSA-423 a backend passed on frames whose protocol
    /// headers were not all in the bytes that it had copied, and told the kernel where they lie.
    // Where it is called, the result is in memory, byte by byte, and the caller waits for it.
    #[inline(always)]
    pub fn parse_start(header: &[u8], frame_len: usize) -> Result<Self, ParseError> {
        let header = &header[..header.len().min(MAX_LEN)];
        let link = LinkHeader::parse(header)?;
        let (network, transport) = match link.ethertype {
            EtherType::IPV4 => {
                (Network::Ipv4, TransportHeader::of_ipv4(header, link.len, frame_len)?)
            }
            EtherType::IPV6 => {
                (Network::Ipv6, TransportHeader::of_ipv6(header, link.len, frame_len)?)
            }
            EtherType::ARP => (Network::Arp, TransportHeader::absent(link.len)),
            _ => (Network::Other, TransportHeader::absent(link.len)),
        };
        Ok(Self {
            network,
            transport: transport.protocol,
            vlan: link.vlan,
            l3_offset: offset(link.len),
            l4_offset: offset(transport.start),
            payload_offset: offset(transport.end),
        })
    }

    /// Where the checksum of a TCP segment or UDP datagram is.
    #[inline]
    #[must_use]
    pub fn checksum_location(&self) -> Option<ChecksumLocation> {
        let offset = match self.transport {
            Transport::Tcp => tcp::CHECKSUM_OFFSET,
            Transport::Udp => udp::CHECKSUM_OFFSET,
            _ => return None,
        };
        Some(ChecksumLocation { start: self.l4_offset.into(), offset })
    }

    /// The Toeplitz hash of the addresses and, for TCP and UDP, the ports. Zero for frames that are
    /// not IP.
    ///
    /// `header` holds the parsed bytes. The two directions of a flow hash differently.
    #[inline]
    #[must_use]
    pub fn flow_hash(&self, header: &[u8], toeplitz: &toeplitz::Table) -> u32 {
        let Some(addresses) = self.addresses(header) else { return 0 };
        let hash = toeplitz.hash(addresses);
        match self.ports(header) {
            Some(ports) => hash ^ toeplitz.hash_at(addresses.len(), ports),
            None => hash,
        }
    }

    /// The source and destination address of an IP packet, side by side: 8 or 32 bytes of `header`.
    #[inline]
    #[must_use]
    pub fn addresses<'a>(&self, header: &'a [u8]) -> Option<&'a [u8]> {
        let Range { start, end } = match self.network {
            Network::Ipv4 => ipv4::ADDRESSES,
            Network::Ipv6 => ipv6::ADDRESSES,
            Network::Arp | Network::Other => return None,
        };
        let l3 = usize::from(self.l3_offset);
        header.get(l3 + start..l3 + end)
    }

    /// The source and destination port of a TCP segment or UDP datagram: 4 bytes of `header`.
    #[inline]
    #[must_use]
    pub fn ports<'a>(&self, header: &'a [u8]) -> Option<&'a [u8]> {
        let l4 = usize::from(self.l4_offset);
        matches!(self.transport, Transport::Tcp | Transport::Udp).then(|| header.get(l4..l4 + 4))?
    }
}

#[inline]
#[expect(clippy::cast_possible_truncation, reason = "offsets lie in a header cut to MAX_LEN bytes")]
const fn offset(at: usize) -> u8 {
    at as u8
}

/// How many VLAN tags a parse skips. Behind them, IPv4 and TCP with options of every length still fit the 128 bytes that a backend copies.
const MAX_VLAN_TAGS: usize = 8;

/// The Ethernet header with its tags.
struct LinkHeader {
    ethertype: EtherType,
    vlan: Option<u16>,
    len: usize,
}

impl LinkHeader {
    #[inline]
    fn parse(header: &[u8]) -> Result<Self, ParseError> {
        let ethernet: &[u8; HEADER_LEN] =
            array(header, 0).ok_or(ParseError::Truncated(Layer::Ethernet))?;
        let ethertype = EtherType(be16(ethernet, 12));
        let mut link = Self { ethertype, vlan: None, len: HEADER_LEN };
        for _ in 0..MAX_VLAN_TAGS {
            if !link.ethertype.is_vlan() {
                break;
            }
            let tag: &[u8; VLAN_TAG_LEN] =
                array(header, link.len).ok_or(ParseError::Truncated(Layer::Vlan))?;
            link.vlan.get_or_insert(be16(tag, 0));
            link.ethertype = EtherType(be16(tag, 2));
            link.len += VLAN_TAG_LEN;
        }
        Ok(link)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::error::Layer;
    use crate::toeplitz::{MICROSOFT_KEY, Table};

    static TOEPLITZ: Table = Table::new(&MICROSOFT_KEY);

    const MACS: [u8; 12] = [0x00, 0x16, 0x3e, 0, 0, 2, 0x00, 0x16, 0x3e, 0, 0, 1];
    const IPV4: [u8; 2] = [0x08, 0x00];
    const IPV6: [u8; 2] = [0x86, 0xdd];

    /// The first of Microsoft's vectors, so that its hash is published.
    const IPV4_TCP: [u8; 40] = [
        0x45, 0, 0, 0x28, 0, 0, 0x40, 0, 64, 6, 0, 0, // IPv4, 40 bytes, TCP
        66, 9, 149, 187, 161, 142, 100, 80, // addresses
        0x0a, 0xea, 0x06, 0xe6, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0,
        0, // TCP, 2794 to 1766
    ];

    /// A hop-by-hop header and a UDP datagram without payload.
    const IPV6_OPTIONS_UDP: [u8; 56] = [
        0x60, 0, 0, 0, 0, 0x10, 0, 64, // IPv6, 16 bytes, hop-by-hop
        0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x1f, 0xff, 0, 0, 0, 0, 0, 0, 0, 7, // src
        0x3f, 0xfe, 0x25, 0x01, 0x02, 0x00, 0x00, 0x03, 0, 0, 0, 0, 0, 0, 0, 1, // dst
        17, 0, 5, 2, 0, 0, 1, 0, // router alert
        0x0a, 0xea, 0x06, 0xe6, 0, 8, 0, 0, // UDP, 2794 to 1766
    ];

    fn frame(parts: &[&[u8]]) -> Vec<u8> {
        [&[&MACS[..]], parts].concat().concat()
    }

    fn tcp_frame(change: impl FnOnce(&mut [u8; 40])) -> Result<Headers, ParseError> {
        let mut packet = IPV4_TCP;
        change(&mut packet);
        Headers::parse(&frame(&[&IPV4, &packet]))
    }

    #[test]
    fn ipv4_with_tcp_is_parsed() {
        let frame = frame(&[&IPV4, &IPV4_TCP]);
        let headers = Headers::parse(&frame).unwrap();
        let expected = Headers {
            network: Network::Ipv4,
            transport: Transport::Tcp,
            vlan: None,
            l3_offset: 14,
            l4_offset: 34,
            payload_offset: 54,
        };
        assert_eq!(headers, expected);
        assert_eq!(headers.checksum_location(), Some(ChecksumLocation { start: 34, offset: 16 }));
        assert_eq!(headers.flow_hash(&frame, &TOEPLITZ), 0x51cc_c178);
    }

    #[test]
    fn ipv6_with_udp_behind_two_tags_is_parsed() {
        let tags = [0x88, 0xa8, 0x20, 0x64, 0x81, 0x00, 0x00, 0x07];
        let frame = frame(&[&tags, &IPV6, &IPV6_OPTIONS_UDP]);
        let headers = Headers::parse(&frame).unwrap();
        let expected = Headers {
            network: Network::Ipv6,
            transport: Transport::Udp,
            vlan: Some(0x2064),
            l3_offset: 22,
            l4_offset: 70,
            payload_offset: 78,
        };
        assert_eq!(headers, expected);
        assert_eq!(headers.checksum_location(), Some(ChecksumLocation { start: 70, offset: 6 }));
        assert_eq!(headers.flow_hash(&frame, &TOEPLITZ), 0x4020_7d3d);
    }

    #[test]
    fn eight_tags_are_passed_and_a_ninth_is_not() {
        let tags = |count| [0x81, 0x00, 0x00, 0x07].repeat(count);
        for count in 1..=8 {
            let headers = Headers::parse(&frame(&[&tags(count), &IPV4, &IPV4_TCP])).unwrap();
            let l3 = u8::try_from(14 + 4 * count).unwrap();
            assert_eq!((headers.network, headers.vlan), (Network::Ipv4, Some(7)));
            assert_eq!((headers.l3_offset, headers.l4_offset), (l3, l3 + 20));
        }
        let headers = Headers::parse(&frame(&[&tags(9), &IPV4])).unwrap();
        assert_eq!(
            (headers.network, headers.vlan, headers.l3_offset),
            (Network::Other, Some(7), 46)
        );
    }

    #[test]
    fn a_frame_without_ip_has_only_a_link_header() {
        for (ethertype, network) in [([0x08, 0x06], Network::Arp), ([0x88, 0xcc], Network::Other)] {
            let frame = frame(&[&ethertype, &[0xff; 46]]);
            let headers = Headers::parse(&frame).unwrap();
            assert_eq!((headers.network, headers.transport), (network, Transport::None));
            assert_eq!(
                (headers.l3_offset, headers.l4_offset, headers.payload_offset),
                (14, 14, 14)
            );
            assert_eq!(headers.checksum_location(), None);
            assert_eq!(headers.flow_hash(&frame, &TOEPLITZ), 0);
        }
    }

    #[test]
    fn every_fragment_hashes_by_address_only() {
        for fragment in [[0x20, 0x00], [0x20, 0x01], [0x00, 0x01]] {
            let mut packet = IPV4_TCP;
            packet[6..8].copy_from_slice(&fragment);
            let frame = frame(&[&IPV4, &packet]);
            let headers = Headers::parse(&frame).unwrap();
            assert_eq!((headers.transport, headers.payload_offset), (Transport::Fragment, 34));
            assert_eq!(headers.checksum_location(), None);
            assert_eq!(headers.flow_hash(&frame, &TOEPLITZ), 0x323e_8fc2);
        }
    }

    #[test]
    fn an_ipv6_fragment_hashes_by_address_only() {
        let mut packet = IPV6_OPTIONS_UDP;
        packet[6] = 44;
        packet[40..48].copy_from_slice(&[17, 0, 0, 1, 0, 0, 0, 9]);
        let frame = frame(&[&IPV6, &packet]);
        let headers = Headers::parse(&frame).unwrap();
        assert_eq!((headers.transport, headers.l4_offset), (Transport::Fragment, 62));
        assert_eq!(headers.flow_hash(&frame, &TOEPLITZ), 0x2cc1_8cd5);
    }

    #[test]
    fn each_protocol_number_has_its_transport() {
        let transport =
            |protocol| tcp_frame(|packet| packet[9] = protocol).map(|headers| headers.transport);
        assert_eq!(transport(1), Ok(Transport::Icmp));
        assert_eq!(transport(47), Ok(Transport::Other));
        assert_eq!(transport(58), Ok(Transport::Other), "ICMPv6 does not belong to IPv4");

        let transport = |protocol| {
            let mut packet = IPV6_OPTIONS_UDP;
            packet[40] = protocol;
            Headers::parse(&frame(&[&IPV6, &packet])).map(|headers| headers.transport)
        };
        assert_eq!(transport(58), Ok(Transport::Icmpv6));
        assert_eq!(transport(59), Ok(Transport::None));
        assert_eq!(transport(1), Ok(Transport::Other), "ICMP does not belong to IPv6");
    }

    #[test]
    fn a_header_in_the_padding_is_refused() {
        let truncated = Err(ParseError::Truncated(Layer::Tcp));
        assert_eq!(tcp_frame(|packet| packet[3] = 39), truncated);
        let mut packet = IPV6_OPTIONS_UDP;
        packet[5] = 15;
        let parsed = Headers::parse(&frame(&[&IPV6, &packet]));
        assert_eq!(parsed, Err(ParseError::Truncated(Layer::Udp)));
    }

    #[test]
    fn a_length_of_zero_means_the_whole_frame() {
        assert!(tcp_frame(|packet| packet[3] = 0).is_ok());
        let mut packet = IPV6_OPTIONS_UDP;
        packet[5] = 0;
        assert!(Headers::parse(&frame(&[&IPV6, &packet])).is_ok());
    }

    #[test]
    fn malformed_headers_are_refused() {
        let length = |layer| Err(ParseError::Length(layer));
        assert_eq!(tcp_frame(|packet| packet[0] = 0x65), Err(ParseError::Version(Layer::Ipv4)));
        assert_eq!(tcp_frame(|packet| packet[0] = 0x44), length(Layer::Ipv4));
        assert_eq!(tcp_frame(|packet| packet[3] = 19), length(Layer::Ipv4));
        assert_eq!(tcp_frame(|packet| packet[32] = 0x40), length(Layer::Tcp));
        let wrong_version = Headers::parse(&frame(&[&IPV6, &IPV4_TCP]));
        assert_eq!(wrong_version, Err(ParseError::Version(Layer::Ipv6)));
    }

    #[test]
    fn a_truncated_header_is_named() {
        let frame = frame(&[&[0x81, 0, 0, 7], &IPV6, &IPV6_OPTIONS_UDP]);
        for (len, layer) in [
            (0, Layer::Ethernet),
            (13, Layer::Ethernet),
            (17, Layer::Vlan),
            (57, Layer::Ipv6),
            (65, Layer::Ipv6Extension),
            (73, Layer::Udp),
        ] {
            assert_eq!(Headers::parse(&frame[..len]), Err(ParseError::Truncated(layer)));
        }
        assert!(Headers::parse(&frame).is_ok());
    }

    /// IPv6 with `count` extension headers of `8 + 8 * units` bytes, and a UDP datagram.
    fn chain(count: u8, units: u8) -> Vec<u8> {
        let len = 8 + 8 * usize::from(units);
        let mut extensions = Vec::new();
        for n in 1..=count {
            extensions.extend([if n < count { 60 } else { 17 }, units]);
            extensions.resize(extensions.len() + len - 2, 0);
        }
        let mut fixed = IPV6_OPTIONS_UDP[..40].to_vec();
        fixed[4..7].fill(0);
        fixed[6] = 60;
        frame(&[&IPV6, &fixed, &extensions, &IPV6_OPTIONS_UDP[48..]])
    }

    #[test]
    fn headers_behind_the_bytes_at_hand_are_opaque() {
        let opaque = Headers {
            network: Network::Ipv6,
            transport: Transport::Opaque,
            vlan: None,
            l3_offset: 14,
            l4_offset: 54,
            payload_offset: 54,
        };
        for (count, units) in [(1, 30), (3, 4), (1, 8)] {
            let frame = chain(count, units);
            let start = Headers::parse_start(&frame[..128], frame.len());
            assert_eq!(start, Ok(opaque), "{count} of {units}");
            assert!(matches!(Headers::parse(&frame[..128]), Err(ParseError::Truncated(_))));
            assert_eq!(opaque.checksum_location(), None);
            // By addresses only.
            let other = chain(2, 9);
            assert_eq!(opaque.flow_hash(&frame, &TOEPLITZ), opaque.flow_hash(&other, &TOEPLITZ));
        }
        // Beyond what any parse reads.
        let frame = chain(2, 30);
        assert_eq!(Headers::parse(&frame), Ok(opaque));
        // TCP with all options, behind IPv4 with all options.
        let mut packet = [0; 120];
        packet[..20].copy_from_slice(&IPV4_TCP[..20]);
        packet[0] = 0x4f;
        packet[3] = 120;
        packet[72] = 0xf0;
        let frame = super::tests::frame(&[&IPV4, &packet]);
        let start = Headers::parse_start(&frame[..128], frame.len()).unwrap();
        assert_eq!((start.transport, start.l4_offset), (Transport::Opaque, 74));
    }

    #[test]
    fn more_extensions_than_a_walk_passes_are_opaque() {
        for (count, transport) in [(8, Transport::Udp), (9, Transport::Opaque)] {
            let parsed = Headers::parse(&chain(count, 0)).unwrap();
            assert_eq!(parsed.transport, transport, "{count}");
        }
    }

    #[test]
    fn headers_that_end_with_their_packet_are_truncated() {
        // The frame goes on, and its IP packet does not.
        let mut frame = chain(1, 30);
        frame[19] = 74;
        let start = Headers::parse_start(&frame[..128], frame.len());
        assert_eq!(start, Err(ParseError::Truncated(Layer::Ipv6Extension)));
        // The IP header is needed in any case.
        let frame = chain(1, 0);
        let start = Headers::parse_start(&frame[..53], frame.len());
        assert_eq!(start, Err(ParseError::Truncated(Layer::Ipv6)));
    }

    #[test]
    fn headers_of_other_bytes_hash_without_panic() {
        let headers = Headers::parse(&frame(&[&IPV4, &IPV4_TCP])).unwrap();
        assert_eq!(headers.flow_hash(&[], &TOEPLITZ), 0);
    }
}
