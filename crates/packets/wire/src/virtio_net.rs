//! The header before each packet of a virtio-net queue (VIRTIO 1.2 §5.1.6), little-endian.

use zerocopy::little_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `VIRTIO_NET_HDR_F_*`: [`VirtioNetHdr::flags`].
pub mod flags {
    /// The transport checksum holds the pseudo-header's sum only; `csum_start` and `csum_offset`
    /// locate it.
    pub const NEEDS_CSUM: u8 = 1;
    /// The transport checksum was verified.
    pub const DATA_VALID: u8 = 2;
    /// `csum_start` and `csum_offset` hold counts of coalesced segments and duplicate ACKs.
    pub const RSC_INFO: u8 = 4;
}

/// `VIRTIO_NET_HDR_GSO_*`: [`VirtioNetHdr::gso_type`].
pub mod gso {
    /// No segmentation.
    pub const NONE: u8 = 0;
    /// TCP over IPv4.
    pub const TCPV4: u8 = 1;
    /// UDP, by IP fragmentation.
    pub const UDP: u8 = 3;
    /// TCP over IPv6.
    pub const TCPV6: u8 = 4;
    /// UDP, by datagrams of `gso_size`.
    pub const UDP_L4: u8 = 5;
    /// With a TCP type: only the first segment gets the CWR flag.
    pub const ECN: u8 = 0x80;
}

/// The 10-byte header, of a device without mergeable buffers that is not "modern", and of a tap
/// device.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct VirtioNetHdr {
    /// [`flags`].
    pub flags: u8,
    /// [`gso`].
    pub gso_type: u8,
    /// Bytes of all headers: a hint.
    pub hdr_len: U16,
    /// Payload bytes of each segment but the last.
    pub gso_size: U16,
    /// The first byte that the checksum covers, from the start of the frame.
    pub csum_start: U16,
    /// Where the checksum is stored, from `csum_start`.
    pub csum_offset: U16,
}

impl VirtioNetHdr {
    /// Its length in bytes.
    pub const LEN: usize = size_of::<Self>();
}

/// The 12-byte header, of every modern device and of those with mergeable buffers.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
)]
#[repr(C)]
pub struct VirtioNetHdrMrgRxbuf {
    /// The 10-byte header.
    pub hdr: VirtioNetHdr,
    /// Descriptor chains that the packet takes, at least 1; 0 when sending.
    pub num_buffers: U16,
}

impl VirtioNetHdrMrgRxbuf {
    /// Its bytes, put together in two registers: a load of fields that were stored one by one waits until all of them have
    /// left the store buffer.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; 12] {
        let VirtioNetHdr { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset } = self.hdr;
        let [gso_type, hdr_len] = [u64::from(gso_type) << 8, u64::from(hdr_len) << 16];
        let [gso_size, csum_start] = [u64::from(gso_size) << 32, u64::from(csum_start) << 48];
        let start = u64::from(flags) | gso_type | hdr_len | gso_size | csum_start;
        let end = u32::from(csum_offset) | u32::from(self.num_buffers) << 16;
        let mut bytes = [0; 12];
        bytes[..8].copy_from_slice(&start.to_le_bytes());
        bytes[8..].copy_from_slice(&end.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_little_endian_and_in_place() {
        let mergeable = VirtioNetHdrMrgRxbuf {
            hdr: VirtioNetHdr {
                flags: flags::NEEDS_CSUM,
                gso_type: gso::TCPV4 | gso::ECN,
                hdr_len: U16::new(54),
                gso_size: U16::new(1448),
                csum_start: U16::new(34),
                csum_offset: U16::new(16),
            },
            num_buffers: U16::new(1),
        };
        let bytes = [0x01, 0x81, 0x36, 0x00, 0xa8, 0x05, 0x22, 0x00, 0x10, 0x00, 0x01, 0x00];
        assert_eq!(mergeable.as_bytes(), bytes);
        assert_eq!(mergeable.to_bytes(), bytes);
        assert_eq!(VirtioNetHdr::read_from_bytes(&bytes[..10]), Ok(mergeable.hdr));
    }
}
