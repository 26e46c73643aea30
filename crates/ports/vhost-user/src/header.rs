//! The header before each frame of a virtio network device, and a frame's offload metadata.

use offload::{Checksum, Gso, Segmenter, vnet};
use port::Frame;
use wire::headers::Headers;
use wire::virtio_net::{VirtioNetHdr, VirtioNetHdrMrgRxbuf, flags};

use crate::features::Negotiated;

/// Bytes of the longer header.
pub(crate) const HEADER_LEN_MAX: usize = size_of::<VirtioNetHdrMrgRxbuf>();

/// The smallest segment that a guest may ask for, as netback's: one of a byte would become thousands.
const GSO_SIZE_MIN: u16 = 8;

/// Parses a frame's private header and takes over the metadata that came with it. Returns whether they are
/// well-formed and fit each other.
///
/// Metadata that contradicts the frame never reaches a receiver: a frame of 64 bytes that claims to be 64 KiB of
/// unsegmented TCP has killed other switches.
#[inline]
pub fn accept(frame: &mut Frame, header: &VirtioNetHdr) -> bool {
    if frame.parse_headers().is_err() {
        return false;
    }
    let (checksum, gso) = match vnet::decode(header, &frame.headers) {
        Ok(metadata) => metadata,
        Err(asked) => return frame.set_checksum_elsewhere(asked),
    };
    (frame.checksum, frame.gso) = (checksum, gso);
    let Some(gso) = gso else { return true };
    // A frame to be segmented has a checksum to be completed, and headers that can be cut.
    checksum == Checksum::Partial
        && gso.size >= GSO_SIZE_MIN
        && Segmenter::of_header(frame.header(), frame.len as usize, &frame.headers, gso).is_ok()
}

/// As [`accept`], for metadata that a driver wrote. Its word that a checksum is right is none: a device must not rely on it
/// (VIRTIO 1.2 §5.1.6.2.2). Believed, it would keep receivers from verifying, and frames with wrong checksums would be merged into one with
/// a right one.
#[inline]
pub(crate) fn accept_from_driver(frame: &mut Frame, header: &VirtioNetHdr) -> bool {
    accept(frame, &VirtioNetHdr { flags: header.flags & flags::NEEDS_CSUM, ..*header })
}

/// The header for a frame in `buffers` chains.
#[inline]
#[must_use]
pub fn describe(
    headers: &Headers,
    checksum: Checksum,
    gso: Option<Gso>,
    buffers: u16,
) -> VirtioNetHdrMrgRxbuf {
    VirtioNetHdrMrgRxbuf { hdr: vnet::encode(headers, checksum, gso), num_buffers: buffers.into() }
}

/// What precedes a frame in a ring.
#[derive(Clone, Copy)]
pub struct FrameHeader {
    /// What it says.
    pub metadata: VirtioNetHdrMrgRxbuf,
    /// Bytes that are written of it: 10 or 12.
    pub len: usize,
}

/// What precedes each frame for a guest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderForm {
    /// Bytes: 10 or 12.
    pub(crate) len: usize,
    /// The flags that the guest knows. Without `GUEST_CSUM` they are all 0 (VIRTIO 1.2 §5.1.6.4.1).
    flags: u8,
}

impl HeaderForm {
    pub(crate) fn new(negotiated: Negotiated) -> Self {
        let flags = if negotiated.has_checksum_flags() { u8::MAX } else { 0 };
        Self { len: negotiated.header_len(), flags }
    }

    /// What [`describe`] makes, as far as the guest knows it.
    #[inline]
    pub(crate) fn describe(
        self,
        headers: &Headers,
        checksum: Checksum,
        gso: Option<Gso>,
        buffers: u16,
    ) -> FrameHeader {
        let mut metadata = describe(headers, checksum, gso, buffers);
        metadata.hdr.flags &= self.flags;
        FrameHeader { metadata, len: self.len }
    }
}

#[cfg(test)]
mod tests {
    use wire::virtio_net::gso;

    use super::*;

    /// A TCP segment over IPv4 of 64 bytes whose IP header has this length.
    fn frame(ip_len: u16) -> Frame {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
        bytes.extend(ip_len.to_be_bytes());
        bytes.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
        bytes.resize(64, 0);
        let mut frame = Frame::empty();
        frame.bytes[..64].copy_from_slice(&bytes);
        (frame.header_len, frame.len) = (64, 64);
        frame
    }

    fn tso(size: u16) -> VirtioNetHdr {
        VirtioNetHdr {
            flags: flags::NEEDS_CSUM,
            gso_type: gso::TCPV4,
            hdr_len: 54.into(),
            gso_size: size.into(),
            csum_start: 34.into(),
            csum_offset: 16.into(),
        }
    }

    #[test]
    fn a_frame_that_claims_to_be_longer_than_it_is_is_refused() {
        assert!(accept(&mut frame(50), &tso(1448)));
        assert!(!accept(&mut frame(64_986), &tso(1448)), "the frame that kills OVS 3.5");
        assert!(!accept(&mut frame(64_986), &VirtioNetHdr { flags: 0, ..tso(1448) }));
        assert!(accept(&mut frame(50), &tso(8)) && !accept(&mut frame(50), &tso(7)));
        assert!(!accept(&mut frame(50), &tso(0)));
        assert!(!accept(&mut frame(50), &VirtioNetHdr { flags: 0, ..tso(1448) }));
    }

    #[test]
    fn a_checksum_that_points_elsewhere_is_refused() {
        for (start, offset) in [(0, 16), (34, 6), (34, 65_535), (65_535, 16), (65_535, 65_535)] {
            let header = VirtioNetHdr {
                gso_type: gso::NONE,
                csum_start: start.into(),
                csum_offset: offset.into(),
                ..tso(0)
            };
            assert!(!accept(&mut frame(50), &header), "{start} {offset}");
        }
        for kind in [gso::UDP, gso::TCPV6, gso::UDP_L4, 2, 0x7f] {
            assert!(!accept(&mut frame(50), &VirtioNetHdr { gso_type: kind, ..tso(1448) }));
        }
    }
}
