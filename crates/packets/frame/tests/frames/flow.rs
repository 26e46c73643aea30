//! The hash that spreads flows over queues.

use std::sync::Arc;

use proptest::prelude::*;

use frame::{FlowHash, Frame, HashInput, Steering};
use wire::toeplitz::{MICROSOFT_KEY, Table};

/// An Ethernet frame between two stations.
fn frame(stations: [u8; 2], packet: &[u8]) -> Frame {
    let [to, from] = stations;
    let mut bytes = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from];
    bytes.extend(packet);
    let mut frame = Frame::empty();
    frame.set_header(&bytes).unwrap();
    frame
}

/// An EtherType for local experiments.
const OTHER: [u8; 6] = [0x88, 0xb5, 1, 2, 3, 4];

/// A UDP datagram over IPv4 between two ports.
fn datagram(from: u16, to: u16) -> Vec<u8> {
    let ip = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    let ports = [from.to_be_bytes(), to.to_be_bytes()].concat();
    [&[0x08, 0x00][..], &ip, &ports, &[0, 8, 0, 0]].concat()
}

/// How many of two queues' frames the first one gets.
fn first_half(hashes: impl Iterator<Item = u32>) -> usize {
    hashes.filter(|hash| hash >> 31 == 0).count()
}

#[test]
fn frames_that_are_not_ip_are_spread_by_their_stations() {
    let hash = |from| frame([1, from], &OTHER).flow_hash();
    let first = first_half((0..=255).map(hash));
    assert!((100..156).contains(&first), "{first} of 256");
    assert_eq!(hash(7), hash(7));
    assert_ne!(frame([1, 7], &OTHER).flow_hash(), frame([7, 1], &OTHER).flow_hash());
}

#[test]
fn a_flow_has_one_hash_whatever_stations_carry_it_unless_they_count() {
    let packet = datagram(1000, 2000);
    let hashes = |from| {
        let frame = frame([1, from], &packet);
        [frame.flow_hash(), frame.flow_hash_with_macs()]
    };
    assert!((0..=255).all(|from| hashes(from)[0] == hashes(0)[0]));
    let first = first_half((0..=255).map(|from| hashes(from)[1]));
    assert!((100..156).contains(&first), "{first} of 256");
    // Ports count in either case.
    let by_port = |port| frame([1, 2], &datagram(port, 2000)).flow_hash_with_macs();
    let first = first_half((0..256).map(by_port));
    assert!((100..156).contains(&first), "{first} of 256");
}

#[test]
fn a_receiver_that_wants_its_own_hash_gets_it_and_a_queue_that_it_has() {
    use HashInput::{Ipv4, Ipv4Tcp};
    let key = Arc::new(Table::new(&MICROSOFT_KEY));
    let steering = |queues: &[u16]| Steering::new(key.clone(), [Ipv4, Ipv4Tcp], queues.into());
    let modulo = steering(&[]);
    // Of TCP the ports count too, but not of UDP, nor of a fragment.
    let packet = |protocol, fragment| {
        let mut packet = datagram(1, 2);
        packet.extend([0; 12]);
        (packet[5], packet[9], packet[11], packet[34]) = (40, fragment, protocol, 0x50);
        frame([1, 2], &packet)
    };
    let addresses = key.hash(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let flow = key.hash(&[10, 0, 0, 1, 10, 0, 0, 2, 0, 1, 0, 2]);
    let of_tcp = FlowHash { input: Ipv4Tcp, value: flow };
    let of_addresses = FlowHash { input: Ipv4, value: addresses };
    assert_eq!(modulo.hash(&packet(6, 0)), Some(of_tcp));
    assert_eq!(modulo.hash(&packet(17, 0)), Some(of_addresses));
    assert_eq!(modulo.hash(&packet(6, 1)), Some(of_addresses));
    assert_eq!(modulo.hash(&frame([1, 2], &OTHER)), None);
    assert_eq!(modulo.queue_of(Some(of_tcp), 3), flow as usize % 3);
    assert_eq!(modulo.queue_of(Some(of_tcp), 0), 0);
    // A queue that is not there, or not any more.
    let table = steering(&[1, 9, 2]);
    let queue = |value| table.queue_of(Some(FlowHash { input: Ipv4, value }), 3);
    assert_eq!([0, 1, 2, 3, 4, 5].map(queue), [1, 0, 2, 1, 0, 2]);
    assert_eq!(table.queue_of(None, 3), 1);
}

/// A UDP datagram over IPv6 between two ends, in network byte order.
fn datagram_v6([from, to]: [([u8; 16], [u8; 2]); 2]) -> Vec<u8> {
    let ip = [0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64];
    [&ip[..], &from.0, &to.0, &from.1, &to.1, &[0, 8, 0, 0]].concat()
}

proptest! {
    #[test]
    fn both_directions_of_a_flow_have_a_key_that_others_have_not(
        ends: [([u8; 16], [u8; 2]); 2], place in 0usize..18, bit in 0u32..8,
    ) {
        let key = |ends| frame([1, 2], &datagram_v6(ends)).flow_key();
        let [a, b] = ends;
        prop_assert!(key([a, b]).is_some());
        prop_assert_eq!(key([a, b]), key([b, a]));
        let mut other = a;
        match place {
            0..16 => other.0[place] ^= 1 << bit,
            _ => other.1[place - 16] ^= 1 << bit,
        }
        prop_assert_ne!(key([a, b]), key([other, b]));
    }
}

#[test]
fn datagrams_over_ipv4_have_one_too_and_other_frames_none() {
    let key = |from, to| frame([1, 2], &datagram(from, to)).flow_key();
    assert!(key(1, 2).is_some());
    assert_ne!(key(1, 2), key(1, 3));
    assert_eq!(frame([1, 2], &OTHER).flow_key(), None);
}
