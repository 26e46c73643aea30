//! Headers and checksums agree with etherparse, which shares no code with us.

use etherparse::checksum::Sum16BitWords;
use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv4Options, Ipv6ExtensionSlice,
    Ipv6Extensions, Ipv6FragmentHeader, Ipv6Header, Ipv6RawExtHeader, Ipv6RoutingExtensions,
    NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TransportSlice, VlanHeader, VlanId,
};
use proptest::prelude::*;
use wire::checksum::{Sum, pseudo_v4, pseudo_v6};
use wire::headers::{Headers, Network, Transport};
use wire::{ParseError, ipv4, tcp, udp};

#[derive(Clone, Debug)]
enum Upper {
    Tcp { option_words: usize },
    Udp,
    Icmp,
}

#[derive(Clone, Debug)]
enum Ip {
    V4 { option_words: usize, more_fragments: bool, fragment_offset: u16 },
    V6(Box<Ipv6Extensions>),
}

#[derive(Clone, Debug)]
struct Plan {
    tags: Vec<u16>,
    ip: Ip,
    upper: Upper,
    addresses: [u8; 32],
    ports: (u16, u16),
    payload: Vec<u8>,
}

/// An extension header of 8, 16 or 24 bytes.
fn extension() -> impl Strategy<Value = Option<Ipv6RawExtHeader>> {
    prop::option::of((0usize..3).prop_map(|units| {
        Ipv6RawExtHeader::new_raw(IpNumber::UDP, &[1u8; 22][..6 + 8 * units]).unwrap()
    }))
}

fn ipv6() -> impl Strategy<Value = Ip> {
    let fragment = prop::option::weighted(0.3, (prop_oneof![Just(0), 0u16..0x1fff], any::<bool>()));
    (extension(), extension(), extension(), extension(), fragment).prop_map(
        |(
            hop_by_hop_options,
            destination_options,
            routing,
            final_destination_options,
            fragment,
        )| {
            Ip::V6(Box::new(Ipv6Extensions {
                hop_by_hop_options,
                destination_options,
                routing: routing
                    .map(|routing| Ipv6RoutingExtensions { routing, final_destination_options }),
                fragment: fragment.map(|(offset, more)| {
                    Ipv6FragmentHeader::new(IpNumber::UDP, offset.try_into().unwrap(), more, 7)
                }),
                auth: None,
            }))
        },
    )
}

fn ipv4() -> impl Strategy<Value = Ip> {
    let whole = (0usize..=10, Just((false, 0)));
    let fragment = (0usize..=10, (any::<bool>(), 0u16..0x1fff));
    prop_oneof![4 => whole.boxed(), 1 => fragment.boxed()].prop_map(
        |(option_words, (more_fragments, fragment_offset))| Ip::V4 {
            option_words,
            more_fragments,
            fragment_offset,
        },
    )
}

fn plan() -> impl Strategy<Value = Plan> {
    let upper = prop_oneof![
        (0usize..=10).prop_map(|option_words| Upper::Tcp { option_words }),
        Just(Upper::Udp),
        Just(Upper::Icmp),
    ];
    (
        prop::collection::vec(0u16..4096, 0..=2),
        prop_oneof![ipv4().boxed(), ipv6().boxed()],
        upper,
        any::<[u8; 32]>(),
        any::<(u16, u16)>(),
        prop::collection::vec(any::<u8>(), 0..64),
    )
        .prop_map(|(tags, ip, upper, addresses, ports, payload)| Plan {
            tags,
            ip,
            upper,
            addresses,
            ports,
            payload,
        })
}

impl Plan {
    /// The frame, its checksums made by etherparse.
    fn build(&self) -> Vec<u8> {
        let ethernet = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let tag = |tag: u16| VlanId::try_new(tag).unwrap();
        let ip = match self.tags[..] {
            [] => ethernet.ip(self.ip_headers()),
            [only] => ethernet.single_vlan(tag(only)).ip(self.ip_headers()),
            [outer, inner, ..] => {
                ethernet.double_vlan(tag(outer), tag(inner)).ip(self.ip_headers())
            }
        };
        let mut frame = Vec::new();
        match (&self.upper, &self.ip) {
            (Upper::Tcp { option_words }, _) => {
                let mut header = TcpHeader::new(self.ports.0, self.ports.1, 1, 2);
                header.set_options_raw(&[1; 40][..4 * option_words]).unwrap();
                ip.tcp_header(header).write(&mut frame, &self.payload).unwrap();
            }
            (Upper::Udp, _) => {
                ip.udp(self.ports.0, self.ports.1).write(&mut frame, &self.payload).unwrap();
            }
            (Upper::Icmp, Ip::V4 { .. }) => {
                ip.icmpv4_echo_request(1, 2).write(&mut frame, &self.payload).unwrap();
            }
            (Upper::Icmp, Ip::V6(_)) => {
                ip.icmpv6_echo_request(1, 2).write(&mut frame, &self.payload).unwrap();
            }
        }
        frame
    }

    fn ip_headers(&self) -> IpHeaders {
        let (src, dst) = self.addresses.split_at(16);
        match &self.ip {
            Ip::V4 { option_words, more_fragments, fragment_offset } => {
                let (src, dst) = (src[..4].try_into().unwrap(), dst[..4].try_into().unwrap());
                let mut header = Ipv4Header::new(0, 64, IpNumber::UDP, src, dst).unwrap();
                header.options = Ipv4Options::try_from(&[1; 40][..4 * option_words]).unwrap();
                header.more_fragments = *more_fragments;
                header.fragment_offset = (*fragment_offset).try_into().unwrap();
                IpHeaders::Ipv4(header, Ipv4Extensions::default())
            }
            Ip::V6(extensions) => {
                let header = Ipv6Header {
                    source: src.try_into().unwrap(),
                    destination: dst.try_into().unwrap(),
                    hop_limit: 64,
                    ..Ipv6Header::default()
                };
                IpHeaders::Ipv6(header, *extensions.clone())
            }
        }
    }
}

fn offset_in(frame: &[u8], part: &[u8]) -> Option<u8> {
    u8::try_from(part.as_ptr().addr() - frame.as_ptr().addr()).ok()
}

/// etherparse's result for a frame, as `Headers`. `None` where it parses more or less than this
/// crate does.
fn oracle(frame: &[u8]) -> Option<Headers> {
    let packet = SlicedPacket::from_ethernet(frame).ok()?;
    // The tag of old QinQ switches, which neither Linux nor this crate parses.
    if [12, 16].iter().any(|at| frame[*at..].starts_with(&[0x91, 0x00])) {
        return None;
    }
    let (network, l3_offset, l4_offset) = oracle_network(frame, packet.net.as_ref()?)?;
    let offset = |part| offset_in(frame, part);
    let (transport, payload_offset) = match (network, packet.transport.as_ref()) {
        (_, Some(TransportSlice::Tcp(tcp))) => (Transport::Tcp, offset(tcp.payload())?),
        (_, Some(TransportSlice::Udp(udp))) => (Transport::Udp, offset(udp.payload())?),
        (Network::Ipv4, Some(TransportSlice::Icmpv4(icmp))) => {
            (Transport::Icmp, offset(&icmp.slice()[8..])?)
        }
        (Network::Ipv6, Some(TransportSlice::Icmpv6(icmp))) => {
            (Transport::Icmpv6, offset(&icmp.slice()[8..])?)
        }
        (_, None) if packet.is_ip_payload_fragmented() => (Transport::Fragment, l4_offset),
        _ => return None,
    };
    let vlan = packet.vlan().map(|vlan| match vlan.to_header() {
        VlanHeader::Single(only) => only.to_bytes(),
        VlanHeader::Double(double) => double.outer.to_bytes(),
    });
    let vlan = vlan.map(|[high, low, ..]| u16::from_be_bytes([high, low]));
    Some(Headers { network, transport, vlan, l3_offset, l4_offset, payload_offset })
}

/// The network protocol, where its header starts and where it ends.
fn oracle_network(frame: &[u8], net: &NetSlice<'_>) -> Option<(Network, u8, u8)> {
    let (network, header, mut payload) = match net {
        NetSlice::Ipv4(ip) if ip.extensions().auth.is_none() => {
            (Network::Ipv4, ip.header().slice().as_ptr(), ip.payload().payload)
        }
        NetSlice::Ipv6(ip) => (Network::Ipv6, ip.header().slice().as_ptr(), ip.payload().payload),
        _ => return None,
    };
    if let NetSlice::Ipv6(ip) = net {
        for extension in ip.extensions().clone() {
            match extension {
                Ipv6ExtensionSlice::Authentication(_) => return None,
                // etherparse continues after a fragment header, though that can be the middle of a
                // datagram.
                Ipv6ExtensionSlice::Fragment(fragment) if fragment.is_fragmenting_payload() => {
                    payload = &frame[usize::from(offset_in(frame, fragment.slice())?) + 8..];
                    break;
                }
                _ => {}
            }
        }
    }
    let l3 = u8::try_from(header.addr() - frame.as_ptr().addr()).ok()?;
    Some((network, l3, offset_in(frame, payload)?))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn headers_agree_with_etherparse(plan in plan()) {
        let frame = plan.build();
        let expected = oracle(&frame).expect("etherparse reads what it writes");
        prop_assert_eq!(Headers::parse(&frame), Ok(expected));
        prop_assert_eq!(expected.vlan, plan.tags.first().copied());
    }

    /// XSA-423: headers are found whole or not at all. Fewer bytes never give another result.
    #[test]
    fn a_prefix_of_a_frame_parses_the_same_or_is_truncated(plan in plan(), len: prop::sample::Index) {
        let frame = plan.build();
        let whole = Headers::parse(&frame).unwrap();
        let len = len.index(frame.len() + 1);
        let cut = Headers::parse(&frame[..len]);
        if len >= usize::from(whole.payload_offset) {
            prop_assert_eq!(cut, Ok(whole));
        } else {
            prop_assert!(matches!(cut, Err(ParseError::Truncated(_))), "{:?}", cut);
        }
    }

    /// The start of a frame never gives other headers than the whole.
    #[test]
    fn the_start_of_a_frame_parses_the_same_or_its_transport_is_opaque(
        plan in plan(), len: prop::sample::Index,
    ) {
        let frame = plan.build();
        let whole = Headers::parse(&frame).unwrap();
        let len = len.index(frame.len() + 1);
        let ip_end = match plan.ip {
            Ip::V4 { .. } => usize::from(whole.l4_offset),
            Ip::V6(_) => usize::from(whole.l3_offset) + 40,
        };
        match Headers::parse_start(&frame[..len], frame.len()) {
            Ok(start) if len >= usize::from(whole.payload_offset) => {
                prop_assert_eq!(start, whole);
            }
            Ok(start) => {
                let end = u8::try_from(ip_end).unwrap();
                let (transport, l4_offset, payload_offset) = (Transport::Opaque, end, end);
                prop_assert_eq!(start, Headers { transport, l4_offset, payload_offset, ..whole });
                prop_assert_eq!(start.checksum_location(), None);
                prop_assert_eq!(start.ports(&frame), None);
            }
            Err(error) => {
                prop_assert!(len < ip_end && matches!(error, ParseError::Truncated(_)), "{error}");
            }
        }
    }

    #[test]
    fn damaged_headers_agree_with_etherparse(
        plan in plan(),
        damage in prop::collection::vec((12usize..90, any::<u8>()), 1..4),
    ) {
        let mut frame = plan.build();
        for (at, byte) in damage {
            if let Some(damaged) = frame.get_mut(at) {
                *damaged = byte;
            }
        }
        if let Some(expected) = oracle(&frame) {
            prop_assert_eq!(Headers::parse(&frame), Ok(expected));
        }
    }

    #[test]
    fn sums_agree_with_etherparse(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        let expected = Sum16BitWords::new().add_slice(&bytes).ones_complement();
        prop_assert_eq!(Sum::of(&bytes).finish(), u16::from_be(expected));
    }

    #[test]
    fn transport_checksums_agree_with_etherparse(plan in plan()) {
        let mut frame = plan.build();
        let headers = Headers::parse(&frame).unwrap();
        let (l3, l4) = (usize::from(headers.l3_offset), usize::from(headers.l4_offset));
        if !matches!(headers.transport, Transport::Tcp | Transport::Udp) {
            return Ok(());
        }
        let protocol = if headers.transport == Transport::Tcp { 6 } else { 17 };
        let len = u16::try_from(frame.len() - l4).unwrap();
        let pseudo = match &plan.ip {
            Ip::V4 { .. } => {
                let mut ip = ipv4::Packet::new_checked(&mut frame[l3..]).unwrap();
                prop_assert!(ip.verify_checksum());
                let checksum = ip.checksum();
                ip.fill_checksum();
                prop_assert_eq!(ip.checksum(), checksum);
                pseudo_v4(ip.src(), ip.dst(), protocol, len)
            }
            Ip::V6(_) => {
                let ip = wire::ipv6::Packet::new_checked(&frame[l3..]).unwrap();
                pseudo_v6(ip.src(), ip.dst(), protocol, len.into())
            }
        };
        let before = frame.clone();
        match headers.transport {
            Transport::Tcp => {
                tcp::Packet::new_checked(&mut frame[l4..]).unwrap().fill_checksum(pseudo);
            }
            _ => udp::Packet::new_checked(&mut frame[l4..]).unwrap().fill_checksum(pseudo),
        }
        prop_assert_eq!(frame, before);
    }
}
