//! The two kinds of token.

use std::ops::AddAssign;

use port::Frame;

/// Bytes and packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tokens {
    pub bytes: u64,
    pub packets: u64,
}

impl Tokens {
    /// What a frame costs.
    #[inline]
    pub fn of(frame: &Frame) -> Self {
        Self { bytes: frame.len.into(), packets: frame.packets().into() }
    }
}

impl AddAssign for Tokens {
    #[inline]
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.packets += other.packets;
    }
}
