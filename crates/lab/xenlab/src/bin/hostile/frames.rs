//! Frames from this guest's address.

use std::net::Ipv4Addr;
use std::ops::Deref;

use wire::checksum::Sum;
use wire::ethernet::{self, EtherType, MacAddr};
use wire::ip::Protocol;
use wire::{arp, icmp, ipv4};

use crate::Cli;
use crate::device::Outcome;

const ETHERNET: usize = 14;
const IP: usize = ETHERNET + 20;
/// Bytes before an echo's payload.
pub const ECHO_HEADERS: usize = IP + icmp::HEADER_LEN;
/// IEEE's first EtherType for local experiments, which no stack handles.
const EXPERIMENT: EtherType = EtherType(0x88b5);

/// An interface, and the addresses that echoes use.
pub struct HostileDevice {
    interface: xenlab::netif::device::Vif,
    pub address: Ipv4Addr,
    pub peer: Ipv4Addr,
}

impl HostileDevice {
    /// Opens the interface.
    pub fn open(cli: &Cli) -> Outcome<Self> {
        let interface = xenlab::netif::device::Vif::open(cli.vif)?;
        Ok(Self { interface, address: cli.address, peer: cli.peer })
    }
}

impl Deref for HostileDevice {
    type Target = xenlab::netif::device::Vif;

    fn deref(&self) -> &Self::Target {
        &self.interface
    }
}

fn frame(device: &HostileDevice, dst: MacAddr, ethertype: EtherType, len: usize) -> Vec<u8> {
    addressed(dst, device.mac, ethertype, len)
}

/// A frame of `len` bytes between any two addresses.
fn addressed(dst: MacAddr, src: MacAddr, ethertype: EtherType, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let header = ethernet::Repr { dst, src, ethertype };
    header.emit(&mut ethernet::Frame::new_unchecked(&mut bytes[..]));
    bytes
}

/// A frame that every receiver ignores, between any two addresses.
pub fn plain(dst: MacAddr, src: MacAddr, len: usize) -> Vec<u8> {
    addressed(dst, src, EXPERIMENT, len)
}

/// A broadcast that every receiver ignores.
pub fn idle(device: &HostileDevice, len: usize) -> Vec<u8> {
    frame(device, MacAddr::BROADCAST, EXPERIMENT, len)
}

/// An ARP request for the peer's address.
pub fn who_has(device: &HostileDevice) -> Vec<u8> {
    let mut bytes = frame(device, MacAddr::BROADCAST, EtherType::ARP, ETHERNET + arp::LEN);
    let request = arp::Repr {
        operation: arp::Operation::REQUEST,
        sender_mac: device.mac,
        sender_ip: device.address,
        target_mac: MacAddr::default(),
        target_ip: device.peer,
    };
    request.emit(&mut arp::Packet::new_unchecked(&mut bytes[ETHERNET..]));
    bytes
}

/// The peer's MAC address, if the frame is its ARP reply.
pub fn is_at(device: &HostileDevice, frame: &[u8]) -> Option<MacAddr> {
    let reply = ethernet::Frame::new_checked(frame).ok()?;
    let ours = reply.ethertype() == EtherType::ARP && reply.dst() == device.mac;
    let packet = arp::Packet::new_checked(reply.payload()).ok().filter(|_| ours)?;
    (packet.sender_ip() == device.peer).then(|| packet.sender_mac())
}

/// An IPv4 packet to `dst` with a zero payload.
fn ip(device: &HostileDevice, dst: MacAddr, protocol: Protocol, payload: usize) -> Vec<u8> {
    let mut bytes = frame(device, dst, EtherType::IPV4, IP + payload);
    let header = ipv4::Repr {
        src: device.address,
        dst: device.peer,
        protocol,
        ttl: 64,
        ident: 0,
        payload_len: u16::try_from(payload).unwrap_or(0),
    };
    header.emit(&mut ipv4::Packet::new_unchecked(&mut bytes[ETHERNET..]));
    bytes
}

/// An echo request of at least `len` bytes.
pub fn echo(device: &HostileDevice, dst: MacAddr, seq: u16, len: usize) -> Vec<u8> {
    let payload = len.saturating_sub(ECHO_HEADERS).max(16);
    let mut bytes = ip(device, dst, Protocol::ICMP, icmp::HEADER_LEN + payload);
    for (n, byte) in bytes[ECHO_HEADERS..].iter_mut().enumerate() {
        *byte = (n * 7).to_le_bytes()[0];
    }
    let mut packet = icmp::Packet::new_unchecked(&mut bytes[IP..]);
    let request = icmp::Repr { kind: icmp::EchoKind::Request, ident: IDENT, seq };
    request.emit(&mut packet, icmp::Version::V4);
    packet.fill_checksum(Sum::new());
    bytes
}

const IDENT: u16 = 0x4057;

/// Whether a frame is the reply to an echo, with the same payload.
pub fn is_reply(frame: &[u8], seq: u16, payload: &[u8]) -> Option<()> {
    let (headers, rest) = frame.split_at_checked(ECHO_HEADERS)?;
    let packet = icmp::Packet::new_checked(&headers[IP..]).ok()?;
    let reply = icmp::Repr::parse(&packet, icmp::Version::V4)?;
    let wanted = icmp::Repr { kind: icmp::EchoKind::Reply, ident: IDENT, seq };
    // A short frame may be padded.
    (reply == wanted && rest.starts_with(payload)).then_some(())
}

/// A broadcast TCP segment.
pub fn tcp(device: &HostileDevice, payload: usize) -> Vec<u8> {
    let mut bytes = ip(device, MacAddr::BROADCAST, Protocol::TCP, 20 + payload);
    // The header's length, in words.
    bytes[IP + 12] = 0x50;
    bytes
}

/// A broadcast UDP datagram.
pub fn udp(device: &HostileDevice, payload: u16) -> Vec<u8> {
    let mut bytes = ip(device, MacAddr::BROADCAST, Protocol::UDP, 8 + usize::from(payload));
    bytes[IP + 4..IP + 6].copy_from_slice(&(8 + payload).to_be_bytes());
    bytes
}
