//! The two descriptor rings: a page each, in two consecutive pages.
//!
//! The producer index is in a [mailbox](crate::Mailbox), the consumer index in the
//! [completion page](crate::completion). The descriptor of index n lies in slot n modulo
//! [`SLOTS`] and has the sequence number n, so that a stale one, of the round before, differs by `SLOTS`.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Descriptor;
pub use crate::descriptor::{SEQUENCE_MODULUS, sequence};

/// Descriptors of a ring.
pub const SLOTS: u32 = 256;
/// Bytes of one ring.
pub const RING_LEN: usize = SLOTS as usize * size_of::<Descriptor>();
/// Bytes of both rings.
pub const RINGS_LEN: usize = 2 * RING_LEN;

const _: () = assert!(RING_LEN == 4096 && SEQUENCE_MODULUS >= 2 * SLOTS as u64);

/// Which of a context's rings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Direction {
    /// From the guest.
    Tx = 0,
    /// To the guest.
    Rx = 1,
}

impl Direction {
    /// Where its ring begins in the ring pages.
    #[inline]
    #[must_use]
    pub const fn start(self) -> usize {
        self as usize * RING_LEN
    }
}

/// The slot of an index.
#[inline]
#[must_use]
pub const fn slot(index: u32) -> usize {
    (index % SLOTS) as usize
}

/// Where the descriptor of an index lies in the ring pages.
#[inline]
#[must_use]
pub const fn offset(direction: Direction, index: u32) -> usize {
    direction.start() + slot(index) * size_of::<Descriptor>()
}

/// How many descriptors from `index` on, at most `count`, follow each other in memory.
#[inline]
#[must_use]
pub const fn contiguous(index: u32, count: u32) -> u32 {
    let before_end = SLOTS - index % SLOTS;
    if count < before_end { count } else { before_end }
}

/// How many descriptors were produced and not consumed, if these indices are possible: no more than
/// the ring holds.
#[inline]
#[must_use]
pub const fn filled(producer: u32, consumer: u32) -> Option<u32> {
    let filled = producer.wrapping_sub(consumer);
    if filled <= SLOTS { Some(filled) } else { None }
}

/// The memory of a ring whose first descriptor will have the index `start`. Every slot is a round behind: a producer index that is
/// too high leads to a stale sequence number, and not to a zero that may be right.
#[must_use]
pub fn initial(start: u32) -> InitialRing {
    let mut slots = [Descriptor::default(); SLOTS as usize];
    for n in 0..SLOTS {
        let index = start.wrapping_add(n);
        slots[slot(index)].seq = sequence(index).wrapping_sub(SLOTS);
    }
    InitialRing(slots)
}

/// The bytes of a ring without descriptors.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(transparent)]
pub struct InitialRing(pub [Descriptor; SLOTS as usize]);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_rings_are_pages_that_follow_each_other() {
        assert_eq!(offset(Direction::Tx, 0), 0);
        assert_eq!(offset(Direction::Tx, 255), 4080);
        assert_eq!(offset(Direction::Rx, 256), 4096);
        assert_eq!(offset(Direction::Rx, u32::MAX), 8176);
    }

    proptest! {
        #[test]
        fn indices_wrap(index: u32, count in 0u32..=256) {
            let next = index.wrapping_add(count);
            prop_assert_eq!(filled(next, index), Some(count));
            prop_assert_eq!(filled(index.wrapping_sub(1), index), None, "an index that ran backwards");
            prop_assert_eq!(filled(index.wrapping_add(257), index), None);
            prop_assert_eq!(slot(index.wrapping_add(SLOTS)), slot(index));
            let first = contiguous(index, count);
            prop_assert!(slot(index) + first as usize <= 256);
            prop_assert!(first == count || slot(index.wrapping_add(first)) == 0);
        }

        #[test]
        fn no_slot_of_an_empty_ring_is_valid(start: u32, ahead in 0u32..256) {
            let index = start.wrapping_add(ahead);
            let ring = initial(start);
            prop_assert_ne!(ring.0[slot(index)].seq, sequence(index));
        }
    }
}
