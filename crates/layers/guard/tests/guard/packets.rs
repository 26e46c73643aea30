//! Frames as a host sends them, and as a port makes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use guard::{Allowed, Checker, Policy};
use port::DropReason;
use port_testing::frame;
use wire::checksum::pseudo_v6;
use wire::ethernet::{self, EtherType, MacAddr, VLAN_TAG_LEN};
use wire::ip::Protocol;
use wire::{arp, icmp, ipv4, ipv6, ndp, tcp, udp};

pub const MAC: MacAddr = MacAddr([0x00, 0x16, 0x3e, 0, 0, 1]);
pub const OTHER_MAC: MacAddr = MacAddr([0x00, 0x16, 0x3e, 0, 0, 2]);
pub const V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub const OTHER_V4: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
pub const V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 1);
pub const OTHER_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x77, 0, 0, 0, 0, 0, 2);
pub const LINK_LOCAL: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0x0216, 0x3eff, 0xfe00, 1);
pub const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

pub fn policy() -> Policy {
    let addresses = [IpAddr::V4(V4), IpAddr::V6(V6)].map(|address| Allowed::host(address).unwrap());
    Policy { mac: MAC, addresses: Some(addresses.into()) }
}

pub fn policy_without_addresses() -> Policy {
    Policy { addresses: None, ..policy() }
}

/// What the policy says to a frame of these bytes.
pub fn check(policy: &Policy, bytes: &[u8]) -> Result<(), DropReason> {
    Checker::new(policy).check(&frame(bytes))
}

pub fn ethernet(src: MacAddr, ethertype: EtherType, payload: &[u8]) -> Vec<u8> {
    let mut frame = ethernet::Frame::new_unchecked(vec![0; ethernet::HEADER_LEN + payload.len()]);
    ethernet::Repr { dst: OTHER_MAC, src, ethertype }.emit(&mut frame);
    frame.payload_mut().copy_from_slice(payload);
    frame.into_inner()
}

/// The frame behind further tags, the outermost a service tag if there are several.
pub fn tagged(frame: &[u8], tags: usize) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    for n in 0..tags {
        let ethertype = if n == 0 { EtherType::VLAN } else { EtherType::QINQ };
        let [high, low] = ethertype.0.to_be_bytes();
        let tag: [u8; VLAN_TAG_LEN] = [high, low, 0x20, 7];
        bytes.splice(12..12, tag);
    }
    bytes
}

pub fn arp(
    operation: arp::Operation,
    sender_mac: MacAddr,
    sender_ip: Ipv4Addr,
    target_ip: Ipv4Addr,
) -> Vec<u8> {
    let mut packet = arp::Packet::new_unchecked([0; arp::LEN]);
    let target_mac = MacAddr::default();
    arp::Repr { operation, sender_mac, sender_ip, target_mac, target_ip }.emit(&mut packet);
    ethernet(MAC, EtherType::ARP, &packet.into_inner())
}

pub fn v4(src: Ipv4Addr, protocol: Protocol, payload: &[u8]) -> Vec<u8> {
    let payload_len = u16::try_from(payload.len()).unwrap();
    let mut packet = ipv4::Packet::new_unchecked(vec![0; ipv4::HEADER_LEN + payload.len()]);
    ipv4::Repr { src, dst: OTHER_V4, protocol, ident: 0, ttl: 64, payload_len }.emit(&mut packet);
    packet.payload_mut().copy_from_slice(payload);
    ethernet(MAC, EtherType::IPV4, &packet.into_inner())
}

pub fn v6(src: Ipv6Addr, next_header: Protocol, payload: &[u8]) -> Vec<u8> {
    let payload_len = u16::try_from(payload.len()).unwrap();
    let mut packet = ipv6::Packet::new_unchecked(vec![0; ipv6::HEADER_LEN + payload.len()]);
    ipv6::Repr { src, dst: ALL_ROUTERS, next_header, hop_limit: 255, payload_len }
        .emit(&mut packet);
    packet.payload_mut().copy_from_slice(payload);
    ethernet(MAC, EtherType::IPV6, &packet.into_inner())
}

pub fn udp(src_port: u16, dst_port: u16) -> Vec<u8> {
    let mut datagram = udp::Packet::new_unchecked(vec![0xee; 300]);
    udp::Repr { src_port, dst_port, payload_len: 292 }.emit(&mut datagram);
    datagram.into_inner()
}

pub fn tcp() -> Vec<u8> {
    let mut segment = vec![0; 1460];
    segment[12] = 0x50;
    assert!(tcp::Packet::new_checked(&segment).is_ok());
    segment
}

/// An ICMPv6 message of a type, with nothing in it.
pub fn icmpv6(kind: u8, len: usize) -> Vec<u8> {
    let mut message = vec![0; len];
    message[0] = kind;
    message
}

pub fn nd_message(repr: ndp::Repr) -> Vec<u8> {
    let mut packet = ndp::Packet::new_unchecked(vec![0; repr.buffer_len()]);
    repr.emit(&mut packet);
    let bytes = packet.into_inner();
    let pseudo = pseudo_v6(V6, ALL_ROUTERS, 58, u32::try_from(bytes.len()).unwrap());
    let mut message = icmp::Packet::new_checked(bytes).unwrap();
    message.fill_checksum(pseudo);
    message.into_inner()
}

pub fn nd(src: Ipv6Addr, repr: ndp::Repr) -> Vec<u8> {
    v6(src, Protocol::ICMPV6, &nd_message(repr))
}

pub fn solicitation(target: Ipv6Addr, source_link: Option<MacAddr>) -> ndp::Repr {
    ndp::Repr::NeighbourSolicitation { target, source_link }
}

pub fn advertisement(target: Ipv6Addr, target_link: Option<MacAddr>) -> ndp::Repr {
    ndp::Repr::NeighbourAdvertisement { flags: ndp::Flags::OVERRIDE, target, target_link }
}
