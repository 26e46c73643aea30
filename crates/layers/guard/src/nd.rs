//! What ICMPv6 claims: neighbour discovery, in messages and fragments.

use std::net::Ipv6Addr;

use port::Frame;
use wire::ethernet::MacAddr;
use wire::ip::Protocol;
use wire::ipv6::{self, walk_extensions};
use wire::ndp::{self, Kind};

/// What an IPv6 packet claims besides its source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nothing.
    None,
    /// Nothing, and a host without an address may send it.
    Unaddressed,
    /// The address is the sender's.
    Address(Ipv6Addr),
    /// The address is tentative (RFC 4862): the sender takes it if nobody objects.
    Tentative(Ipv6Addr),
    /// Something that is another's, or that cannot be checked.
    Forged,
}

/// ICMPv6 types of a multicast listener's messages: report and done (RFC 2710), report of version
/// 2 (RFC 3810). A host sends them for its link-local address's group before it has that address.
const LISTENER_MESSAGES: [u8; 3] = [131, 132, 143];

/// Bytes of a fragment header.
const FRAGMENT_HEADER_LEN: usize = 8;
/// Where the fragment offset is in it, and which bits it has.
const FRAGMENT_OFFSET: usize = 2;
const FRAGMENT_OFFSET_MASK: u16 = 0xfff8;

/// What an ICMPv6 message claims. `l3` is the private header from the IPv6 header on.
pub(crate) fn claim_of_message(frame: &Frame, l3: &[u8], mac: MacAddr) -> Claim {
    let message = usize::from(frame.headers.l4_offset.saturating_sub(frame.headers.l3_offset));
    let Some(&kind) = l3.get(message) else { return Claim::Forged };
    if LISTENER_MESSAGES.contains(&kind) {
        return Claim::Unaddressed;
    }
    if !Kind(kind).is_neighbour_discovery() {
        return Claim::None;
    }
    // No host puts an extension header before neighbour discovery. An atomic fragment has one.
    if message != ipv6::HEADER_LEN {
        return Claim::Forged;
    }
    claim_of_neighbour_discovery(frame, l3, mac).unwrap_or(Claim::Forged)
}

/// None: forged.
fn claim_of_neighbour_discovery(frame: &Frame, l3: &[u8], mac: MacAddr) -> Option<Claim> {
    let packet = ipv6::Packet::new_unchecked(l3);
    let message =
        ndp::Packet::new_checked(l3.get(ipv6::HEADER_LEN..packet_len(frame, l3))?).ok()?;
    for option in message.options() {
        let option = option.ok()?;
        if option.is_link_address() && option.link_address() != Some(mac) {
            return None;
        }
    }
    Some(match message.kind() {
        Kind::ROUTER_SOLICITATION => Claim::Unaddressed,
        Kind::NEIGHBOUR_SOLICITATION if packet.src().is_unspecified() => {
            Claim::Tentative(message.target()?)
        }
        Kind::NEIGHBOUR_SOLICITATION => Claim::None,
        Kind::NEIGHBOUR_ADVERTISEMENT => Claim::Address(message.target()?),
        // Router advertisements and redirects: a guest is no router.
        _ => return None,
    })
}

/// What a fragment claims. It is forged if it begins a message of neighbour discovery, or does not
/// show whether it does. Later fragments claim nothing: without the first one there is no message.
pub(crate) fn claim_of_fragment(frame: &Frame) -> Claim {
    if begins_neighbour_discovery(frame).unwrap_or(true) { Claim::Forged } else { Claim::None }
}

/// What a packet claims whose transport header is not whole in the private header. It claims
/// nothing if its extension headers are whole there and no ICMPv6 follows them; otherwise it is
/// forged. `l3` is the private header from the IPv6 header on.
pub(crate) fn claim_of_opaque(l3: &[u8]) -> Claim {
    let Some(fixed) = l3.first_chunk::<{ ipv6::HEADER_LEN }>() else { return Claim::Forged };
    let first = ipv6::Packet::new_unchecked(fixed).next_header();
    match walk_extensions(first, l3, ipv6::HEADER_LEN) {
        Ok(upper) if !upper.fragment && upper.protocol != Protocol::ICMPV6 => Claim::None,
        _ => Claim::Forged,
    }
}

/// Whether a fragment begins a message of neighbour discovery; none if it does not show that.
fn begins_neighbour_discovery(frame: &Frame) -> Option<bool> {
    let l3 = usize::from(frame.headers.l3_offset);
    let start = usize::from(frame.headers.l4_offset);
    let bytes = frame.header();
    let header = bytes.get(start.checked_sub(FRAGMENT_HEADER_LEN)?..start)?;
    let offset = u16::from_be_bytes(*header.get(FRAGMENT_OFFSET..)?.first_chunk()?);
    if offset & FRAGMENT_OFFSET_MASK != 0 {
        return Some(false);
    }
    // Ethernet's padding is no part of it.
    let end = l3 + packet_len(frame, bytes.get(l3..)?);
    let bytes = &bytes[..end.min(bytes.len())];
    let upper = walk_extensions(Protocol(header[0]), bytes, start).ok()?;
    if upper.fragment {
        return None;
    }
    if upper.protocol != Protocol::ICMPV6 {
        return Some(false);
    }
    Some(Kind(*bytes.get(upper.offset)?).is_neighbour_discovery())
}

/// The length of the IPv6 packet that starts `l3`, by its payload length. If that is 0, the packet
/// ends with its frame.
fn packet_len(frame: &Frame, l3: &[u8]) -> usize {
    match l3.first_chunk::<{ ipv6::HEADER_LEN }>().map(ipv6::Packet::new_unchecked) {
        Some(packet) if packet.payload_len() != 0 => {
            ipv6::HEADER_LEN + usize::from(packet.payload_len())
        }
        _ => (frame.len as usize).saturating_sub(frame.headers.l3_offset.into()),
    }
}
