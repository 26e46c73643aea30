//! No header in front of a protocol hides it from the guard (CVE-2021-27853, CVE-2021-27861).

use guard::Policy;
use port::DropReason;
use wire::arp::Operation;
use wire::ethernet::EtherType;
use wire::ip::Protocol;

use crate::packets::*;

/// Forgeries of each protocol as Ethernet II frames, which the guard refuses for what they say.
fn forgeries() -> [(&'static str, Vec<u8>); 6] {
    [
        ("ARP", arp(Operation::REPLY, OTHER_MAC, OTHER_V4, V4)),
        ("IPv4", v4(OTHER_V4, Protocol::UDP, &udp(1, 2))),
        ("IPv6", v6(OTHER_V6, Protocol::UDP, &udp(1, 2))),
        ("a neighbour advertisement", nd(V6, advertisement(OTHER_V6, Some(OTHER_MAC)))),
        ("a router advertisement", v6(V6, Protocol::ICMPV6, &icmpv6(134, 16))),
        ("a short packet", arp(Operation::REPLY, MAC, OTHER_V4, V4)[..20].to_vec()),
    ]
}

/// Asserts that it is refused with and without addresses, behind any tags.
#[track_caller]
fn refused(bytes: &[u8], name: &str) {
    for policy in [policy(), policy_without_addresses()] {
        for tags in [0, 1, 2, 8] {
            let found = check(&policy, &tagged(bytes, tags));
            assert_eq!(found, Err(DropReason::Malformed), "{name}, {tags} tags");
        }
    }
}

/// The frame with `header` in front of its EtherType.
fn behind(bytes: &[u8], header: &[u8]) -> Vec<u8> {
    [&bytes[..12], header, &bytes[12..]].concat()
}

/// A frame of IEEE 802.3: its length, and what follows.
fn ieee802_3(length: u16, llc: &[u8]) -> Vec<u8> {
    ethernet(MAC, EtherType(length), llc)
}

#[test]
fn snap_carries_nothing() {
    for (name, bytes) in forgeries() {
        let right = u16::try_from(bytes.len() - 12 + 6).unwrap();
        for oui in [[0, 0, 0], [0, 0, 0xf8], [0, 0, 0x0c], [0x08, 0, 0x07]] {
            let snap = [&[0xaa, 0xaa, 0x03][..], &oui].concat();
            for length in [right, 0, 1, right - 1, right + 1, 0x05dc, 0x05ff] {
                let header = [&length.to_be_bytes()[..], &snap].concat();
                refused(&behind(&bytes, &header), &format!("{name}, {oui:x?}, length {length}"));
            }
            // The EtherType of a frame that is too long for a length.
            let header = [&[0x88, 0x70][..], &snap].concat();
            refused(&behind(&bytes, &header), &format!("{name}, {oui:x?}, long"));
        }
        // SNAP's other control fields, and its address as a group or a response.
        for llc in [[0xaa, 0xaa, 0xaf], [0xaa, 0xaa, 0x00], [0xab, 0xaa, 0x03], [0xaa, 0xab, 0x03]]
        {
            let header = [&right.to_be_bytes()[..], &llc, &[0; 3]].concat();
            refused(&behind(&bytes, &header), &format!("{name}, {llc:x?}"));
        }
    }
}

#[test]
fn other_llc_protocols_are_refused() {
    let payload = v4(OTHER_V4, Protocol::UDP, &udp(1, 2))[14..].to_vec();
    // IP, ARP, NetWare, NetBEUI, a null address (TEST), spanning tree.
    for sap in [0x06, 0x98, 0xe0, 0xf0, 0x00, 0x42, 0xff] {
        let llc = [&[sap, sap, 0x03][..], &payload].concat();
        refused(&ieee802_3(u16::try_from(llc.len()).unwrap(), &llc), &format!("LSAP {sap:#x}"));
    }
    let mut pvst = ieee802_3(50, &[&[0xaa, 0xaa, 3, 0, 0, 0x0c, 1, 0x0b][..], &[0; 42]].concat());
    pvst[..6].copy_from_slice(&[0x01, 0x00, 0x0c, 0xcc, 0xcc, 0xcd]);
    refused(&pvst, "PVST");
    for llc in [&[][..], &[0xfe], &[0xfe, 0xfe]] {
        refused(&ieee802_3(u16::try_from(llc.len()).unwrap(), llc), "cut off");
    }
}

#[test]
fn a_router_may_send_is_is_with_a_true_length() {
    let hello = [&[0xfe, 0xfe, 0x03, 0x83][..], &[0; 1493]].concat();
    let passes = |policy: &Policy, bytes: &[u8]| {
        for tags in 0..=2 {
            assert_eq!(check(policy, &tagged(bytes, tags)), Ok(()), "{tags} tags");
        }
    };
    for policy in [policy(), policy_without_addresses()] {
        passes(&policy, &ieee802_3(1497, &hello));
        // Padding.
        passes(&policy, &ieee802_3(4, &hello[..46]));
        passes(&policy, &ieee802_3(0x8870, &[&hello[..], &hello].concat()));
    }
    for length in [0, 2, 1498, 0x05ff] {
        refused(&ieee802_3(length, &hello), "a false length");
    }
}

#[test]
fn tags_of_other_kinds_hide_nothing() {
    let tags = [
        0x9100u16, 0x9200, 0x9300, 0x8909, 0x8926, 0x88e7, 0x893f, 0xf1c1, 0x6558, 0xdada, 0xdadb,
        0xdadc, 0xe001, 0x8874, 0x8899, 0x892f, 0x88fb, 0x22f3, 0x894f,
    ];
    for (name, bytes) in forgeries() {
        for tag in tags {
            let header = [&tag.to_be_bytes()[..], &[0, 7]].concat();
            let once = behind(&bytes, &header);
            refused(&once, &format!("{name}, {tag:#x}"));
            refused(&behind(&once, &header), &format!("{name}, {tag:#x} twice"));
            // In front of a tag that the parser sees through.
            refused(&behind(&tagged(&bytes, 1), &header), &format!("{name}, {tag:#x}, VLAN"));
        }
    }
}
