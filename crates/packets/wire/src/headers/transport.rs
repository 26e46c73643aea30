//! The header after IPv4 or IPv6: its protocol, and where it starts and ends.

use crate::bytes::array;
use crate::error::{Layer, ParseError};
use crate::ip::Protocol;
use crate::{icmp, ipv4, ipv6, tcp, udp};

/// The protocol after the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the protocols' own")]
pub enum Transport {
    Tcp,
    Udp,
    Icmp,
    Icmpv6,
    /// IP with some other protocol.
    Other,
    /// A fragment of an IP datagram. The first one too: later ones have no ports, and all of them
    /// must have the same flow hash.
    Fragment,
    /// Unknown: the headers go on behind the bytes that were parsed, or IPv6 has more extension
    /// headers than a walk passes. Offsets end at the IP header.
    Opaque,
    /// No IP, or IPv6 with no next header.
    None,
}

/// The transport header: its protocol, and where it starts and ends.
pub(super) struct TransportHeader {
    pub(super) protocol: Transport,
    pub(super) start: usize,
    pub(super) end: usize,
}

impl TransportHeader {
    #[inline]
    pub(super) const fn absent(at: usize) -> Self {
        Self { protocol: Transport::None, start: at, end: at }
    }

    #[inline]
    pub(super) fn of_ipv4(header: &[u8], l3: usize, frame_len: usize) -> Result<Self, ParseError> {
        let fixed: &[u8; ipv4::HEADER_LEN] =
            array(header, l3).ok_or(ParseError::Truncated(Layer::Ipv4))?;
        let ip = ipv4::Packet::new_unchecked(fixed);
        ip.check_header()?;
        let start = l3 + ip.header_len();
        if header.len() < start {
            return Err(ParseError::Truncated(Layer::Ipv4));
        }
        let end = match usize::from(ip.total_len()) {
            0 => frame_len,
            total_len => l3 + total_len,
        };
        // Ethernet pads short frames: bytes after the IP packet are not a transport header.
        let within = &header[..header.len().min(end)];
        let parsed = match ip.protocol() {
            _ if ip.is_fragment() => Ok(Self { protocol: Transport::Fragment, start, end: start }),
            Protocol::TCP => Self::tcp(within, start),
            Protocol::UDP => {
                Self::fixed(Transport::Udp, Layer::Udp, udp::HEADER_LEN, within, start)
            }
            Protocol::ICMP => {
                Self::fixed(Transport::Icmp, Layer::Icmp, icmp::HEADER_LEN, within, start)
            }
            _ => Ok(Self { protocol: Transport::Other, start, end: start }),
        };
        parsed.or_else(|error| Self::opaque(error, start, header.len() < end.min(frame_len)))
    }

    #[inline]
    pub(super) fn of_ipv6(header: &[u8], l3: usize, frame_len: usize) -> Result<Self, ParseError> {
        let fixed: &[u8; ipv6::HEADER_LEN] =
            array(header, l3).ok_or(ParseError::Truncated(Layer::Ipv6))?;
        let ip = ipv6::Packet::new_unchecked(fixed);
        ip.check_header()?;
        let first = l3 + ipv6::HEADER_LEN;
        let end = match usize::from(ip.payload_len()) {
            0 => frame_len,
            payload_len => first + payload_len,
        };
        let within = &header[..header.len().min(end)];
        let parsed = Self::of_chain(ip.next_header(), within, first);
        parsed.or_else(|error| Self::opaque(error, first, header.len() < end.min(frame_len)))
    }

    /// The transport header behind the extension headers that start at `first`.
    #[inline]
    fn of_chain(next: Protocol, within: &[u8], first: usize) -> Result<Self, ParseError> {
        let chain = ipv6::walk_extensions(next, within, first)?;
        let start = chain.offset;
        match chain.protocol {
            _ if chain.fragment => Ok(Self { protocol: Transport::Fragment, start, end: start }),
            Protocol::TCP => Self::tcp(within, start),
            Protocol::UDP => {
                Self::fixed(Transport::Udp, Layer::Udp, udp::HEADER_LEN, within, start)
            }
            Protocol::ICMPV6 => {
                Self::fixed(Transport::Icmpv6, Layer::Icmpv6, icmp::HEADER_LEN, within, start)
            }
            Protocol::NO_NEXT_HEADER => Ok(Self::absent(start)),
            _ => Ok(Self { protocol: Transport::Other, start, end: start }),
        }
    }

    /// What an IP packet is whose headers could not be parsed from `start` on. It is sound as far
    /// as it shows if the packet goes on behind the bytes at hand.
    #[cold]
    fn opaque(error: ParseError, start: usize, goes_on: bool) -> Result<Self, ParseError> {
        match error {
            ParseError::Extensions => {}
            ParseError::Truncated(_) if goes_on => {}
            _ => return Err(error),
        }
        Ok(Self { protocol: Transport::Opaque, start, end: start })
    }

    #[inline]
    fn tcp(within: &[u8], start: usize) -> Result<Self, ParseError> {
        let fixed: &[u8; tcp::HEADER_LEN] =
            array(within, start).ok_or(ParseError::Truncated(Layer::Tcp))?;
        let header_len = tcp::Packet::new_unchecked(fixed).header_len();
        if header_len < tcp::HEADER_LEN {
            return Err(ParseError::Length(Layer::Tcp));
        }
        Self::fixed(Transport::Tcp, Layer::Tcp, header_len, within, start)
    }

    #[inline]
    fn fixed(
        protocol: Transport,
        layer: Layer,
        len: usize,
        within: &[u8],
        start: usize,
    ) -> Result<Self, ParseError> {
        let end = start + len;
        if within.len() < end {
            return Err(ParseError::Truncated(layer));
        }
        Ok(Self { protocol, start, end })
    }
}
