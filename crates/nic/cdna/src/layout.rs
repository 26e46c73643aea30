//! What a card announces: its size, its features and the layout of its descriptors (paper, §3.4).
//!
//! The hypervisor writes descriptors in the announced layout, so it can serve cards with other layouts than ours.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Descriptor, ring};

/// The version of everything in this crate.
pub const VERSION: u32 = 1;
/// The most bytes of a descriptor that the hypervisor writes.
pub const DESCRIPTOR_MAX: usize = 32;

/// A little-endian field of a descriptor.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Field {
    /// Its first byte.
    pub offset: u8,
    /// Its bytes: 1 to 8.
    pub width: u8,
}

impl Field {
    /// The largest value.
    #[must_use]
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - 8 * self.width as u32)
    }

    fn write(self, bytes: &mut [u8; DESCRIPTOR_MAX], value: u64) {
        let (start, width) = (usize::from(self.offset), usize::from(self.width));
        bytes[start..start + width].copy_from_slice(&value.to_le_bytes()[..width]);
    }

    /// The bytes of a descriptor that it takes, as a bit set; none if it does not fit.
    fn bytes(self, size: u8) -> Option<u32> {
        let end = self.offset.checked_add(self.width)?;
        ((1..=8).contains(&self.width) && end <= size)
            .then(|| ((1u32 << self.width) - 1) << self.offset)
    }
}

/// The layout of a descriptor.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Layout {
    /// Bytes of a descriptor: a power of two, at most [`DESCRIPTOR_MAX`].
    pub size: u8,
    /// The machine address.
    pub addr: Field,
    /// The length.
    pub len: Field,
    /// The flags.
    pub flags: Field,
    /// The sequence number. Its width is the modulus.
    pub seq: Field,
    /// 0.
    pub reserved: [u8; 7],
}

/// The announced layout is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a descriptor's fields overlap, or do not fit into it")]
pub struct BadLayout;

impl Layout {
    /// The layout of [`Descriptor`].
    pub const OURS: Self = Self {
        size: 16,
        addr: Field { offset: 0, width: 8 },
        len: Field { offset: 8, width: 2 },
        flags: Field { offset: 10, width: 2 },
        seq: Field { offset: 12, width: 4 },
        reserved: [0; 7],
    };

    /// Checks that the fields fit and do not overlap, and that a stale sequence number differs from the right one in a
    /// ring of [`ring::SLOTS`].
    ///
    /// # Errors
    /// They do not.
    pub fn check(&self) -> Result<(), BadLayout> {
        let mut used = 0;
        let fields = [self.addr, self.len, self.flags, self.seq];
        let is_possible = self.size.is_power_of_two()
            && usize::from(self.size) <= DESCRIPTOR_MAX
            && self.seq.width >= 2
            && fields.iter().all(|field| {
                let Some(bytes) = field.bytes(self.size) else { return false };
                let is_free = used & bytes == 0;
                used |= bytes;
                is_free
            });
        is_possible.then_some(()).ok_or(BadLayout)
    }

    /// A descriptor's bytes, of which the first [`size`](Self::size) are used. Values are cut to their fields' widths.
    ///
    /// The layout must have been [checked](Self::check).
    #[must_use]
    pub fn encode(&self, descriptor: &Descriptor) -> [u8; DESCRIPTOR_MAX] {
        let mut bytes = [0; DESCRIPTOR_MAX];
        self.addr.write(&mut bytes, descriptor.addr);
        self.len.write(&mut bytes, descriptor.len.into());
        self.flags.write(&mut bytes, descriptor.flags.into());
        self.seq.write(&mut bytes, descriptor.seq.into());
        bytes
    }
}

/// Features of a card.
pub mod features {
    /// It completes checksums.
    pub const CHECKSUM: u32 = 1;
    /// It gathers the frames that it sends.
    pub const SCATTER_GATHER: u32 = 1 << 1;
    /// It segments TCP.
    pub const TSO: u32 = 1 << 2;
}

/// A card's first message.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Announcement {
    /// [`VERSION`].
    pub version: u32,
    /// Contexts, the management context among them.
    pub contexts: u32,
    /// Descriptors of each ring.
    pub slots: u32,
    /// [`features`].
    pub features: u32,
    /// The descriptor's layout.
    pub layout: Layout,
}

impl Announcement {
    /// The announcement of a card with `contexts` contexts and these [`features`].
    #[must_use]
    pub const fn new(contexts: u32, features: u32) -> Self {
        Self { version: VERSION, contexts, slots: ring::SLOTS, features, layout: Layout::OURS }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Flags;

    #[test]
    fn our_layout_is_that_of_the_type() {
        Layout::OURS.check().unwrap();
        assert_eq!(usize::from(Layout::OURS.size), size_of::<Descriptor>());
        let descriptor =
            Descriptor::buffer(0x1122_3344, 0x5566_7788_99aa_bbcc, 0xddee, Flags(0x1f));
        assert_eq!(Layout::OURS.encode(&descriptor)[..16], *descriptor.as_bytes());
        assert_eq!(Layout::OURS.seq.max() + 1, ring::SEQUENCE_MODULUS);
    }

    #[test]
    fn another_cards_descriptor_is_written_by_its_layout() {
        let layout = Layout {
            size: 32,
            seq: Field { offset: 0, width: 2 },
            addr: Field { offset: 3, width: 8 },
            len: Field { offset: 29, width: 3 },
            flags: Field { offset: 16, width: 1 },
            ..Layout::OURS
        };
        layout.check().unwrap();
        let bytes = layout.encode(&Descriptor { addr: 0x0102, len: 3, flags: 4, seq: 0x5_0006 });
        let mut expected = [0; 32];
        (expected[0], expected[3], expected[4], expected[29], expected[16]) = (6, 2, 1, 3, 4);
        assert_eq!(bytes, expected);
    }

    #[test]
    fn impossible_layouts_are_refused() {
        let bad = [
            Layout { size: 24, ..Layout::OURS },
            Layout { size: 64, ..Layout::OURS },
            Layout { size: 8, ..Layout::OURS },
            Layout { len: Field { offset: 7, width: 2 }, ..Layout::OURS },
            Layout { len: Field { offset: 8, width: 0 }, ..Layout::OURS },
            Layout { addr: Field { offset: 0, width: 9 }, ..Layout::OURS },
            Layout { seq: Field { offset: 255, width: 4 }, ..Layout::OURS },
            Layout { seq: Field { offset: 12, width: 1 }, ..Layout::OURS },
        ];
        assert!(bad.iter().all(|layout| layout.check() == Err(BadLayout)));
    }
}
