//! The check of one frame.

use std::net::{Ipv4Addr, Ipv6Addr};

use port::{DropReason, Frame};
use wire::ethernet::{EtherType, MacAddr};
use wire::headers::{Network, Transport};
use wire::{arp, ethernet, ipv4, ipv6};

use crate::addresses::Addresses;
use crate::nd::{self, Claim};
use crate::settings::Policy;

/// The ports of a DHCP request, as a datagram has them: from 68 to 67.
const DHCP_REQUEST: [u8; 4] = [0, 68, 0, 67];

/// A policy, prepared for checks.
pub struct Checker {
    mac: MacAddr,
    /// The address that the MAC address gives.
    link_local: Ipv6Addr,
    addresses: Option<Addresses>,
}

impl Checker {
    /// Prepares a policy.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self {
            mac: policy.mac,
            link_local: ipv6::link_local(policy.mac),
            addresses: policy.addresses.as_deref().map(Addresses::new),
        }
    }

    /// Checks a frame by its private header.
    ///
    /// # Errors
    /// The reason to refuse it.
    #[inline]
    pub fn check(&self, frame: &Frame) -> Result<(), DropReason> {
        let is_whole = usize::from(frame.header_len) >= ethernet::HEADER_LEN;
        if !is_whole || frame.source() != self.mac {
            return Err(DropReason::SpoofedMac);
        }
        let l3 = || frame.header().get(usize::from(frame.headers.l3_offset)..).unwrap_or_default();
        let (honest, reason) = match frame.headers.network {
            Network::Arp => (self.is_honest_arp(l3()), DropReason::SpoofedArp),
            Network::Ipv4 => (self.is_honest_ipv4(frame, l3()), DropReason::SpoofedIpv4),
            Network::Ipv6 => (self.is_honest_ipv6(frame, l3()), DropReason::SpoofedIpv6),
            Network::Other => (!is_hidden(frame), DropReason::Malformed),
        };
        if honest { Ok(()) } else { Err(reason) }
    }

    fn is_honest_arp(&self, l3: &[u8]) -> bool {
        let Ok(arp) = arp::Packet::new_checked(l3) else { return false };
        if arp.sender_mac() != self.mac {
            return false;
        }
        let Some(addresses) = &self.addresses else { return true };
        if arp.sender_ip().is_unspecified() {
            // A probe claims its target: another host that probes the same address at that time
            // gives it up.
            return arp.operation() == arp::Operation::REQUEST && addresses.has_v4(arp.target_ip());
        }
        addresses.has_v4(arp.sender_ip())
    }

    #[inline]
    fn is_honest_ipv4(&self, frame: &Frame, l3: &[u8]) -> bool {
        let Some(addresses) = &self.addresses else { return true };
        let Some(fixed) = l3.first_chunk::<{ ipv4::HEADER_LEN }>() else { return false };
        let source = ipv4::Packet::new_unchecked(fixed).src();
        addresses.has_v4(source)
            || source == Ipv4Addr::UNSPECIFIED
                && frame.headers.transport == Transport::Udp
                && frame.headers.ports(frame.header()) == Some(&DHCP_REQUEST)
    }

    #[inline]
    fn is_honest_ipv6(&self, frame: &Frame, l3: &[u8]) -> bool {
        let Some(fixed) = l3.first_chunk::<{ ipv6::HEADER_LEN }>() else { return false };
        let source = ipv6::Packet::new_unchecked(fixed).src();
        let claim = match frame.headers.transport {
            Transport::Icmpv6 => nd::claim_of_message(frame, l3, self.mac),
            Transport::Fragment => nd::claim_of_fragment(frame),
            Transport::Opaque => nd::claim_of_opaque(l3),
            _ => Claim::None,
        };
        let Some(addresses) = &self.addresses else { return claim != Claim::Forged };
        let owns = |address| address == self.link_local || addresses.has_v6(address);
        match claim {
            Claim::Forged => false,
            Claim::Address(target) => owns(target) && owns(source),
            Claim::Tentative(target) => owns(target),
            Claim::Unaddressed => source.is_unspecified() || owns(source),
            Claim::None => owns(source),
        }
    }
}

/// Below this value, the field after the addresses is the length of an IEEE 802.3 frame, and an LLC header follows.
const TYPES: u16 = 0x0600;
/// The EtherType of a frame with an LLC header that is too long for a length.
const LONG_LLC: u16 = 0x8870;

/// LLC headers (destination, source, control) that pass: IS-IS, which a router sends. Those that carry other protocols (SNAP, IP,
/// ARP) would hide them, and a guest has no business with spanning trees.
const LLC: [[u8; 3]; 1] = [[0xfe, 0xfe, 0x03]];

/// Tags of other kinds than the parser sees through, and headers after which a device goes on with the EtherType behind them.
const TAGS: [u16; 19] = [
    // VLAN tags from before IEEE 802.1ad, and a whole Ethernet frame (0x6558).
    0x9100, 0x9200, 0x9300, 0x6558,
    // Tags of Cisco's (0x8909, 0x8926), of backbone bridges, of bridge port extension, and against loss (IEEE 802.1CB).
    0x8909, 0x8926, 0x88e7, 0x893f, 0xf1c1,
    // Tags by which a switch tells its host the port (DSA): Marvell's, Linux's own, NXP's, Renesas', Broadcom's, Realtek's. No guest has such a
    // switch.
    0xdada, 0xdadb, 0xdadc, 0xe001, 0x8874, 0x8899,
    // Rings and parallel networks against loss (HSR, PRP; IEC 62439-3), TRILL (RFC 6325), NSH (RFC 8300).
    0x892f, 0x88fb, 0x22f3, 0x894f,
];

/// Whether a frame whose protocol the parser does not know may carry one that it knows. Some switches, access points and hosts take a header off,
/// or make an Ethernet II frame of an IEEE 802.3 one, and hand on what lies behind it (CVE-2021-27853, CVE-2021-27861). The parser does not
/// look that far, so such frames are refused.
#[cold]
fn is_hidden(frame: &Frame) -> bool {
    let header = frame.header();
    let Some((link, rest)) = header.split_at_checked(frame.headers.l3_offset.into()) else {
        return true;
    };
    let Some(ethertype) = link.last_chunk().copied().map(u16::from_be_bytes) else { return true };
    match ethertype {
        length if length < TYPES => {
            let is_whole = link.len() + usize::from(length) <= frame.len as usize;
            !is_whole || !is_listed(&rest[..rest.len().min(length.into())])
        }
        LONG_LLC => !is_listed(rest),
        // The parser sees through VLAN tags: this is one too many.
        tag => EtherType(tag).is_vlan() || TAGS.contains(&tag),
    }
}

fn is_listed(llc: &[u8]) -> bool {
    llc.first_chunk().is_some_and(|llc| LLC.contains(llc))
}
