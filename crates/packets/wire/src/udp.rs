//! UDP (RFC 768).

use crate::bytes::view;
use crate::checksum::Sum;
use crate::error::{Layer, ParseError, checked_len};

/// Bytes of the header.
pub const HEADER_LEN: usize = 8;

/// Where the checksum lies: `csum_offset`.
pub const CHECKSUM_OFFSET: u16 = 6;

view! {
    /// A view of a datagram: header and payload.
    Packet {
        /// Source port.
        src_port, set_src_port: u16 = 0,
        /// Destination port.
        dst_port, set_dst_port: u16 = 2,
        /// Bytes of header and payload.
        #[expect(clippy::len_without_is_empty, reason = "a header field; no datagram is empty")]
        len, set_len: u16 = 4,
        /// Checksum; 0 means that the packet has none, which only IPv4 allows.
        checksum, set_checksum: u16 = CHECKSUM_OFFSET as usize,
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// A view of `buffer`, whose accessors do not panic. Bytes beyond the length are padding.
    ///
    /// # Errors
    /// The length does not fit header and buffer.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        let available = checked_len(buffer.as_ref(), HEADER_LEN, Layer::Udp)?;
        let packet = Self { buffer };
        match usize::from(packet.len()) {
            len if (HEADER_LEN..=available).contains(&len) => Ok(packet),
            _ => Err(ParseError::Length(Layer::Udp)),
        }
    }

    /// The payload, as long as the length field says.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[HEADER_LEN..usize::from(self.len())]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Computes the checksum over `pseudo` (the pseudo-header's sum), header and payload; the
    /// length must be set.
    #[inline]
    pub fn fill_checksum(&mut self, mut pseudo: Sum) {
        self.set_checksum(0);
        pseudo.add_bytes(&self.buffer.as_ref()[..usize::from(self.len())]);
        // A computed 0 is sent as 0xffff, which is equal, because 0 means no checksum.
        let checksum = match pseudo.finish() {
            0 => 0xffff,
            checksum => checksum,
        };
        self.set_checksum(checksum);
    }

    /// The payload; the length must be set.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let len = usize::from(self.len());
        &mut self.buffer.as_mut()[HEADER_LEN..len]
    }
}

/// A header without its checksum, which needs the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of the payload, at most 65,527.
    pub payload_len: u16,
}

impl Repr {
    /// Writes this header, with no checksum, into `packet`.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_src_port(self.src_port);
        packet.set_dst_port(self.dst_port);
        packet.set_len(8 + self.payload_len);
        packet.set_checksum(0);
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::checksum::pseudo_v4;

    const BYTES: [u8; 13] = [
        0x30, 0x39, 0x00, 0x35, 0x00, 0x0c, 0xb7, 0x5f, // 12345 to 53, 12 bytes, checksum
        1, 2, 3, 4, 0xee, // payload and a byte of padding
    ];

    const REPR: Repr = Repr { src_port: 12_345, dst_port: 53, payload_len: 4 };

    fn pseudo() -> Sum {
        pseudo_v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 17, 12)
    }

    #[test]
    fn a_datagram_is_parsed_and_emitted() {
        let datagram = Packet::new_checked(&BYTES).unwrap();
        assert_eq!((datagram.src_port(), datagram.dst_port()), (REPR.src_port, REPR.dst_port));
        assert_eq!(datagram.len(), 8 + REPR.payload_len);
        assert_eq!(datagram.payload(), [1, 2, 3, 4]);
        assert_eq!(datagram.checksum(), 0xb75f);

        let mut emitted = Packet::new_unchecked([0xee; 13]);
        REPR.emit(&mut emitted);
        emitted.payload_mut().copy_from_slice(&[1, 2, 3, 4]);
        emitted.fill_checksum(pseudo());
        assert_eq!(emitted.into_inner(), BYTES);
    }

    #[test]
    fn a_checksum_of_zero_is_sent_as_all_ones() {
        let mut datagram = Packet::new_unchecked([0, 0, 0, 0, 0, 10, 0, 0, 0, 0]);
        datagram.payload_mut().copy_from_slice(&(!10u16).to_be_bytes());
        datagram.fill_checksum(Sum::new());
        assert_eq!(datagram.checksum(), 0xffff);
    }

    #[test]
    fn malformed_packets_are_refused() {
        assert_eq!(Packet::new_checked(&BYTES[..7]), Err(ParseError::Truncated(Layer::Udp)));
        for len in [0, 7, 14] {
            let mut bytes = BYTES;
            bytes[5] = len;
            assert_eq!(Packet::new_checked(bytes), Err(ParseError::Length(Layer::Udp)));
        }
    }
}
