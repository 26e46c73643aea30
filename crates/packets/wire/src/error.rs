//! Why a header could not be read.

use core::fmt;

use thiserror::Error;

/// A protocol header, as named in a [`ParseError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are the protocols' own")]
pub enum Layer {
    Ethernet,
    Vlan,
    Arp,
    Ipv4,
    Ipv6,
    Ipv6Extension,
    Tcp,
    Udp,
    Icmp,
    Icmpv6,
    Ndp,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethernet => "Ethernet",
            Self::Vlan => "VLAN",
            Self::Arp => "ARP",
            Self::Ipv4 => "IPv4",
            Self::Ipv6 => "IPv6",
            Self::Ipv6Extension => "IPv6 extension",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Icmp => "ICMP",
            Self::Icmpv6 => "ICMPv6",
            Self::Ndp => "neighbour discovery",
        })
    }
}

/// Bytes that are not a valid header of their protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum ParseError {
    /// The bytes end before the header does.
    #[error("truncated {0} header")]
    Truncated(Layer),
    /// The version, or the hardware and protocol types, are not the protocol's.
    #[error("wrong version or type in {0} header")]
    Version(Layer),
    /// A length field is smaller than the header, or larger than the packet that holds it.
    #[error("impossible length in {0} header")]
    Length(Layer),
    /// More IPv6 extension headers than [`crate::ipv6::MAX_EXTENSIONS`].
    #[error("too many IPv6 extension headers")]
    Extensions,
}

/// The length of `bytes`, or [`ParseError::Truncated`] if it is below `min`.
#[inline]
pub(crate) fn checked_len(bytes: &[u8], min: usize, layer: Layer) -> Result<usize, ParseError> {
    if bytes.len() < min { Err(ParseError::Truncated(layer)) } else { Ok(bytes.len()) }
}
