//! The check of one frame.

use std::net::{Ipv4Addr, Ipv6Addr};

use port::{DropReason, Frame};
use wire::ethernet::MacAddr;
use wire::headers::{Network, Transport};
use wire::{arp, ethernet, ipv4, ipv6};

use crate::addresses::Addresses;
use crate::hidden;
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
            Network::Other => (!hidden::is_hidden(frame), DropReason::Malformed),
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
