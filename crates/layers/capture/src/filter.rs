//! Which packets a capture takes: a filter in a subset of the pcap filter language.

mod expression;
mod parse;

use std::str::FromStr;

use expression::Expression;
use port::{DropReason, Frame, Outcome};

pub use parse::FilterError;

/// A filter in a subset of the pcap filter language (pcap-filter(7)).
///
/// | primitive | takes |
/// | --- | --- |
/// | `ether host MAC`, `ether src MAC`, `ether dst MAC` | frames with this Ethernet address |
/// | `host ADDR`, `src host ADDR`, `dst host ADDR` | IPv4, IPv6 and ARP with this address |
/// | `net CIDR`, `src net CIDR`, `dst net CIDR` | the same with an address of this network |
/// | `port N`, `src port N`, `dst port N` | TCP and UDP with this port |
/// | `portrange A-B`, `src portrange A-B`, `dst portrange A-B` | the same with a port from A to B |
/// | `tcp`, `udp`, `icmp`, `icmp6`, `arp`, `ip`, `ip6` | frames of this protocol |
/// | `vlan`, `vlan ID` | frames whose outermost tag has this VLAN identifier, or any |
/// | `less N`, `greater N` | frames of at most, or at least, N bytes |
/// | `inbound`, `outbound` | frames from the port into the switch, or the other way |
/// | `dropped` | frames that were dropped (not in pcap) |
///
/// `tcp` and `udp` may stand before a primitive with ports, `ip`, `ip6` and `arp` before one with
/// addresses: `tcp port 80`. Primitives are joined by `and` (`&&`), `or` (`||`), `not` (`!`) and
/// parentheses. As in pcap, `not` binds closest, and `and` and `or` bind alike, from left to
/// right. The empty filter takes every frame.
///
/// Two things differ from pcap. Filters see through up to eight VLAN tags, whether or not `vlan`
/// stands before. A fragment has addresses but neither a transport protocol nor ports, the first
/// one included.
///
/// A filter looks at the frame's private header only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(Expression);

impl Filter {
    /// Whether the filter takes a packet.
    #[must_use]
    pub fn matches(&self, packet: &Packet<'_>) -> bool {
        self.0.matches(packet)
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        parse::parse(text).map(Self)
    }
}

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the port into the switch.
    Inbound,
    /// From the switch out of the port.
    Outbound,
}

/// A frame that passes a port.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The frame.
    pub frame: &'a Frame,
    /// Which way it goes.
    pub direction: Direction,
    /// What became of it.
    pub outcome: Outcome,
}

impl Packet<'_> {
    /// Why the frame was dropped, if it was. Unreadable source memory is a memory fault, as in the metrics.
    pub(crate) fn drop_reason(&self) -> Option<DropReason> {
        match self.outcome {
            Outcome::Dropped(reason) => Some(reason),
            Outcome::SourceFault => Some(DropReason::MemoryFault),
            Outcome::Waiting
            | Outcome::Partial { .. }
            | Outcome::InFlight(_)
            | Outcome::Delivered => None,
        }
    }
}
