//! One line per frame, for people.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use capture::{CapturedFrame, Direction};
use wire::headers::{Headers, Network, Transport};
use wire::tcp::Flags;
use wire::{arp, ethernet, icmp, tcp};

/// How many bytes of a frame a line is made of: as many as [`Headers::parse`] reads.
pub(super) const SNAPLEN: u32 = 255;

/// A frame as a line, with the time since the first.
pub(super) struct Line<'a> {
    pub(super) frame: CapturedFrame<'a>,
    /// When the first frame came: nanoseconds since the Unix epoch.
    pub(super) start: u64,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let frame = &self.frame;
        let seconds = frame.timestamp.saturating_sub(self.start) as f64 / 1e9;
        let direction = match frame.direction {
            Direction::Inbound => "in ",
            Direction::Outbound => "out",
        };
        write!(f, "{seconds:>11.6} {direction} ")?;
        match Headers::parse_start(frame.bytes, frame.original_len as usize) {
            Ok(headers) => describe(f, &headers, frame.bytes)?,
            Err(error) => write!(f, "{error}")?,
        }
        write!(f, ", {} bytes", frame.original_len)?;
        frame.drop_reason.map_or(Ok(()), |reason| write!(f, ", dropped: {reason}"))
    }
}

/// The frame's addresses and protocol.
fn describe(f: &mut fmt::Formatter<'_>, headers: &Headers, bytes: &[u8]) -> fmt::Result {
    if let Some(tag) = headers.vlan {
        write!(f, "vlan {} ", tag & 0x0fff)?;
    }
    let l3 = bytes.get(usize::from(headers.l3_offset)..).unwrap_or_default();
    match (headers.network, addresses(headers, bytes)) {
        (Network::Ipv4 | Network::Ipv6, Some(addresses)) => ip(f, headers, bytes, addresses),
        (Network::Arp, _) => match arp::Packet::new_checked(l3) {
            Ok(arp) => describe_arp(f, &arp),
            Err(error) => write!(f, "arp: {error}"),
        },
        _ => other(f, headers, bytes),
    }
}

fn describe_arp(f: &mut fmt::Formatter<'_>, arp: &arp::Packet<&[u8]>) -> fmt::Result {
    let (sender, target) = (arp.sender_ip(), arp.target_ip());
    match arp.operation() {
        arp::Operation::REQUEST => write!(f, "arp who has {target}, tell {sender}"),
        arp::Operation::REPLY => write!(f, "arp {sender} is at {}", arp.sender_mac()),
        arp::Operation(other) => write!(f, "arp operation {other} of {sender}"),
    }
}

/// The source and the destination of an IP packet.
fn addresses(headers: &Headers, bytes: &[u8]) -> Option<[IpAddr; 2]> {
    let both = headers.addresses(bytes)?;
    let (source, destination) = both.split_at(both.len() / 2);
    let address = |bytes: &[u8]| -> Option<IpAddr> {
        let v4 = <[u8; 4]>::try_from(bytes).map(|bytes| Ipv4Addr::from(bytes).into());
        v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| Ipv6Addr::from(bytes).into())).ok()
    };
    Some([address(source)?, address(destination)?])
}

fn ip(
    f: &mut fmt::Formatter<'_>,
    headers: &Headers,
    bytes: &[u8],
    [source, destination]: [IpAddr; 2],
) -> fmt::Result {
    if let Some([a, b, c, d]) = headers.ports(bytes).and_then(<[u8]>::first_chunk) {
        let source = SocketAddr::new(source, u16::from_be_bytes([*a, *b]));
        let destination = SocketAddr::new(destination, u16::from_be_bytes([*c, *d]));
        write!(f, "{source} > {destination} ")?;
    } else {
        write!(f, "{source} > {destination} ")?;
    }
    let l4 = bytes.get(usize::from(headers.l4_offset)..).unwrap_or_default();
    match headers.transport {
        Transport::Tcp => match tcp::Packet::new_checked(l4) {
            Ok(tcp) => write!(f, "tcp [{}]", flags(tcp.flags())),
            Err(error) => write!(f, "tcp: {error}"),
        },
        Transport::Udp => f.write_str("udp"),
        Transport::Icmp => describe_icmp(f, "icmp", l4, icmp::Version::V4),
        Transport::Icmpv6 => describe_icmp(f, "icmp6", l4, icmp::Version::V6),
        Transport::Fragment => f.write_str("fragment"),
        Transport::Other | Transport::Opaque | Transport::None => f.write_str("ip"),
    }
}

/// TCP's flags as tcpdump shows them.
fn flags(flags: Flags) -> String {
    let letters = [
        (Flags::SYN, 'S'),
        (Flags::FIN, 'F'),
        (Flags::RST, 'R'),
        (Flags::PSH, 'P'),
        (Flags::ACK, '.'),
    ];
    letters.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, letter)| letter).collect()
}

fn describe_icmp(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    message: &[u8],
    version: icmp::Version,
) -> fmt::Result {
    let Ok(packet) = icmp::Packet::new_checked(message) else { return f.write_str(name) };
    match icmp::Repr::parse(&packet, version) {
        Some(icmp::Repr { kind, seq, .. }) => {
            let kind = match kind {
                icmp::EchoKind::Request => "request",
                icmp::EchoKind::Reply => "reply",
            };
            write!(f, "{name} echo {kind} {seq}")
        }
        None => write!(f, "{name} type {}", packet.kind()),
    }
}

fn other(f: &mut fmt::Formatter<'_>, headers: &Headers, bytes: &[u8]) -> fmt::Result {
    let Ok(frame) = ethernet::Frame::new_checked(bytes) else { return f.write_str("no frame") };
    // Behind the VLAN tags.
    let ethertype = bytes.get(..usize::from(headers.l3_offset)).and_then(<[u8]>::last_chunk);
    let ethertype = u16::from_be_bytes(ethertype.copied().unwrap_or_default());
    write!(f, "{} > {} ethertype {ethertype:#06x}", frame.src(), frame.dst())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACS: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

    fn line(ethertype: [u8; 2], payload: &[u8], drop_reason: Option<&str>) -> String {
        let bytes = [&MACS[..], &ethertype, payload].concat();
        let frame = CapturedFrame {
            timestamp: 1_500_000_000,
            direction: Direction::Inbound,
            original_len: 98,
            drop_reason,
            bytes: &bytes,
        };
        Line { frame, start: 1_000_000_000 }.to_string()
    }

    fn ipv4(protocol: u8, payload: &[u8]) -> Vec<u8> {
        let len = u8::try_from(20 + payload.len()).unwrap();
        let header = [0x45, 0, 0, len, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        [&header[..], payload].concat()
    }

    #[test]
    fn a_frame_is_one_line() {
        let echo = ipv4(1, &[8, 0, 0, 0, 0, 1, 0, 7]);
        assert_eq!(
            line([8, 0], &echo, None),
            "   0.500000 in  10.0.0.1 > 10.0.0.2 icmp echo request 7, 98 bytes"
        );
        let mut syn = vec![0; 20];
        syn[..4].copy_from_slice(&[0, 80, 1, 187]);
        (syn[12], syn[13]) = (0x50, 0x12);
        let tcp = line([8, 0], &ipv4(6, &syn), Some("stalled"));
        assert!(tcp.ends_with("10.0.0.1:80 > 10.0.0.2:443 tcp [S.], 98 bytes, dropped: stalled"));
        let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
        arp.extend_from_slice(&[2, 0, 0, 0, 0, 1, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2]);
        assert!(line([8, 6], &arp, None).contains("arp who has 10.0.0.2, tell 10.0.0.1"));
        arp[7] = 2;
        assert!(line([8, 6], &arp, None).contains("arp 10.0.0.1 is at 02:00:00:00:00:01"));
        let mut tagged = vec![0x20, 9, 0x08, 0x00];
        tagged.extend_from_slice(&ipv4(17, &[0, 53, 0, 54, 0, 8, 0, 0]));
        assert!(line([0x81, 0], &tagged, None).contains("vlan 9 10.0.0.1:53 > 10.0.0.2:54 udp"));
        let other = line([0x88, 0xb5], &[0; 46], None);
        assert!(
            other.contains("02:00:00:00:00:01 > 02:00:00:00:00:02 ethertype 0x88b5"),
            "{other}"
        );
    }

    #[test]
    fn a_frame_that_ends_anywhere_has_a_line() {
        let whole = ipv4(1, &[8, 0, 0, 0, 0, 1, 0, 7]);
        for len in 0..whole.len() {
            assert!(line([8, 0], &whole[..len], None).contains(", 98 bytes"));
        }
    }
}
