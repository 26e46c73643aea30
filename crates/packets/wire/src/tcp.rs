//! TCP (RFC 9293).

use core::ops::BitOr;

use crate::bytes::{field_types, view};
use crate::checksum::Sum;
use crate::error::{Layer, ParseError, checked_len};

/// Bytes of a header without options.
pub const HEADER_LEN: usize = 20;

/// Where the checksum lies: `csum_offset`.
pub const CHECKSUM_OFFSET: u16 = 16;

mod field {
    pub const DATA_OFFSET: usize = 12;
}

/// The eight control bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

field_types! {
    Flags: |[byte]: [u8; 1]| Flags(byte), |flags: Flags| [flags.0];
}

#[expect(missing_docs, reason = "the names are the protocol's own")]
impl Flags {
    pub const FIN: Self = Self(0x01);
    pub const SYN: Self = Self(0x02);
    pub const RST: Self = Self(0x04);
    pub const PSH: Self = Self(0x08);
    pub const ACK: Self = Self(0x10);
    pub const URG: Self = Self(0x20);
    pub const ECE: Self = Self(0x40);
    pub const CWR: Self = Self(0x80);
}

impl Flags {
    /// Are all of `other` set?
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// These flags without `other`.
    #[inline]
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for Flags {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

view! {
    /// A view of a segment: header, options and payload. TCP has no length field: the payload ends
    /// with the buffer.
    Packet {
        /// Source port.
        src_port, set_src_port: u16 = 0,
        /// Destination port.
        dst_port, set_dst_port: u16 = 2,
        /// Sequence number.
        seq, set_seq: u32 = 4,
        /// Acknowledgment number.
        ack, set_ack: u32 = 8,
        /// Control bits.
        flags, set_flags: Flags = 13,
        /// Window, not scaled.
        window, set_window: u16 = 14,
        /// Checksum.
        checksum, set_checksum: u16 = CHECKSUM_OFFSET as usize,
        /// Urgent pointer.
        urgent, set_urgent: u16 = 18,
    }
}

impl<T: AsRef<[u8]>> Packet<T> {
    /// A view of `buffer`, whose accessors do not panic.
    ///
    /// # Errors
    /// The data offset does not fit header and buffer.
    #[inline]
    pub fn new_checked(buffer: T) -> Result<Self, ParseError> {
        let len = checked_len(buffer.as_ref(), HEADER_LEN, Layer::Tcp)?;
        let packet = Self { buffer };
        if !(HEADER_LEN..=len).contains(&packet.header_len()) {
            return Err(ParseError::Length(Layer::Tcp));
        }
        Ok(packet)
    }

    /// Bytes of the header with its options.
    #[inline]
    pub fn header_len(&self) -> usize {
        usize::from(self.buffer.as_ref()[field::DATA_OFFSET] >> 4) * 4
    }

    /// Everything after the options.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.buffer.as_ref()[self.header_len()..]
    }
}

impl<T: AsRef<[u8]> + AsMut<[u8]>> Packet<T> {
    /// Sets the header's length in bytes, a multiple of 4 from 20 to 60, and the reserved bits to
    /// 0.
    #[inline]
    pub fn set_header_len(&mut self, len: u8) {
        self.buffer.as_mut()[field::DATA_OFFSET] = (len / 4) << 4;
    }

    /// Computes the checksum over `pseudo` (the pseudo-header's sum), header and payload.
    #[inline]
    pub fn fill_checksum(&mut self, mut pseudo: Sum) {
        self.set_checksum(0);
        pseudo.add_bytes(self.buffer.as_ref());
        self.set_checksum(pseudo.finish());
    }

    /// Everything after the options; the header's length must be set.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let header_len = self.header_len();
        &mut self.buffer.as_mut()[header_len..]
    }
}

/// A header without options, urgent data and checksum, which needs the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repr {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgment number.
    pub ack: u32,
    /// Control bits.
    pub flags: Flags,
    /// Window, not scaled.
    pub window: u16,
}

impl Repr {
    /// Writes this header, with checksum and urgent pointer 0, into `packet`.
    pub fn emit<T: AsRef<[u8]> + AsMut<[u8]>>(&self, packet: &mut Packet<T>) {
        packet.set_src_port(self.src_port);
        packet.set_dst_port(self.dst_port);
        packet.set_seq(self.seq);
        packet.set_ack(self.ack);
        packet.set_header_len(20);
        packet.set_flags(self.flags);
        packet.set_window(self.window);
        packet.set_checksum(0);
        packet.set_urgent(0);
    }
}

#[cfg(test)]
mod tests {
    use core::net::Ipv4Addr;

    use super::*;
    use crate::checksum::pseudo_v4;

    const BYTES: [u8; 27] = [
        0xc0, 0x00, 0x00, 0x50, // 49152 to 80
        0x01, 0x23, 0x45, 0x67, // seq
        0x89, 0xab, 0xcd, 0xef, // ack
        0x60, 0x19, 0x01, 0x23, // 24 bytes, ACK PSH FIN, window
        0x1e, 0x6e, 0x02, 0x01, // checksum, urgent pointer
        0x02, 0x04, 0x05, 0xb4, // option: maximum segment size 1460
        1, 2, 3, // payload
    ];

    const REPR: Repr = Repr {
        src_port: 49_152,
        dst_port: 80,
        seq: 0x0123_4567,
        ack: 0x89ab_cdef,
        flags: Flags(0x19),
        window: 0x0123,
    };

    fn pseudo() -> Sum {
        pseudo_v4(Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2), 6, 27)
    }

    #[test]
    fn a_segment_is_parsed_into_its_fields() {
        let segment = Packet::new_checked(&BYTES).unwrap();
        assert_eq!((segment.src_port(), segment.dst_port()), (REPR.src_port, REPR.dst_port));
        assert_eq!((segment.seq(), segment.ack()), (REPR.seq, REPR.ack));
        assert_eq!((segment.flags(), segment.window()), (REPR.flags, REPR.window));
        assert_eq!((segment.header_len(), segment.urgent()), (24, 0x0201));
        assert_eq!(segment.payload(), [1, 2, 3]);
    }

    #[test]
    fn a_segment_is_emitted_with_its_checksum() {
        let mut segment = Packet::new_unchecked([0xee; 27]);
        REPR.emit(&mut segment);
        segment.payload_mut().copy_from_slice(&BYTES[20..]);
        segment.set_header_len(24);
        segment.set_urgent(0x0201);
        segment.fill_checksum(pseudo());
        assert_eq!(segment.into_inner(), BYTES);
    }

    #[test]
    fn flags_combine_as_sets() {
        let flags = Flags::ACK | Flags::PSH | Flags::FIN;
        assert_eq!(flags, REPR.flags);
        assert!(
            flags.contains(Flags::FIN | Flags::ACK) && !flags.contains(Flags::SYN | Flags::ACK)
        );
        assert_eq!(flags.without(Flags::FIN | Flags::CWR), Flags::ACK | Flags::PSH);
    }

    #[test]
    fn malformed_segments_are_refused() {
        assert_eq!(Packet::new_checked(&BYTES[..19]), Err(ParseError::Truncated(Layer::Tcp)));
        for data_offset in [0x40, 0x70] {
            let mut bytes = BYTES;
            bytes[12] = data_offset;
            assert_eq!(Packet::new_checked(bytes), Err(ParseError::Length(Layer::Tcp)));
        }
    }
}
