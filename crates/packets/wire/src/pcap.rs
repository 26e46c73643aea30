//! The headers of a capture file: classic pcap with nanoseconds, little-endian, as tcpdump and
//! Wireshark read it.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The magic number: timestamps have nanoseconds, and its bytes show the byte order.
pub const MAGIC_NANOSECONDS: u32 = 0xa1b2_3c4d;

/// `LINKTYPE_ETHERNET`.
pub const LINKTYPE_ETHERNET: u32 = 1;

/// The header of a file.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct GlobalHeader {
    magic: U32,
    version_major: U16,
    version_minor: U16,
    reserved: [U32; 2],
    snaplen: U32,
    linktype: U32,
}

impl GlobalHeader {
    /// For a file of Ethernet frames, each captured up to `snaplen` bytes.
    #[must_use]
    pub const fn ethernet(snaplen: u32) -> Self {
        Self {
            magic: U32::new(MAGIC_NANOSECONDS),
            version_major: U16::new(2),
            version_minor: U16::new(4),
            reserved: [U32::ZERO; 2],
            snaplen: U32::new(snaplen),
            linktype: U32::new(LINKTYPE_ETHERNET),
        }
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 24] {
        zerocopy::transmute!(*self)
    }
}

/// The header of each captured frame.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct RecordHeader {
    seconds: U32,
    nanoseconds: U32,
    captured_len: U32,
    original_len: U32,
}

impl RecordHeader {
    /// For a frame of `original_len` bytes, of which the first `captured_len` follow, at a time
    /// since the Unix epoch.
    #[must_use]
    pub const fn new(seconds: u32, nanoseconds: u32, captured_len: u32, original_len: u32) -> Self {
        Self {
            seconds: U32::new(seconds),
            nanoseconds: U32::new(nanoseconds),
            captured_len: U32::new(captured_len),
            original_len: U32::new(original_len),
        }
    }

    /// The header's bytes.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 16] {
        zerocopy::transmute!(*self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn global_header_is_what_tcpdump_writes() {
        let expected = [
            0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0,
            0,
        ];
        assert_eq!(GlobalHeader::ethernet(65_535).to_bytes(), expected);
    }

    #[test]
    fn record_header_has_time_then_lengths() {
        let header = RecordHeader::new(0x6553_f100, 999_999_999, 128, 1514);
        let expected =
            [0x00, 0xf1, 0x53, 0x65, 0xff, 0xc9, 0x9a, 0x3b, 128, 0, 0, 0, 0xea, 0x05, 0, 0];
        assert_eq!(header.to_bytes(), expected);
    }
}
