//! IPv4 (RFC 791).

use core::net::Ipv4Addr;
use core::ops::Range;

use crate::bytes::{be16, set_be16, view};
use crate::checksum::Sum;
use crate::error::{Layer, ParseError, checked_len};
use crate::ip::Protocol;

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// Where the source and then the destination address lie.
pub const ADDRESSES: Range<usize> = 12..20;

mod field {
    pub const VERSION_IHL: usize = 0;
    pub const FRAGMENT: usize = 6;
}

const DONT_FRAG: u16 = 0x4000;
const MORE_FRAGS: u16 = 0x2000;
const FRAG_OFFSET: u16 = 0x1fff;

view! {
    /// A view of a packet: header, options and payload.
    Packet {
        /// Differentiated services code point and explicit congestion notification.
        traffic_class, set_traffic_class: u8 = 1,
        /// Bytes of header and payload.
        total_len, set_total_len: u16 = 2,
        /// Identification.
        ident, set_ident: u16 = 4,
        /// Time to live.
        ttl, set_ttl: u8 = 8,
        /// Protocol of the payload.
        protocol, set_protocol: Protocol = 9,
        /// Header checksum.
        checksum, set_checksum: u16 = 10,
        /// Source address.
        src, set_src: Ipv4Addr = 12,
        /// Destination address.
        dst, set_dst: Ipv4Addr = 16,
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// A view of `buffer`, whose accessors do not panic. Bytes beyond the total length are padding.
    ///
    /// # Errors
    /// The version is not 4, or header and total length do not fit each other and the buffer.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        let len = checked_len(buffer.as_ref(), HEADER_LEN, Layer::Ipv4)?;
        let packet = Self { buffer };
        packet.check_header()?;
        let total_len = usize::from(packet.total_len());
        if total_len < packet.header_len() || total_len > len {
            return Err(ParseError::Length(Layer::Ipv4));
        }
        Ok(packet)
    }

    /// Checks the fixed header. A total length of 0 is accepted: hosts write it into an unsegmented
    /// packet that is too long for the field.
    #[inline]
    pub(crate) fn check_header(&self) -> Result<(), ParseError> {
        if self.version() != 4 {
            return Err(ParseError::Version(Layer::Ipv4));
        }
        let total_len = usize::from(self.total_len());
        if self.header_len() < HEADER_LEN || (total_len != 0 && total_len < self.header_len()) {
            return Err(ParseError::Length(Layer::Ipv4));
        }
        Ok(())
    }

    /// IP version.
    #[inline]
    pub fn version(&self) -> u8 {
        self.buffer.as_ref()[field::VERSION_IHL] >> 4
    }

    /// Bytes of the header with its options.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.buffer.as_ref()[field::VERSION_IHL] & 0xf) * 4
    }

    /// Is this a fragment, first or later, of a larger datagram?
    #[inline]
    pub fn is_fragment(&self) -> bool {
        be16(self.buffer.as_ref(), field::FRAGMENT) & (MORE_FRAGS | FRAG_OFFSET) != 0
    }

    /// The payload, as long as the total length says.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[self.header_len()..usize::from(self.total_len())]
    }

    /// Is the header checksum right?
    #[inline]
    pub fn verify_checksum(&self) -> bool {
        Sum::of(&self.buffer.as_ref()[..self.header_len()]).finish() == 0
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets version 4 and the header's length in bytes, a multiple of 4 from 20 to 60.
    #[inline]
    pub fn set_header_len(&mut self, len: u8) {
        self.buffer.as_mut()[field::VERSION_IHL] = 0x40 | ((len / 4) & 0xf);
    }

    /// Sets the fragmentation flags and the offset in bytes, a multiple of 8.
    #[inline]
    pub fn set_fragment(&mut self, dont_frag: bool, more_frags: bool, offset: u16) {
        let dont_frag = if dont_frag { DONT_FRAG } else { 0 };
        let more_frags = if more_frags { MORE_FRAGS } else { 0 };
        set_be16(self.buffer.as_mut(), field::FRAGMENT, dont_frag | more_frags | (offset / 8));
    }

    /// Computes the header checksum; the header's length must be set.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.set_checksum(0);
        let checksum = Sum::of(&self.buffer.as_ref()[..self.header_len()]).finish();
        self.set_checksum(checksum);
    }

    /// The payload; header and total length must be set.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let payload = self.header_len()..usize::from(self.total_len());
        &mut self.buffer.as_mut()[payload]
    }
}

/// A header without options of an unfragmented packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source address.
    pub src: Ipv4Addr,
    /// Destination address.
    pub dst: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: Protocol,
    /// Time to live.
    pub ttl: u8,
    /// Identification.
    pub ident: u16,
    /// Bytes of the payload, at most 65,515.
    pub payload_len: u16,
}

impl Repr {
    /// Writes the header, with "don't fragment" and a correct checksum, into `packet`.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_header_len(20);
        packet.set_traffic_class(0);
        packet.set_total_len(20 + self.payload_len);
        packet.set_ident(self.ident);
        packet.set_fragment(true, false, 0);
        packet.set_ttl(self.ttl);
        packet.set_protocol(self.protocol);
        packet.set_src(self.src);
        packet.set_dst(self.dst);
        packet.fill_checksum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: [u8; 24] = [
        0x45, 0xb8, 0x00, 0x17, // version, length, class, total length 23
        0xab, 0xcd, 0x40, 0x00, // ident, don't fragment
        0x40, 0x11, 0xc2, 0xe0, // ttl, UDP, checksum
        0xc0, 0xa8, 0x00, 0x01, // src
        0x0a, 0x00, 0x00, 0xc7, // dst
        1, 2, 3, 0xee, // payload and a byte of padding
    ];

    fn checked(change: impl FnOnce(&mut [u8; 24])) -> Result<Packet<[u8; 24]>, ParseError> {
        let mut bytes = BYTES;
        change(&mut bytes);
        Packet::new_checked(bytes)
    }

    #[test]
    fn a_packet_is_parsed_into_its_fields() {
        let packet = Packet::new_checked(&BYTES).unwrap();
        assert_eq!((packet.version(), packet.header_len(), packet.total_len()), (4, 20, 23));
        assert_eq!((packet.traffic_class(), packet.ident(), packet.ttl()), (0xb8, 0xabcd, 64));
        assert_eq!(packet.protocol(), Protocol::UDP);
        assert_eq!(packet.src(), Ipv4Addr::new(192, 168, 0, 1));
        assert_eq!(packet.dst(), Ipv4Addr::new(10, 0, 0, 199));
        assert!(!packet.is_fragment());
        assert_eq!(packet.payload(), [1, 2, 3]);
        assert!(packet.verify_checksum());
        assert!(!checked(|bytes| bytes[8] -= 1).unwrap().verify_checksum());
    }

    /// The header in Wikipedia's "Internet checksum".
    #[test]
    fn a_packet_is_emitted_with_its_header_checksum() {
        let repr = Repr {
            src: Ipv4Addr::new(192, 168, 0, 1),
            dst: Ipv4Addr::new(192, 168, 0, 199),
            protocol: Protocol::UDP,
            ttl: 64,
            ident: 0,
            payload_len: 95,
        };
        let expected = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        let mut packet = Packet::new_unchecked([0xff; 115]);
        repr.emit(&mut packet);
        packet.payload_mut().fill(7);
        let bytes = packet.into_inner();
        assert_eq!(bytes[..20], expected);
        assert_eq!(bytes[20..], [7; 95]);
    }

    #[test]
    fn fragments_are_known() {
        let mut packet = Packet::new_checked(BYTES).unwrap();
        for (dont_frag, more_frags, offset, expected) in
            [(true, false, 0, 0x4000), (false, true, 0, 0x2000), (false, false, 65_528, 0x1fff)]
        {
            packet.set_fragment(dont_frag, more_frags, offset);
            assert_eq!(be16(&packet.buffer, field::FRAGMENT), expected);
            assert_eq!(packet.is_fragment(), !dont_frag);
        }
    }

    #[test]
    fn options_lie_between_header_and_payload() {
        let packet = checked(|bytes| bytes[0] = 0x46);
        assert_eq!(packet, Err(ParseError::Length(Layer::Ipv4)));
        let packet = checked(|bytes| (bytes[0], bytes[3]) = (0x46, 24)).unwrap();
        assert!(packet.payload().is_empty());
    }

    #[test]
    fn malformed_packets_are_refused() {
        assert_eq!(Packet::new_checked(&BYTES[..19]), Err(ParseError::Truncated(Layer::Ipv4)));
        assert_eq!(checked(|bytes| bytes[0] = 0x65), Err(ParseError::Version(Layer::Ipv4)));
        let length = Err(ParseError::Length(Layer::Ipv4));
        assert_eq!(checked(|bytes| bytes[0] = 0x44), length);
        assert_eq!(checked(|bytes| bytes[3] = 0), length);
        assert_eq!(checked(|bytes| bytes[3] = 19), length);
        assert_eq!(checked(|bytes| bytes[3] = 25), length);
    }
}
