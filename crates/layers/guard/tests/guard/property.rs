//! Frames with a source of the policy pass, frames with any other source do not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use guard::{Allowed, Policy};
use offload::vnet::Unsupported;
use port::DropReason;
use proptest::prelude::*;
use wire::arp::Operation;
use wire::ethernet::MacAddr;
use wire::ip::Protocol;

use crate::packets::*;

/// A frame that a host with these addresses sends: of kind `kind`, behind `tags` tags.
fn sent(kind: usize, tags: usize, v4_source: Ipv4Addr, v6_source: Ipv6Addr) -> Vec<u8> {
    let bytes = match kind {
        0 => arp(Operation::REQUEST, MAC, v4_source, OTHER_V4),
        1 => arp(Operation::REPLY, MAC, v4_source, OTHER_V4),
        2 => v4(v4_source, Protocol::TCP, &tcp()),
        3 => v4(v4_source, Protocol::UDP, &udp(1000, 2000)),
        4 => v4(v4_source, Protocol(132), &[1; 12]),
        5 => v6(v6_source, Protocol::TCP, &tcp()),
        6 => v6(v6_source, Protocol::ICMPV6, &icmpv6(129, 100)),
        7 => nd(v6_source, solicitation(OTHER_V6, Some(MAC))),
        8 => nd(v6_source, advertisement(v6_source, Some(MAC))),
        _ => v6(v6_source, Protocol::NO_NEXT_HEADER, &[]),
    };
    tagged(&bytes, tags)
}

const KINDS: usize = 10;

/// The reason that refuses a frame of `kind` with a false source.
fn reason(kind: usize) -> DropReason {
    match kind {
        0..=1 => DropReason::SpoofedArp,
        2..=4 => DropReason::SpoofedIpv4,
        _ => DropReason::SpoofedIpv6,
    }
}

/// An address of one host.
fn v4_host() -> impl Strategy<Value = Ipv4Addr> {
    let any = any::<u32>().prop_map(Ipv4Addr::from_bits);
    any.prop_filter("unicast", |address| Allowed::host((*address).into()).is_ok())
}

fn v6_host() -> impl Strategy<Value = Ipv6Addr> {
    let any = any::<u128>().prop_map(Ipv6Addr::from_bits);
    any.prop_filter("unicast", |address| Allowed::host((*address).into()).is_ok())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn own_sources_pass_and_others_do_not(
        kind in 0..KINDS,
        tags in 0usize..=2,
        own in prop::collection::vec((v4_host(), v6_host()), 1..5),
        other in (v4_host(), v6_host()),
        flipped in (0u32..32, 0u32..128),
        pick: prop::sample::Index,
    ) {
        let hosts = own.iter().flat_map(|(a, b)| [IpAddr::V4(*a), IpAddr::V6(*b)]);
        let addresses = hosts.map(|host| Allowed::host(host).unwrap()).collect();
        let policy = Policy { mac: MAC, addresses: Some(addresses) };
        let (a, b) = own[pick.index(own.len())];
        prop_assert_eq!(check(&policy, &sent(kind, tags, a, b)), Ok(()));
        // Any other address, and one that differs by a bit.
        let close = (
            Ipv4Addr::from_bits(a.to_bits() ^ 1 << flipped.0),
            Ipv6Addr::from_bits(b.to_bits() ^ 1 << flipped.1),
        );
        for (a, b) in [other, close] {
            if own.iter().all(|own| own.0 != a && own.1 != b) {
                let checked = check(&policy, &sent(kind, tags, a, b));
                prop_assert_eq!(checked, Err(reason(kind)));
            }
        }
    }

    #[test]
    fn networks_hold_their_hosts(
        kind in 0..KINDS,
        host in (v4_host(), v6_host()),
        prefix_len in (0u32..32, 0u32..128),
        other in (v4_host(), v6_host()),
    ) {
        let masks = (
            u32::MAX.checked_shl(32 - prefix_len.0).unwrap_or(0),
            u128::MAX.checked_shl(128 - prefix_len.1).unwrap_or(0),
        );
        let networks = [
            format!("{}/{}", Ipv4Addr::from_bits(host.0.to_bits() & masks.0), prefix_len.0),
            format!("{}/{}", Ipv6Addr::from_bits(host.1.to_bits() & masks.1), prefix_len.1),
        ];
        let addresses = networks.map(|text| text.parse().unwrap()).into();
        let policy = Policy { mac: MAC, addresses: Some(addresses) };
        prop_assert_eq!(check(&policy, &sent(kind, 0, host.0, host.1)), Ok(()));
        let is_v6 = reason(kind) == DropReason::SpoofedIpv6;
        let is_within = if is_v6 {
            (other.1.to_bits() ^ host.1.to_bits()) & masks.1 == 0
        } else {
            (other.0.to_bits() ^ host.0.to_bits()) & masks.0 == 0
        };
        let expected = if is_within { Ok(()) } else { Err(reason(kind)) };
        prop_assert_eq!(check(&policy, &sent(kind, 0, other.0, other.1)), expected);
    }

    /// Completing a checksum writes bytes that the guard has not seen: it says the same of the frame before and afterwards.
    #[test]
    fn a_checksum_that_is_completed_later_forges_nothing(
        kind in 0..KINDS,
        tags in 0usize..=2,
        start in 0u16..150,
        offset in 0u16..60,
        value: u16,
        has_addresses: bool,
    ) {
        let mut bytes = sent(kind, tags, V4, V6);
        // Room for the field behind the headers, and for a value that makes the sum anything.
        bytes.extend([0; 60]);
        bytes.extend(value.to_be_bytes());
        let mut frame = port_testing::frame(&bytes);
        if !frame.set_checksum_elsewhere(Unsupported::Checksum { start, offset }) {
            return Ok(());
        }
        let policy = if has_addresses { policy() } else { policy_without_addresses() };
        let checked = check(&policy, &bytes);
        offload::complete_checksum_at(&mut bytes, frame.checksum_at).unwrap();
        prop_assert_eq!(check(&policy, &bytes), checked);
        let after = port_testing::frame(&bytes);
        prop_assert_eq!(after.headers, frame.headers);
        let parsed = usize::from(frame.headers.payload_offset);
        prop_assert_eq!(&after.header()[..parsed], &frame.header()[..parsed]);
    }

    #[test]
    fn another_mac_address_never_passes(
        kind in 0..KINDS, tags in 0usize..=3, mac: [u8; 6], has_addresses: bool,
    ) {
        prop_assume!(MacAddr(mac) != MAC);
        let mut bytes = sent(kind, tags, V4, V6);
        bytes[6..12].copy_from_slice(&mac);
        let policy = if has_addresses { policy() } else { policy_without_addresses() };
        prop_assert_eq!(check(&policy, &bytes), Err(DropReason::SpoofedMac));
    }
}
