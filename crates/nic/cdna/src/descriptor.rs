//! Descriptors: a buffer in the machine's memory each.
//!
//! A frame to be sent is a chain of descriptors. All but its last lack [`Flags::EOP`]. An unsegmented
//! TCP frame begins with a descriptor without a buffer, whose address field holds an
//! [`Offload`]; its length is 0, so the hypervisor finds no page to check and copies the field as it
//! is. Flags about the whole frame are those of the chain's first descriptor.
//!
//! A received frame fills as many RX descriptors as it needs; their
//! [completions](crate::RxCompletion) say how far.

use core::num::NonZeroU16;
use core::ops::BitOr;

use wire::netif::GsoKind;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The most bytes of a frame, headers included.
pub const FRAME_MAX: usize = 65_535;
/// The least bytes of a frame: its Ethernet header.
pub const FRAME_MIN: usize = 14;
/// The most buffers of a frame. An [`Offload`] before them does not count.
pub const FRAGMENTS_MAX: usize = 18;

/// One entry of a ring: 16 bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Descriptor {
    /// The buffer's machine address; or an [`Offload`].
    pub addr: u64,
    /// The buffer's bytes. It may cross page ends; its bytes have consecutive addresses.
    pub len: u16,
    /// [`Flags`].
    pub flags: u16,
    /// The index of the descriptor, modulo [`SEQUENCE_MODULUS`].
    pub seq: u32,
}

const _: () = {
    use core::mem::offset_of;
    assert!(size_of::<Descriptor>() == 16);
    assert!(offset_of!(Descriptor, len) == 8);
    assert!(offset_of!(Descriptor, flags) == 10);
    assert!(offset_of!(Descriptor, seq) == 12);
};

impl Descriptor {
    /// A descriptor for a buffer.
    #[inline]
    #[must_use]
    pub const fn buffer(index: u32, addr: u64, len: u16, flags: Flags) -> Self {
        Self { addr, len, flags: flags.0, seq: sequence(index) }
    }

    /// A descriptor for the metadata of an unsegmented frame, whose buffers follow.
    #[inline]
    #[must_use]
    pub const fn offload(index: u32, offload: Offload, flags: Flags) -> Self {
        let flags = flags.0 | Flags::GSO.0;
        Self { addr: offload.to_field(), len: 0, flags, seq: sequence(index) }
    }

    /// Its flags.
    #[inline]
    #[must_use]
    pub const fn flags(&self) -> Flags {
        Flags(self.flags)
    }
}

/// Flags of descriptors and of completions. The hypervisor does not interpret them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u16);

impl Flags {
    /// No flag.
    pub const NONE: Self = Self(0);
    /// End of packet: the frame's last buffer.
    pub const EOP: Self = Self(1);
    /// The TCP or UDP checksum covers the pseudo-header only. The card finds its place from the headers.
    pub const CSUM_BLANK: Self = Self(1 << 1);
    /// Received: the TCP or UDP checksum is right, or its bytes never left the host.
    pub const CSUM_VALIDATED: Self = Self(1 << 2);
    /// The frame is unsegmented. To be sent: this is the descriptor of an [`Offload`]. Received: the
    /// completion has the segments' size.
    pub const GSO: Self = Self(1 << 3);
    /// Received: the unsegmented frame is TCP over IPv6, not IPv4.
    pub const GSO_V6: Self = Self(1 << 4);

    /// Whether all of these flags are set.
    #[inline]
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for Flags {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// How to segment a frame, in the address field of a descriptor without a buffer: bits 0 to 15 are the
/// segments' size, bits 16 to 23 the protocol, all others 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Offload {
    /// Protocol.
    pub kind: GsoKind,
    /// Payload bytes of each segment but the last.
    pub size: NonZeroU16,
}

impl Offload {
    /// As an address field.
    #[inline]
    #[must_use]
    pub const fn to_field(self) -> u64 {
        self.size.get() as u64 | (self.kind as u64) << 16
    }

    /// From an address field; none if it is not one.
    #[inline]
    #[must_use]
    pub fn from_field(field: u64) -> Option<Self> {
        let size = NonZeroU16::new(u16::try_from(field & 0xffff).ok()?)?;
        let kind = match field >> 16 {
            1 => GsoKind::TcpV4,
            2 => GsoKind::TcpV6,
            _ => return None,
        };
        Some(Self { kind, size })
    }
}

/// Sequence numbers count modulo this, which is at least twice a ring's length: a stale one cannot be right.
pub const SEQUENCE_MODULUS: u64 = 1 << 32;

/// The sequence number of the descriptor with this index.
#[inline]
#[must_use]
pub const fn sequence(index: u32) -> u32 {
    index
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_descriptor_has_the_documented_layout() {
        let flags = Flags::EOP | Flags::CSUM_BLANK;
        let descriptor = Descriptor::buffer(0x0d0c_0b0a, 0x0807_0605_0403_0201, 0x0a09, flags);
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 3, 0, 0x0a, 0x0b, 0x0c, 0x0d];
        assert_eq!(descriptor.as_bytes(), bytes);
        assert!(flags.contains(Flags::EOP) && !flags.contains(Flags::GSO));
    }

    #[test]
    fn an_offload_has_no_buffer() {
        let offload = Offload { kind: GsoKind::TcpV6, size: NonZeroU16::new(1448).unwrap() };
        let descriptor = Descriptor::offload(7, offload, Flags::CSUM_BLANK);
        assert_eq!((descriptor.addr, descriptor.len, descriptor.flags), (0x2_05a8, 0, 0b1010));
        for no_offload in [0, 0x1_0000, 0x0_05a8, 0x3_05a8, 0x102_05a8, 1 << 63] {
            assert_eq!(Offload::from_field(no_offload), None, "{no_offload:x}");
        }
    }

    proptest! {
        #[test]
        fn a_field_that_is_an_offload_is_its_field(field: u64) {
            for field in [field, field & 0x2_ffff] {
                if let Some(offload) = Offload::from_field(field) {
                    prop_assert_eq!(offload.to_field(), field);
                }
            }
        }
    }
}
