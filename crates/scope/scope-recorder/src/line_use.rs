//! Uses of cache lines, on their way to the models.

use scope_model::LineId;

/// Capacity for uses of lines, and for the blocks that make them.
pub const USES: usize = 1 << 12;
/// The number of either from which on the buffer counts as full. One block more still fits: QEMU's blocks have at most 512
/// instructions, which access one or two lines each, and 120 lines of code.
pub const FULL: usize = 1 << 10;

/// The use of a line, in 32 bits.
///
/// ```text
///  31…15     14      13…0
///  ┌────────┬───────┬───────┐
///  │line    │writes │number │ of the executed block
///  └────────┴───────┴───────┘
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct LineUse(u32);

impl LineUse {
    /// Bits of an executed block's number.
    pub const BLOCK_BITS: u32 = 14;
    const BLOCK: u32 = (1 << Self::BLOCK_BITS) - 1;
    const LINE: u32 = Self::BLOCK_BITS + 1;

    /// The use of a line by the executed block of this number.
    #[inline]
    pub fn new(line: LineId, write: bool, block: usize) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "there are no more")]
        let block = block as u32 & Self::BLOCK;
        Self(line.bits() << Self::LINE | u32::from(write) << Self::BLOCK_BITS | block)
    }

    /// The line.
    #[inline]
    pub fn line(self) -> LineId {
        LineId::from_bits(self.0 >> Self::LINE)
    }

    /// Whether the line is written.
    #[inline]
    pub fn writes(self) -> bool {
        self.0 >> Self::BLOCK_BITS & 1 != 0
    }

    /// The number of the executed block.
    #[inline]
    pub fn block(self) -> u32 {
        self.0 & Self::BLOCK
    }
}

const _: () = assert!(LineUse::LINE + LineId::BITS == u32::BITS, "a use has 32 bits");
const _: () = assert!(USES <= 1 << LineUse::BLOCK_BITS, "every executed block has a number");
