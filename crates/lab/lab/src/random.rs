//! Random numbers.

use std::num::NonZeroU64;

/// Marsaglia's xorshift64: bytes without a pattern that a checksum could miss or a compressor could use, at the cost of
/// three shifts for eight bytes.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Equal seeds give equal numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Zero is the only state that never changes. Small seeds would begin with many zero bits.
        Self(NonZeroU64::new(seed ^ 0x9e37_79b9_7f4a_7c15).map_or(1, NonZeroU64::get))
    }

    /// Fills bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.word().to_le_bytes()[..chunk.len()]);
        }
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u16) -> u16 {
        u16::try_from(self.word() % u64::from(n)).unwrap_or(0)
    }

    fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
