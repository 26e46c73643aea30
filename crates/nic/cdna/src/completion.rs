//! The completion page: what the card writes to a context's guest and to the hypervisor.
//!
//! The guest maps it read-only. If it could write a consumer index, it would make the hypervisor drop
//! references to pages that the card still uses.
//!
//! The card fills RX completions first and then moves the RX consumer index (release), by whole frames.

use wire::netif::GsoKind;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::{Direction, Flags, ring};

/// Bytes of a completion page.
pub const PAGE_LEN: usize = 4096;
/// The TX consumer index, a `u32`: the card is done with all descriptors before it.
pub const TX_CONSUMER: usize = 0;
/// The RX consumer index, a `u32`.
pub const RX_CONSUMER: usize = 64;
/// The sleep word, a `u32`: not 0 while the card sleeps and wants its doorbell rung.
pub const ASLEEP: usize = 128;
/// The context's [`Status`], a `u32`.
pub const STATUS: usize = 132;
/// The card's two words of the IOMMU's invalidation protocol, a `u32` each: confirmed, asleep.
pub const INVALIDATION: usize = 192;
/// The first of the RX completions, one for each slot.
pub const RX_COMPLETIONS: usize = 2048;

const _: () =
    assert!(RX_COMPLETIONS + ring::SLOTS as usize * size_of::<RxCompletion>() == PAGE_LEN);

/// Where a ring's consumer index is.
#[inline]
#[must_use]
pub const fn consumer(direction: Direction) -> usize {
    match direction {
        Direction::Tx => TX_CONSUMER,
        Direction::Rx => RX_CONSUMER,
    }
}

/// Where the completion of an RX descriptor is, by the descriptor's index.
#[inline]
#[must_use]
pub const fn offset(index: u32) -> usize {
    RX_COMPLETIONS + ring::slot(index) * size_of::<RxCompletion>()
}

/// What the card put into the buffer of one RX descriptor. What concerns the whole frame is in the completion of its
/// first buffer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct RxCompletion {
    /// Bytes in the buffer.
    pub len: u16,
    /// [`Flags`].
    pub flags: u16,
    /// Payload bytes of each segment but the last, with [`Flags::GSO`].
    pub gso_size: u16,
    /// 0.
    pub reserved: u16,
}

const _: () = assert!(size_of::<RxCompletion>() == 8);

impl RxCompletion {
    /// Its flags.
    #[inline]
    #[must_use]
    pub const fn flags(&self) -> Flags {
        Flags(self.flags)
    }

    /// The protocol and size of an unsegmented frame's segments.
    #[inline]
    #[must_use]
    pub const fn gso(&self) -> Option<(GsoKind, u16)> {
        if !self.flags().contains(Flags::GSO) {
            return None;
        }
        let is_v6 = self.flags().contains(Flags::GSO_V6);
        Some((if is_v6 { GsoKind::TcpV6 } else { GsoKind::TcpV4 }, self.gso_size))
    }
}

/// The state of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Status {
    /// No card serves it.
    #[default]
    Down = 0,
    /// The card serves it.
    Up = 1,
    /// The card found a fault and serves it no more.
    Faulted = 2,
    /// It was taken away.
    Revoked = 3,
}

impl Status {
    /// The status in a word; none if the word is not one.
    #[must_use]
    pub const fn from_word(word: u32) -> Option<Self> {
        match word {
            0 => Some(Self::Down),
            1 => Some(Self::Up),
            2 => Some(Self::Faulted),
            3 => Some(Self::Revoked),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_a_completion_in_the_page() {
        assert_eq!(offset(0), 2048);
        assert_eq!(offset(255), 4088);
        assert_eq!(offset(256), 2048);
        let flags = (Flags::GSO | Flags::GSO_V6).0;
        let completion = RxCompletion { len: 9, flags, gso_size: 1428, reserved: 0 };
        assert_eq!(completion.gso(), Some((GsoKind::TcpV6, 1428)));
        assert_eq!(RxCompletion::default().gso(), None);
    }

    #[test]
    fn a_word_is_a_status_or_none() {
        for status in [Status::Down, Status::Up, Status::Faulted, Status::Revoked] {
            assert_eq!(Status::from_word(status as u32), Some(status));
        }
        assert_eq!(Status::from_word(4), None);
    }
}
