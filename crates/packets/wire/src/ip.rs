//! What IPv4 and IPv6 share.

use core::fmt;

use crate::bytes::field_types;

/// The protocol above IP: IPv4's protocol field, IPv6's next header (IANA "Assigned Internet
/// Protocol Numbers").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Protocol(pub u8);

field_types! {
    Protocol: |[byte]: [u8; 1]| Protocol(byte), |protocol: Protocol| [protocol.0];
}

impl Protocol {
    /// IPv6 hop-by-hop options.
    pub const HOP_BY_HOP: Self = Self(0);
    /// ICMP for IPv4.
    pub const ICMP: Self = Self(1);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// IPv6 routing header.
    pub const ROUTING: Self = Self(43);
    /// IPv6 fragment header.
    pub const FRAGMENT: Self = Self(44);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);
    /// IPv6: nothing follows.
    pub const NO_NEXT_HEADER: Self = Self(59);
    /// IPv6 destination options.
    pub const DESTINATION_OPTIONS: Self = Self(60);
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "protocol {}", self.0)
    }
}
