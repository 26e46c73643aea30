//! ARP (RFC 826) for IPv4 over Ethernet.

use core::net::Ipv4Addr;

use crate::bytes::{be16, field_types, read, set_be16, view, write};
use crate::error::{Layer, ParseError, checked_len};
use crate::ethernet::{EtherType, MacAddr};

/// Bytes of a packet.
pub const LEN: usize = 28;

mod field {
    pub const HARDWARE: usize = 0;
    pub const PROTOCOL: usize = 2;
    pub const LENGTHS: usize = 4;
    pub const SENDER_MAC: usize = 8;
    pub const SENDER_IP: usize = 14;
    pub const TARGET_MAC: usize = 18;
    pub const TARGET_IP: usize = 24;
}

const HARDWARE_ETHERNET: u16 = 1;
const ADDRESS_LENGTHS: [u8; 2] = [6, 4];

/// A packet's operation code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Operation(pub u16);

field_types! {
    Operation: |bytes| Operation(u16::from_be_bytes(bytes)), |operation: Operation| operation.0.to_be_bytes();
}

impl Operation {
    /// Who has the target's IP address?
    pub const REQUEST: Self = Self(1);
    /// The sender has its IP address.
    pub const REPLY: Self = Self(2);
}

view! {
    /// A view of a packet.
    Packet {
        /// Operation.
        operation, set_operation: Operation = 6,
        /// Hardware address of the sender.
        sender_mac: MacAddr = field::SENDER_MAC,
        /// IP address of the sender.
        sender_ip: Ipv4Addr = field::SENDER_IP,
        /// Hardware address of the target; not meaningful in a request.
        target_mac: MacAddr = field::TARGET_MAC,
        /// IP address of the target.
        target_ip: Ipv4Addr = field::TARGET_IP,
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// A view of `buffer`, whose accessors do not panic.
    ///
    /// # Errors
    /// The buffer is shorter than [`LEN`], or its addresses are not Ethernet's and IPv4's.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        let bytes = buffer.as_ref();
        checked_len(bytes, LEN, Layer::Arp)?;
        let types = (be16(bytes, field::HARDWARE), EtherType(be16(bytes, field::PROTOCOL)));
        if types != (HARDWARE_ETHERNET, EtherType::IPV4) {
            return Err(ParseError::Version(Layer::Arp));
        }
        if read(bytes, field::LENGTHS) != ADDRESS_LENGTHS {
            return Err(ParseError::Length(Layer::Arp));
        }
        Ok(Self { buffer })
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the types and lengths of the addresses to Ethernet's and IPv4's.
    #[inline]
    pub fn set_types(&mut self) {
        let bytes = self.buffer.as_mut();
        set_be16(bytes, field::HARDWARE, HARDWARE_ETHERNET);
        set_be16(bytes, field::PROTOCOL, EtherType::IPV4.0);
        write(bytes, field::LENGTHS, ADDRESS_LENGTHS);
    }

    /// Sets the hardware and IP address of the sender.
    #[inline]
    pub fn set_sender(&mut self, mac: MacAddr, ip: Ipv4Addr) {
        write(self.buffer.as_mut(), field::SENDER_MAC, mac.0);
        write(self.buffer.as_mut(), field::SENDER_IP, ip.octets());
    }

    /// Sets the hardware and IP address of the target.
    #[inline]
    pub fn set_target(&mut self, mac: MacAddr, ip: Ipv4Addr) {
        write(self.buffer.as_mut(), field::TARGET_MAC, mac.0);
        write(self.buffer.as_mut(), field::TARGET_IP, ip.octets());
    }
}

/// A packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Operation.
    pub operation: Operation,
    /// Hardware address of the sender.
    pub sender_mac: MacAddr,
    /// IP address of the sender.
    pub sender_ip: Ipv4Addr,
    /// Hardware address of the target.
    pub target_mac: MacAddr,
    /// IP address of the target.
    pub target_ip: Ipv4Addr,
}

impl Repr {
    /// Writes this into `packet`.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_types();
        packet.set_operation(self.operation);
        packet.set_sender(self.sender_mac, self.sender_ip);
        packet.set_target(self.target_mac, self.target_ip);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; LEN] = [
        0x00, 0x01, 0x08, 0x00, 6, 4, 0x00, 0x01, // Ethernet, IPv4, request
        0x00, 0x16, 0x3e, 0x00, 0x00, 0x01, 10, 0, 0, 1, // sender
        0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 10, 0, 0, 2, // target
    ];

    const REPR: Repr = Repr {
        operation: Operation::REQUEST,
        sender_mac: MacAddr([0x00, 0x16, 0x3e, 0x00, 0x00, 0x01]),
        sender_ip: Ipv4Addr::new(10, 0, 0, 1),
        target_mac: MacAddr([0; 6]),
        target_ip: Ipv4Addr::new(10, 0, 0, 2),
    };

    #[test]
    fn a_packet_is_parsed_and_emitted() {
        let packet = Packet::new_checked(&BYTES).unwrap();
        assert_eq!(packet.operation(), REPR.operation);
        assert_eq!((packet.sender_mac(), packet.sender_ip()), (REPR.sender_mac, REPR.sender_ip));
        assert_eq!((packet.target_mac(), packet.target_ip()), (REPR.target_mac, REPR.target_ip));
        let mut packet = Packet::new_unchecked([0xee; LEN]);
        REPR.emit(&mut packet);
        assert_eq!(packet.into_inner(), BYTES);
    }

    #[test]
    fn malformed_packets_are_refused() {
        assert_eq!(Packet::new_checked(&BYTES[..27]), Err(ParseError::Truncated(Layer::Arp)));
        for (at, error) in [
            (1, ParseError::Version(Layer::Arp)),
            (2, ParseError::Version(Layer::Arp)),
            (4, ParseError::Length(Layer::Arp)),
            (5, ParseError::Length(Layer::Arp)),
        ] {
            let mut bytes = BYTES;
            bytes[at] = 0xff;
            assert_eq!(Packet::new_checked(bytes), Err(error));
        }
    }
}
