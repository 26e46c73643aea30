//! VLAN tags, put into a frame's private header and taken out of it. The body stays where it is.

use offload::Checksum;
use wire::ethernet::{EtherType, VLAN_TAG_LEN};

use crate::{FRAME_MAX, Frame, Lent};

/// Where a tag lies: after both addresses.
const TAG: usize = 12;
/// Bytes of a tag.
const LEN: u8 = 4;
const _: () = assert!(LEN as usize == VLAN_TAG_LEN);
/// The VLAN identifier in a tag.
const IDENTIFIER: u16 = 0x0fff;

impl Frame {
    /// The VLAN that the outermost tag names, if that is one of 802.1Q. 0 is a priority without a VLAN.
    #[inline]
    #[must_use]
    pub fn vlan(&self) -> Option<u16> {
        let tag = self.headers.vlan?;
        (self.ethertype_at(TAG) == EtherType::VLAN).then_some(tag & IDENTIFIER)
    }

    /// Whether a tag of any kind is the first thing after the addresses.
    #[inline]
    #[must_use]
    pub fn is_tagged(&self) -> bool {
        self.headers.vlan.is_some()
    }

    /// Whether a second tag follows the first.
    #[must_use]
    pub fn is_tagged_twice(&self) -> bool {
        self.is_tagged() && self.ethertype_at(TAG + VLAN_TAG_LEN).is_vlan()
    }

    /// The same frame with a tag of 802.1Q in front of what it has, with priority 0; none if it would be too long. A body in its
    /// receiver's buffers no longer lies there as the receiver needs it.
    #[must_use]
    pub fn with_tag(&self, vlan: u16) -> Option<Self> {
        if self.len as usize + VLAN_TAG_LEN > FRAME_MAX {
            return None;
        }
        let mut frame = Self { lent: Lent::NONE, ..self.clone() };
        let end = usize::from(frame.header_len);
        frame.bytes.copy_within(TAG..end, TAG + VLAN_TAG_LEN);
        frame.bytes[TAG..TAG + 2].copy_from_slice(&EtherType::VLAN.0.to_be_bytes());
        frame.bytes[TAG + 2..TAG + 4].copy_from_slice(&vlan.to_be_bytes());
        frame.header_len += LEN;
        frame.len += u32::from(LEN);
        frame.headers.vlan = Some(vlan);
        // The offsets of a frame lie within its private header.
        frame.headers.l3_offset += LEN;
        frame.headers.l4_offset += LEN;
        frame.headers.payload_offset += LEN;
        // Behind the tags, and within the private header too.
        if frame.checksum == Checksum::Elsewhere {
            frame.checksum_at.start += u16::from(LEN);
        }
        Some(frame)
    }

    /// The same frame without its outermost tag; the frame itself if it has none.
    #[must_use]
    pub fn without_tag(&self) -> Self {
        let mut frame = Self { lent: Lent::NONE, ..self.clone() };
        if !self.is_tagged() {
            return frame;
        }
        let end = usize::from(frame.header_len);
        frame.bytes.copy_within(TAG + VLAN_TAG_LEN..end, TAG);
        frame.header_len -= LEN;
        frame.len -= u32::from(LEN);
        frame.headers.vlan = self.is_tagged_twice().then(|| frame.word_at(TAG + 2));
        frame.headers.l3_offset -= LEN;
        frame.headers.l4_offset -= LEN;
        frame.headers.payload_offset -= LEN;
        if frame.checksum == Checksum::Elsewhere {
            frame.checksum_at.start -= u16::from(LEN);
        }
        frame
    }

    fn word_at(&self, at: usize) -> u16 {
        u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    fn ethertype_at(&self, at: usize) -> EtherType {
        EtherType(self.word_at(at))
    }
}
