//! A parsed filter, and what it says of a packet.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use port::Frame;
use wire::arp;
use wire::ethernet::MacAddr;
use wire::headers::{Network, Transport};

use crate::filter::{Direction, Packet};

/// The bits of a tag's control information that are the VLAN identifier.
pub(crate) const VLAN_ID_MASK: u16 = 0xfff;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    Everything,
    Primitive(Primitive),
    Not(Box<Expression>),
    /// Joined from left to right. A list rather than a tree, so that a long text does not nest deeply.
    Chain {
        first: Box<Expression>,
        rest: Vec<(Operator, Expression)>,
    },
}

/// What joins two expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    And,
    Or,
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Primitive {
    Ether(End, MacAddr),
    Address(End, Subnet),
    Port(End, RangeInclusive<u16>),
    Network(Network),
    Transport(Transport),
    Vlan(Option<u16>),
    Less(u32),
    Greater(u32),
    Direction(Direction),
    Dropped,
}

/// Which of a packet's two addresses or ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Either,
    Source,
    Destination,
}

/// Addresses with a common prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subnet {
    address: IpAddr,
    prefix: u8,
}

impl Expression {
    pub(crate) fn matches(&self, packet: &Packet<'_>) -> bool {
        match self {
            Self::Everything => true,
            Self::Primitive(primitive) => primitive.matches(packet),
            Self::Not(inner) => !inner.matches(packet),
            Self::Chain { first, rest } => {
                rest.iter().fold(first.matches(packet), |left, (operator, right)| match operator {
                    Operator::And => left && right.matches(packet),
                    Operator::Or => left || right.matches(packet),
                })
            }
        }
    }
}

impl Primitive {
    fn matches(&self, packet: &Packet<'_>) -> bool {
        let frame = packet.frame;
        let headers = &frame.headers;
        match self {
            Self::Ether(end, mac) => {
                end.test([frame.source(), frame.destination()], |address| address == *mac)
            }
            Self::Address(end, subnet) => addresses(frame)
                .is_some_and(|addresses| end.test(addresses, |address| subnet.contains(address))),
            Self::Port(end, range) => {
                ports(frame).is_some_and(|ports| end.test(ports, |port| range.contains(&port)))
            }
            Self::Network(network) => headers.network == *network,
            Self::Transport(transport) => headers.transport == *transport,
            Self::Vlan(id) => {
                headers.vlan.is_some_and(|tag| id.is_none_or(|wanted| tag & VLAN_ID_MASK == wanted))
            }
            Self::Less(len) => frame.len <= *len,
            Self::Greater(len) => frame.len >= *len,
            Self::Direction(direction) => packet.direction == *direction,
            Self::Dropped => packet.drop_reason().is_some(),
        }
    }
}

impl End {
    /// Whether the test holds for this end of `both`: the source and the destination.
    fn test<T>(self, both: [T; 2], test: impl Fn(T) -> bool) -> bool {
        let [source, destination] = both;
        match self {
            Self::Either => test(source) || test(destination),
            Self::Source => test(source),
            Self::Destination => test(destination),
        }
    }
}

impl Subnet {
    /// The addresses that begin with the first `prefix` bits of `address`. None if the address has
    /// fewer bits, or if a later bit is set.
    pub(crate) fn new(address: IpAddr, prefix: u8) -> Option<Self> {
        let subnet = Self { address, prefix };
        let rest = match address {
            IpAddr::V4(address) if prefix <= 32 => u128::from(address.to_bits() & !mask_v4(prefix)),
            IpAddr::V6(address) if prefix <= 128 => address.to_bits() & !mask_v6(prefix),
            _ => return None,
        };
        (rest == 0).then_some(subnet)
    }

    pub(crate) fn host(address: IpAddr) -> Self {
        Self { address, prefix: if address.is_ipv4() { 32 } else { 128 } }
    }

    fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                (network.to_bits() ^ address.to_bits()) & mask_v4(self.prefix) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                (network.to_bits() ^ address.to_bits()) & mask_v6(self.prefix) == 0
            }
            _ => false,
        }
    }
}

fn mask_v4(prefix: u8) -> u32 {
    !u32::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    !u128::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

/// The source and destination address, of an ARP packet the sender's and the target's.
fn addresses(frame: &Frame) -> Option<[IpAddr; 2]> {
    let header = frame.header();
    if frame.headers.network == Network::Arp {
        let packet = header.get(usize::from(frame.headers.l3_offset)..)?;
        let packet = arp::Packet::new_checked(packet).ok()?;
        return Some([packet.sender_ip().into(), packet.target_ip().into()]);
    }
    let both = frame.headers.addresses(header)?;
    let (source, destination) = both.split_at(both.len() / 2);
    Some([address(source)?, address(destination)?])
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(*bytes.first_chunk::<4>()?)),
        _ => Some(IpAddr::from(*bytes.first_chunk::<16>()?)),
    }
}

fn ports(frame: &Frame) -> Option<[u16; 2]> {
    let &[a, b, c, d] = frame.headers.ports(frame.header())?.first_chunk()?;
    Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
}
