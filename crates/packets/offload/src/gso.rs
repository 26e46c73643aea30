//! What a frame that is to be segmented is.

use wire::headers::{Headers, Network, Transport};
use wire::netif;

/// The protocol of an unsegmented frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GsoKind {
    /// TCP over IPv4.
    TcpV4,
    /// TCP over IPv6.
    TcpV6,
    /// UDP over IPv4: a datagram for each segment (Linux's `SKB_GSO_UDP_L4`, virtio's `UDP_L4`).
    UdpV4,
    /// UDP over IPv6.
    UdpV6,
}

impl GsoKind {
    /// netif's name for it. netif has none for UDP.
    #[must_use]
    pub const fn netif(self) -> Option<netif::GsoKind> {
        match self {
            Self::TcpV4 => Some(netif::GsoKind::TcpV4),
            Self::TcpV6 => Some(netif::GsoKind::TcpV6),
            Self::UdpV4 | Self::UdpV6 => None,
        }
    }

    /// Whether the segments are TCP's.
    #[must_use]
    pub const fn is_tcp(self) -> bool {
        matches!(self, Self::TcpV4 | Self::TcpV6)
    }
}

impl From<netif::GsoKind> for GsoKind {
    fn from(kind: netif::GsoKind) -> Self {
        match kind {
            netif::GsoKind::TcpV4 => Self::TcpV4,
            netif::GsoKind::TcpV6 => Self::TcpV6,
        }
    }
}

/// How a frame must be segmented.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gso {
    /// Its protocol.
    pub kind: GsoKind,
    /// Payload bytes of each segment but the last (of TCP, the maximum segment size).
    pub size: u16,
}

impl Gso {
    /// Whether a frame with these headers is what the kind names.
    #[inline]
    #[must_use]
    pub fn fits(self, headers: &Headers) -> bool {
        let (network, transport) = match self.kind {
            GsoKind::TcpV4 => (Network::Ipv4, Transport::Tcp),
            GsoKind::TcpV6 => (Network::Ipv6, Transport::Tcp),
            GsoKind::UdpV4 => (Network::Ipv4, Transport::Udp),
            GsoKind::UdpV6 => (Network::Ipv6, Transport::Udp),
        };
        headers.network == network && headers.transport == transport
    }
}
