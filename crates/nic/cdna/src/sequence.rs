//! Sequence numbers, by which the card finds stale and missing descriptors (paper, §3.3).

/// Sequence numbers count modulo this, which is at least twice a ring's length: a stale one cannot be right.
pub const SEQUENCE_MODULUS: u64 = 1 << 32;

/// The sequence number of the descriptor with this index.
#[inline]
#[must_use]
pub const fn sequence(index: u32) -> u32 {
    index
}
