//! Every kind of forgery is refused; what an honest Linux host sends passes.

use std::net::{Ipv4Addr, Ipv6Addr};

use guard::Policy;
use port::DropReason;
use wire::arp::Operation;
use wire::ethernet::EtherType;
use wire::ip::Protocol;
use wire::ndp;

use crate::packets::*;

const UNSPECIFIED_V4: Ipv4Addr = Ipv4Addr::UNSPECIFIED;
const UNSPECIFIED_V6: Ipv6Addr = Ipv6Addr::UNSPECIFIED;

/// An extension header of 8 bytes: `next`, and the rest zeros. As a fragment header, it is that of
/// an atomic fragment.
fn extension(next: Protocol, payload: &[u8]) -> Vec<u8> {
    [&[next.0, 0, 0, 0, 0, 0, 0, 0], payload].concat()
}

/// A fragment header for `next` at `offset`, with more fragments to come, and its payload.
fn fragment(next: Protocol, offset: u16, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (offset | 1).to_be_bytes();
    [&[next.0, 0, high, low, 0, 0, 0, 9], payload].concat()
}

/// What Linux sends from its first moment on.
fn honest() -> Vec<(&'static str, Vec<u8>)> {
    let mldv2 = [&icmpv6(143, 8), &[4, 0, 0, 0][..], &ALL_ROUTERS.octets()].concat();
    let mldv2 = extension(Protocol::ICMPV6, &mldv2);
    let large_mldv2 = extension(Protocol::ICMPV6, &icmpv6(143, 8 + 20 * 20));
    let with_nonce = [&nd_message(solicitation(V6, None))[..], &[14, 1, 1, 2, 3, 4, 5, 6]].concat();
    let ping = icmpv6(128, 64);
    vec![
        ("ARP request", arp(Operation::REQUEST, MAC, V4, OTHER_V4)),
        ("ARP reply", arp(Operation::REPLY, MAC, V4, OTHER_V4)),
        ("gratuitous ARP", arp(Operation::REQUEST, MAC, V4, V4)),
        ("ARP probe", arp(Operation::REQUEST, MAC, UNSPECIFIED_V4, V4)),
        ("DHCP discover", v4(UNSPECIFIED_V4, Protocol::UDP, &udp(68, 67))),
        ("DHCP renewal", v4(V4, Protocol::UDP, &udp(68, 67))),
        ("TCP", v4(V4, Protocol::TCP, &tcp())),
        ("UDP", v4(V4, Protocol::UDP, &udp(5000, 53))),
        ("ping", v4(V4, Protocol::ICMP, &[8, 0, 0, 0, 0, 1, 0, 1])),
        ("IGMP", v4(V4, Protocol(2), &[0x22, 0, 0, 0, 0, 0, 0, 0])),
        ("duplicate address detection", nd(UNSPECIFIED_V6, solicitation(V6, None))),
        ("the same, enhanced", v6(UNSPECIFIED_V6, Protocol::ICMPV6, &with_nonce)),
        ("the same, link-local", nd(UNSPECIFIED_V6, solicitation(LINK_LOCAL, None))),
        ("solicitation", nd(V6, solicitation(OTHER_V6, Some(MAC)))),
        ("link-local solicitation", nd(LINK_LOCAL, solicitation(OTHER_V6, Some(MAC)))),
        ("unicast solicitation", nd(V6, solicitation(OTHER_V6, None))),
        ("advertisement", nd(V6, advertisement(V6, Some(MAC)))),
        ("link-local advertisement", nd(LINK_LOCAL, advertisement(LINK_LOCAL, Some(MAC)))),
        ("answer to a unicast solicitation", nd(LINK_LOCAL, advertisement(V6, None))),
        (
            "first router solicitation",
            nd(UNSPECIFIED_V6, ndp::Repr::RouterSolicitation { source_link: None }),
        ),
        (
            "router solicitation",
            nd(LINK_LOCAL, ndp::Repr::RouterSolicitation { source_link: Some(MAC) }),
        ),
        ("first MLDv2 report", v6(UNSPECIFIED_V6, Protocol::HOP_BY_HOP, &mldv2)),
        ("MLDv2 report", v6(LINK_LOCAL, Protocol::HOP_BY_HOP, &mldv2)),
        ("long MLDv2 report", v6(LINK_LOCAL, Protocol::HOP_BY_HOP, &large_mldv2)),
        (
            "MLD report",
            v6(LINK_LOCAL, Protocol::HOP_BY_HOP, &extension(Protocol::ICMPV6, &icmpv6(131, 24))),
        ),
        (
            "MLD done",
            v6(LINK_LOCAL, Protocol::HOP_BY_HOP, &extension(Protocol::ICMPV6, &icmpv6(132, 24))),
        ),
        ("DHCPv6", v6(LINK_LOCAL, Protocol::UDP, &udp(546, 547))),
        ("TCP over IPv6", v6(V6, Protocol::TCP, &tcp())),
        ("UDP over IPv6", v6(V6, Protocol::UDP, &udp(5000, 53))),
        ("ping over IPv6", v6(V6, Protocol::ICMPV6, &ping)),
        (
            "first fragment of a large ping",
            v6(V6, Protocol::FRAGMENT, &fragment(Protocol::ICMPV6, 0, &ping)),
        ),
        (
            "later fragment of it",
            v6(V6, Protocol::FRAGMENT, &fragment(Protocol::ICMPV6, 1448, &icmpv6(136, 24))),
        ),
        (
            "first fragment of UDP",
            v6(V6, Protocol::FRAGMENT, &fragment(Protocol::UDP, 0, &udp(5000, 53))),
        ),
        ("another protocol", ethernet(MAC, EtherType(0x88cc), &[0; 46])),
        ("an announcement by QEMU (RARP)", ethernet(MAC, EtherType(0x8035), &[0; 46])),
    ]
}

#[test]
fn what_an_honest_host_sends_passes() {
    for (name, bytes) in honest() {
        for tags in 0..=2 {
            let bytes = tagged(&bytes, tags);
            assert_eq!(check(&policy(), &bytes), Ok(()), "{name}, {tags} tags");
            assert_eq!(check(&policy_without_addresses(), &bytes), Ok(()), "{name}, {tags} tags");
        }
    }
}

#[test]
fn another_mac_address_is_refused_in_every_frame() {
    for (name, mut bytes) in honest() {
        bytes[6..12].copy_from_slice(&OTHER_MAC.0);
        for tags in 0..=2 {
            for policy in [policy(), policy_without_addresses()] {
                let checked = check(&policy, &tagged(&bytes, tags));
                assert_eq!(checked, Err(DropReason::SpoofedMac), "{name}, {tags} tags");
            }
        }
    }
}

/// Asserts that each is refused for this reason, behind any tags.
fn refused(policy: &Policy, reason: DropReason, forgeries: &[(&str, Vec<u8>)]) {
    for (name, bytes) in forgeries {
        for tags in 0..=2 {
            assert_eq!(check(policy, &tagged(bytes, tags)), Err(reason), "{name}, {tags} tags");
        }
    }
}

/// An extension header of `8 + 8 * units` bytes.
fn long_extension(next: Protocol, units: u8, payload: &[u8]) -> Vec<u8> {
    let options = vec![0; 6 + 8 * usize::from(units)];
    [&[next.0, units][..], &options, payload].concat()
}

#[test]
fn a_transport_header_behind_the_private_header_passes_unless_it_may_claim_something() {
    let behind = |source, next, units, payload: &[u8]| {
        v6(source, Protocol::HOP_BY_HOP, &long_extension(next, units, payload))
    };
    let advertisement = nd_message(advertisement(OTHER_V6, Some(OTHER_MAC)));
    for policy in [policy(), policy_without_addresses()] {
        // The extension ends in the private header, the header behind it does not.
        let shown = behind(V6, Protocol::TCP, 7, &tcp());
        assert_eq!(check(&policy, &shown), Ok(()));
        let mut options = v4(V4, Protocol::TCP, &tcp());
        options[14 + 20 + 12] = 0xf0;
        assert_eq!(check(&policy, &tagged(&options, 2)), Ok(()));
        refused(
            &policy,
            DropReason::SpoofedIpv6,
            &[
                (
                    "an advertisement, half of it shown",
                    behind(V6, Protocol::ICMPV6, 7, &advertisement),
                ),
                ("an advertisement, not shown", behind(V6, Protocol::ICMPV6, 30, &advertisement)),
                ("a segment, not shown", behind(V6, Protocol::TCP, 30, &tcp())),
            ],
        );
    }
    let others = [("another's source", behind(OTHER_V6, Protocol::TCP, 7, &tcp()))];
    refused(&policy(), DropReason::SpoofedIpv6, &others);
    assert_eq!(check(&policy_without_addresses(), &others[0].1), Ok(()));
}

#[test]
fn forged_arp() {
    let always = [
        ("another's MAC address in a request", arp(Operation::REQUEST, OTHER_MAC, V4, OTHER_V4)),
        ("another's MAC address in a reply", arp(Operation::REPLY, OTHER_MAC, V4, OTHER_V4)),
        (
            "another's MAC address in a probe",
            arp(Operation::REQUEST, OTHER_MAC, UNSPECIFIED_V4, V4),
        ),
    ];
    let odd = [14, 15, 16, 17, 18, 19].map(|at| {
        let mut bytes = arp(Operation::REPLY, MAC, V4, OTHER_V4);
        bytes[at] ^= 8;
        ("odd types and lengths", bytes)
    });
    let truncated = ("truncated", arp(Operation::REPLY, MAC, V4, OTHER_V4)[..41].to_vec());
    for policy in [policy(), policy_without_addresses()] {
        refused(&policy, DropReason::SpoofedArp, &always);
        refused(&policy, DropReason::SpoofedArp, &odd);
        refused(&policy, DropReason::SpoofedArp, std::slice::from_ref(&truncated));
    }
    refused(
        &policy(),
        DropReason::SpoofedArp,
        &[
            ("another's address in a request", arp(Operation::REQUEST, MAC, OTHER_V4, V4)),
            ("another's address in a reply", arp(Operation::REPLY, MAC, OTHER_V4, V4)),
            ("gratuitous for another", arp(Operation::REQUEST, MAC, OTHER_V4, OTHER_V4)),
            ("a probe for another's", arp(Operation::REQUEST, MAC, UNSPECIFIED_V4, OTHER_V4)),
            ("a reply from nobody", arp(Operation::REPLY, MAC, UNSPECIFIED_V4, V4)),
        ],
    );
}

#[test]
fn forged_ipv4() {
    let mut first_fragment = v4(UNSPECIFIED_V4, Protocol::UDP, &udp(68, 67));
    first_fragment[20] = 0x20;
    refused(
        &policy(),
        DropReason::SpoofedIpv4,
        &[
            ("TCP", v4(OTHER_V4, Protocol::TCP, &tcp())),
            ("UDP", v4(OTHER_V4, Protocol::UDP, &udp(68, 67))),
            ("ICMP", v4(OTHER_V4, Protocol::ICMP, &[5, 1, 0, 0, 10, 77, 0, 1])),
            ("another protocol", v4(OTHER_V4, Protocol(47), &[0; 40])),
            ("broadcast", v4(Ipv4Addr::BROADCAST, Protocol::UDP, &udp(1, 2))),
            ("unspecified, other ports", v4(UNSPECIFIED_V4, Protocol::UDP, &udp(67, 68))),
            ("unspecified TCP", v4(UNSPECIFIED_V4, Protocol::TCP, &tcp())),
            ("unspecified fragment", first_fragment),
        ],
    );
}

#[test]
fn forged_ipv6_sources() {
    let report = extension(Protocol::ICMPV6, &icmpv6(143, 28));
    let other_link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0216, 0x3eff, 0xfe00, 2);
    refused(
        &policy(),
        DropReason::SpoofedIpv6,
        &[
            ("TCP", v6(OTHER_V6, Protocol::TCP, &tcp())),
            ("UDP", v6(OTHER_V6, Protocol::UDP, &udp(546, 547))),
            ("ping", v6(OTHER_V6, Protocol::ICMPV6, &icmpv6(128, 64))),
            ("no next header", v6(OTHER_V6, Protocol::NO_NEXT_HEADER, &[])),
            ("a report", v6(OTHER_V6, Protocol::HOP_BY_HOP, &report)),
            ("link-local", v6(other_link_local, Protocol::UDP, &udp(546, 547))),
            ("a fragment", v6(OTHER_V6, Protocol::FRAGMENT, &fragment(Protocol::UDP, 8, &[0; 8]))),
            ("unspecified TCP", v6(UNSPECIFIED_V6, Protocol::TCP, &tcp())),
            ("unspecified UDP", v6(UNSPECIFIED_V6, Protocol::UDP, &udp(546, 547))),
            ("unspecified ping", v6(UNSPECIFIED_V6, Protocol::ICMPV6, &icmpv6(128, 8))),
            (
                "unspecified fragment",
                v6(UNSPECIFIED_V6, Protocol::FRAGMENT, &fragment(Protocol::ICMPV6, 8, &[0; 8])),
            ),
        ],
    );
}

#[test]
fn forged_neighbour_discovery_with_addresses() {
    refused(
        &policy(),
        DropReason::SpoofedIpv6,
        &[
            ("another's source", nd(OTHER_V6, solicitation(V6, Some(MAC)))),
            ("an advertisement for another", nd(V6, advertisement(OTHER_V6, Some(MAC)))),
            ("without a link-layer address", nd(V6, advertisement(OTHER_V6, None))),
            ("an advertisement from another", nd(OTHER_V6, advertisement(V6, Some(MAC)))),
            ("an advertisement from nobody", nd(UNSPECIFIED_V6, advertisement(V6, Some(MAC)))),
            ("another's address detected", nd(UNSPECIFIED_V6, solicitation(OTHER_V6, None))),
            (
                "a router solicitation from another",
                nd(OTHER_V6, ndp::Repr::RouterSolicitation { source_link: Some(MAC) }),
            ),
        ],
    );
}

/// Messages that are refused under any policy.
fn forged_messages() -> Vec<(&'static str, Vec<u8>)> {
    let stranger = Some(OTHER_MAC);
    let mut second = nd_message(solicitation(OTHER_V6, Some(MAC)));
    second.extend([1, 1]);
    second.extend(OTHER_MAC.0);
    let mut long_address = nd_message(solicitation(OTHER_V6, None));
    long_address.extend([1, 2, 0x00, 0x16, 0x3e, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut no_length = nd_message(advertisement(V6, Some(MAC)));
    no_length[25] = 0;
    vec![
        ("another's MAC address in a solicitation", nd_message(solicitation(OTHER_V6, stranger))),
        ("another's MAC address in an advertisement", nd_message(advertisement(V6, stranger))),
        (
            "another's MAC address in a router solicitation",
            nd_message(ndp::Repr::RouterSolicitation { source_link: stranger }),
        ),
        ("another's MAC address in a second option", second),
        ("a longer link-layer address", long_address),
        ("an option without length", no_length),
        ("an option cut off", nd_message(advertisement(V6, Some(MAC)))[..31].to_vec()),
        ("a message cut off", icmpv6(136, 23)),
        ("a router advertisement", icmpv6(134, 16)),
        ("a redirect", icmpv6(137, 40)),
    ]
}

#[test]
fn forged_neighbour_discovery() {
    let forgeries: Vec<_> = forged_messages()
        .into_iter()
        .map(|(name, message)| (name, v6(V6, Protocol::ICMPV6, &message)))
        .collect();
    for policy in [policy(), policy_without_addresses()] {
        refused(&policy, DropReason::SpoofedIpv6, &forgeries);
    }
}

#[test]
fn forged_neighbour_discovery_whose_packet_gives_no_length() {
    for (name, message) in forged_messages() {
        let mut bytes = v6(V6, Protocol::ICMPV6, &message);
        bytes[18..20].fill(0);
        for policy in [policy(), policy_without_addresses()] {
            assert_eq!(check(&policy, &bytes), Err(DropReason::SpoofedIpv6), "{name}");
        }
    }
}

#[test]
fn what_hides_neighbour_discovery_is_refused() {
    let honest = nd_message(advertisement(V6, Some(MAC)));
    let options = |payload: &[u8]| extension(Protocol::ICMPV6, payload);
    let mut beyond = nd_message(solicitation(OTHER_V6, None));
    // A nonce that reaches to the end of the private header, then a false address.
    beyond.extend([14, 8].into_iter().chain([0; 62]));
    beyond.extend([1, 1].into_iter().chain(OTHER_MAC.0));
    let past_the_header = [&[Protocol::ICMPV6.0, 15][..], &[0; 126], &honest].concat();
    let hidden = [
        ("beyond the private header", v6(V6, Protocol::ICMPV6, &beyond)),
        ("behind hop-by-hop options", v6(V6, Protocol::HOP_BY_HOP, &options(&honest))),
        ("behind destination options", v6(V6, Protocol::DESTINATION_OPTIONS, &options(&honest))),
        ("behind a routing header", v6(V6, Protocol::ROUTING, &options(&honest))),
        ("in an atomic fragment", v6(V6, Protocol::FRAGMENT, &options(&honest))),
        (
            "in a first fragment",
            v6(V6, Protocol::FRAGMENT, &fragment(Protocol::ICMPV6, 0, &honest)),
        ),
        (
            "in a first fragment behind options",
            v6(
                V6,
                Protocol::FRAGMENT,
                &fragment(Protocol::DESTINATION_OPTIONS, 0, &options(&honest)),
            ),
        ),
        (
            "in a later fragment behind options",
            v6(V6, Protocol::FRAGMENT, &fragment(Protocol::DESTINATION_OPTIONS, 0, &options(&[]))),
        ),
        (
            "behind options that leave the private header",
            v6(
                V6,
                Protocol::FRAGMENT,
                &fragment(Protocol::DESTINATION_OPTIONS, 0, &past_the_header),
            ),
        ),
        (
            "in a fragment of a fragment",
            v6(
                V6,
                Protocol::FRAGMENT,
                &fragment(Protocol::FRAGMENT, 0, &fragment(Protocol::ICMPV6, 8, &honest)),
            ),
        ),
        (
            "in a fragment of nothing",
            v6(V6, Protocol::FRAGMENT, &fragment(Protocol::ICMPV6, 0, &[])),
        ),
    ];
    for policy in [policy(), policy_without_addresses()] {
        refused(&policy, DropReason::SpoofedIpv6, &hidden[1..]);
        assert_eq!(check(&policy, &hidden[0].1), Err(DropReason::SpoofedIpv6), "{}", hidden[0].0);
    }
    // What follows the packet is padding.
    let empty = v6(V6, Protocol::FRAGMENT, &fragment(Protocol::ICMPV6, 0, &[]));
    let padded = [&empty[..], &icmpv6(128, 20)].concat();
    assert_eq!(check(&policy(), &padded), Err(DropReason::SpoofedIpv6));
    let padded = [&nd(V6, solicitation(OTHER_V6, Some(MAC)))[..], &[1, 1, 0, 0, 0]].concat();
    assert_eq!(check(&policy(), &padded), Ok(()));
}

#[test]
fn tags_hide_nothing() {
    for (name, bytes) in honest() {
        for policy in [policy(), policy_without_addresses()] {
            for tags in [3, 8] {
                assert_eq!(check(&policy, &tagged(&bytes, tags)), Ok(()), "{name}");
            }
            for tags in [9, 10] {
                let found = check(&policy, &tagged(&bytes, tags));
                assert_eq!(found, Err(DropReason::Malformed), "{name}");
            }
        }
    }
    let false_source = v4(OTHER_V4, Protocol::TCP, &tcp());
    for tags in 0..=8 {
        let found = check(&policy(), &tagged(&false_source, tags));
        assert_eq!(found, Err(DropReason::SpoofedIpv4), "{tags} tags");
    }
}

#[test]
fn no_addresses_means_none() {
    let policy = Policy { addresses: Some(Vec::new()), ..policy() };
    let tcp = v4(V4, Protocol::TCP, &tcp());
    assert_eq!(check(&policy, &tcp), Err(DropReason::SpoofedIpv4));
    assert_eq!(check(&policy, &nd(LINK_LOCAL, solicitation(OTHER_V6, Some(MAC)))), Ok(()));
    assert_eq!(check(&policy, &v4(UNSPECIFIED_V4, Protocol::UDP, &udp(68, 67))), Ok(()));
}
