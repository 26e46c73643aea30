//! ICMP for IPv4 (RFC 792) and IPv6 (RFC 4443): the common header, and echo.

use crate::bytes::view;
use crate::checksum::Sum;
use crate::error::{Layer, ParseError, checked_len};

/// Bytes of the header: type, code, checksum and the four bytes that depend on the type.
pub const HEADER_LEN: usize = 8;

mod field {
    pub const KIND: usize = 0;
    pub const CODE: usize = 1;
}

/// The IP version of a message: the two number their messages differently, and only IPv6's checksum
/// covers a pseudo-header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// ICMP.
    V4,
    /// ICMPv6.
    V6,
}

view! {
    /// A view of a message: header and payload. The buffer ends the payload.
    Packet {
        /// Type.
        kind: u8 = field::KIND,
        /// Code.
        code: u8 = field::CODE,
        /// Checksum.
        checksum, set_checksum: u16 = 2,
        /// Identifier, if this is an echo.
        ident, set_ident: u16 = 4,
        /// Sequence number, if this is an echo.
        seq, set_seq: u16 = 6,
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// A view of `buffer`, whose accessors do not panic.
    ///
    /// # Errors
    /// The buffer is shorter than [`HEADER_LEN`].
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        checked_len(buffer.as_ref(), HEADER_LEN, Layer::Icmp)?;
        Ok(Self { buffer })
    }

    /// Everything after the header.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[HEADER_LEN..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets type and code.
    #[inline]
    pub fn set_kind(&mut self, kind: u8, code: u8) {
        let bytes = self.buffer.as_mut();
        bytes[field::KIND] = kind;
        bytes[field::CODE] = code;
    }

    /// Computes the checksum; `pseudo` is the pseudo-header's sum for IPv6, and [`Sum::new`] for IPv4.
    #[inline]
    pub fn fill_checksum(&mut self, mut pseudo: Sum) {
        self.set_checksum(0);
        pseudo.add_bytes(self.buffer.as_ref());
        self.set_checksum(pseudo.finish());
    }

    /// Everything after the header.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.buffer.as_mut()[HEADER_LEN..]
    }
}

/// The two ends of a ping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EchoKind {
    /// Asks for a reply with the same identifier, sequence number and payload.
    Request,
    /// The reply.
    Reply,
}

impl EchoKind {
    const fn number(self, version: Version) -> u8 {
        match (version, self) {
            (Version::V4, Self::Request) => 8,
            (Version::V4, Self::Reply) => 0,
            (Version::V6, Self::Request) => 128,
            (Version::V6, Self::Reply) => 129,
        }
    }
}

/// The header of an echo message, without its checksum, which needs the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Request or reply.
    pub kind: EchoKind,
    /// Identifier.
    pub ident: u16,
    /// Sequence number.
    pub seq: u16,
}

impl Repr {
    /// Reads the header of `packet`, if it is an echo message of that version.
    pub fn parse<T: AsRef<[u8]>>(packet: &Packet<T>, version: Version) -> Option<Self> {
        let kind = [EchoKind::Request, EchoKind::Reply]
            .into_iter()
            .find(|kind| (packet.kind(), packet.code()) == (kind.number(version), 0))?;
        Some(Self { kind, ident: packet.ident(), seq: packet.seq() })
    }

    /// Writes this header, with checksum 0, into `packet`.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>, version: Version) {
        packet.set_kind(self.kind.number(version), 0);
        packet.set_checksum(0);
        packet.set_ident(self.ident);
        packet.set_seq(self.seq);
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv6Addr;

    use super::*;
    use crate::checksum::pseudo_v6;

    const REPR: Repr = Repr { kind: EchoKind::Request, ident: 0x1234, seq: 0x0001 };

    #[test]
    fn an_icmp_echo_is_parsed_and_emitted() {
        let bytes = [8, 0, 0xe1, 0xc8, 0x12, 0x34, 0, 1, 1, 2, 3];
        let message = Packet::new_checked(&bytes).unwrap();
        assert_eq!(Repr::parse(&message, Version::V4), Some(REPR));
        assert_eq!(Repr::parse(&message, Version::V6), None);
        assert_eq!(message.payload(), [1, 2, 3]);

        let mut emitted = Packet::new_checked([0xee; 11]).unwrap();
        REPR.emit(&mut emitted, Version::V4);
        emitted.payload_mut().copy_from_slice(&[1, 2, 3]);
        emitted.fill_checksum(Sum::new());
        assert_eq!(emitted.into_inner(), bytes);
    }

    #[test]
    fn an_icmpv6_echo_is_parsed_and_emitted() {
        let pseudo = pseudo_v6(Ipv6Addr::LOCALHOST, Ipv6Addr::LOCALHOST, 58, 8);
        let bytes = [129, 0, 0x6c, 0x86, 0x12, 0x34, 0, 1];
        let reply = Repr { kind: EchoKind::Reply, ..REPR };
        let message = Packet::new_checked(&bytes).unwrap();
        assert_eq!(Repr::parse(&message, Version::V6), Some(reply));
        assert_eq!(Repr::parse(&message, Version::V4), None);

        let mut emitted = Packet::new_checked([0xee; 8]).unwrap();
        reply.emit(&mut emitted, Version::V6);
        emitted.fill_checksum(pseudo);
        assert_eq!(emitted.into_inner(), bytes);
    }

    #[test]
    fn echo_kinds_have_their_numbers() {
        let numbers =
            |version| [EchoKind::Request, EchoKind::Reply].map(|kind| kind.number(version));
        assert_eq!(numbers(Version::V4), [8, 0]);
        assert_eq!(numbers(Version::V6), [128, 129]);
    }

    #[test]
    fn other_messages_are_not_echoes() {
        assert_eq!(Packet::new_checked([0; 7]), Err(ParseError::Truncated(Layer::Icmp)));
        let unreachable = Packet::new_checked([3, 1, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(Repr::parse(&unreachable, Version::V4), None);
        let with_code = Packet::new_checked([8, 1, 0, 0, 0, 0, 0, 0]).unwrap();
        assert_eq!(Repr::parse(&with_code, Version::V4), None);
    }
}
