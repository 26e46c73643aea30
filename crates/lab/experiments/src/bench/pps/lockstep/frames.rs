//! The frames that windows carry.

use offload::{Checksum, Gso, GsoKind};
use wire::ethernet::MacAddr;

use super::window::Size;
use crate::bench::guest::addressed;

/// Payload of a segment.
const SEGMENT: u16 = 1448;
/// Bytes of the headers: Ethernet, IPv4, TCP without options.
const HEADERS: u16 = 14 + 20 + 20;

/// A frame, and what is known of it.
pub struct Sample {
    pub bytes: Vec<u8>,
    pub checksum: Checksum,
    pub gso: Option<Gso>,
}

impl Sample {
    /// A frame of this size. A large one is TCP to be segmented; others are nobody's.
    pub fn new(from: MacAddr, to: MacAddr, size: Size) -> Self {
        if size.is_large() {
            let gso = Some(Gso { kind: GsoKind::TcpV4, size: SEGMENT });
            Self { bytes: tcp(from, to, size.bytes()), checksum: Checksum::Partial, gso }
        } else {
            let bytes = addressed(from, to, size.bytes());
            Self { bytes, checksum: Checksum::Unknown, gso: None }
        }
    }

    /// The `virtio_net_hdr` without the number of buffers, as taps and packet sockets take it.
    pub fn vnet_header(&self) -> [u8; 10] {
        let mut header = [0; 10];
        if let Some(gso) = self.gso {
            /// NEEDS_CSUM, TCPV4.
            const KINDS: [u8; 2] = [1, 1];
            header[..2].copy_from_slice(&KINDS);
            let fields = [HEADERS, gso.size, 34, 16];
            for (place, value) in header[2..].chunks_exact_mut(2).zip(fields) {
                place.copy_from_slice(&value.to_le_bytes());
            }
        }
        header
    }
}

/// A TCP segment over IPv4 of `len` bytes in all, without a checksum of its payload.
fn tcp(from: MacAddr, to: MacAddr, len: usize) -> Vec<u8> {
    let total = u16::try_from(len - 14).unwrap_or(u16::MAX).to_be_bytes();
    let mut frame = [&to.0[..], &from.0, &[8, 0, 0x45, 0], &total].concat();
    frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    let sum =
        frame[14..34].chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    let folded = |sum: u32| (sum & 0xffff) + (sum >> 16);
    // Folded twice, it has 16 bits.
    let [_, _, sum @ ..] = (!folded(folded(sum))).to_be_bytes();
    frame[24..26].copy_from_slice(&sum);
    frame.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    frame.resize(len, 0x55);
    frame
}
