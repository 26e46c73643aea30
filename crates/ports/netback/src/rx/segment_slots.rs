//! The slots of an RX ring that the segments of one frame take.

use offload::Gso;
use port::Frame;
use ring::Slots as _;
use ring::netif::Rx;

use super::lend::RESERVE;
use super::plan::{Asked, PacketShape};

/// How many slots the segments of a frame take. The size of a segment comes from the sending guest: one may be longer than a
/// page and take several slots.
#[derive(Clone, Copy, Debug)]
pub(super) struct SegmentSlots {
    segments: u32,
    /// Slots of each segment but the last.
    each: u32,
    last: u32,
    /// Bytes of the longest segment.
    longest: u32,
}

/// The fewest slots that a frame waits for if it cannot have all at once. Each part of it copies the frame anew, so a guest that posts
/// one buffer after the other must not have it cut into parts of one segment. This many buffers are never lent, so a guest that
/// posts a ring of them has them for others' frames.
const PART_MIN: u32 = RESERVE;
/// The same of a guest that posts few buffers: a quarter of those, so that few stay unused until it posts more, but no fewer than these.
const PART_OF_FEW: u32 = 8;
/// A guest that has posted fewer buffers at once has few.
const FEW: u32 = Rx::COUNT / 2;

impl SegmentSlots {
    /// Those of a frame's segments, each of which comes with what was asked for.
    pub(super) fn of(frame: &Frame, gso: Gso, asked: Asked) -> Self {
        Self::new(frame.headers.payload_offset.into(), frame.len, gso.size.into(), |len| {
            PacketShape::finished(len, asked).slots()
        })
    }

    fn new(header: u32, len: u32, size: u32, slots_of: impl Fn(u32) -> u32) -> Self {
        let payload = len.saturating_sub(header);
        let size = size.clamp(1, payload.max(1));
        let segments = payload.div_ceil(size).max(1);
        let rest = payload - (segments - 1) * size;
        Self {
            segments,
            each: slots_of(header + size),
            last: slots_of(header + rest),
            longest: header + size.min(payload),
        }
    }

    /// Bytes of the longest segment.
    pub(super) fn longest(self) -> u32 {
        self.longest
    }

    pub(super) fn left(self, sent: u16) -> u32 {
        match self.segments.saturating_sub(sent.into()) {
            0 => 0,
            left => (left - 1) * self.each + self.last,
        }
    }

    /// Slots to wait for before more segments than the first `sent` are delivered: those of all, if the guest can have as many
    /// buffers that are not lent. Cards and sockets keep half of a ring for good, and then a frame of more segments than the other
    /// half would wait for ever. So would any frame for a guest that never posts as many: `most` is what it has posted at once.
    pub(super) fn next_part(self, sent: u16, unlent: u32, most: u32) -> u32 {
        match self.left(sent) {
            all if most < FEW => all.min((most / 4).max(PART_OF_FEW).max(self.each)),
            all if all <= unlent => all,
            all => all.min(PART_MIN.max(self.each)),
        }
    }

    /// The number of the segment behind those that fit in `room` slots, if the first `sent` are delivered.
    pub(super) fn end_of_part(self, sent: u16, room: u32) -> u16 {
        let end = match self.left(sent) <= room {
            true => self.segments,
            false => (u32::from(sent) + room / self.each.max(1)).min(self.segments),
        };
        // A frame of more segments than a ring has slots was dropped before.
        u16::try_from(end).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn slots_of(len: u32) -> u32 {
        len.div_ceil(4096)
    }

    proptest! {
        /// Part after part, each with the room that it waited for, takes the slots of each segment once.
        #[test]
        fn parts_take_the_slots_of_all_segments(
            header in 54u32..100, payload in 0u32..65_000, size in 1u32..66_000,
            unlent in 1u32..256, most in 0u32..=256, more in 0u32..64,
        ) {
            let cut = SegmentSlots::new(header, header + payload, size, slots_of);
            let lens = (0..payload.div_ceil(size).max(1)).map(|n| header + size.min(payload - n * size));
            let slots: Vec<_> = lens.clone().map(slots_of).collect();
            prop_assume!(slots.len() <= 192);
            prop_assert_eq!(cut.left(0), slots.iter().sum::<u32>());
            prop_assert_eq!(Some(cut.longest()), lens.max());
            let mut sent = 0;
            while usize::from(sent) < slots.len() {
                let wanted = cut.next_part(sent, unlent, most);
                let few = most < FEW && wanted <= PART_OF_FEW.max(most / 4);
                prop_assert!(few || wanted <= unlent || wanted <= PART_MIN || wanted == cut.each);
                let end = cut.end_of_part(sent, wanted + more);
                prop_assert!(end > sent, "each part gets further");
                let taken: u32 = slots[sent.into()..end.into()].iter().sum();
                prop_assert!(taken <= wanted + more);
                if cut.left(sent) <= unlent && most >= FEW {
                    prop_assert_eq!(usize::from(end), slots.len(), "all at once, where that can be");
                }
                sent = end;
            }
            prop_assert_eq!(cut.left(sent), 0);
        }
    }
}
