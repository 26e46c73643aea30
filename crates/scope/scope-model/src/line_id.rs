//! Names of cache lines in 17 bits.

use crate::config::LINE;
use crate::mapping::{PAGE_SLOTS, Side};

/// A line of a page that the model has a mapping of: its side, the page's slot and the line's number in the page.
///
/// Slot and number are the lower bits of the line's virtual number, so no table is needed to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineId(u32);

impl LineId {
    /// Bits of a line's number in its page.
    pub(crate) const IN_PAGE: u32 = 6;
    /// Bits of slot and number.
    const LOWER: u32 = Self::IN_PAGE + PAGE_SLOTS.ilog2();
    /// Bits of an identifier.
    pub const BITS: u32 = Self::LOWER + 1;
    /// Lower bits of an address that an identifier depends on.
    pub const ADDRESS_BITS: u32 = Self::LOWER + LINE.ilog2();

    /// The line of an address; its [lower bits](Self::ADDRESS_BITS) suffice.
    #[inline]
    #[must_use]
    pub fn of(side: Side, address: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "these bits")]
        let lower = (address / LINE as u64) as u32 & ((1 << Self::LOWER) - 1);
        Self(lower | (side as u32) << Self::LOWER)
    }

    /// The line that lies `lines` further on, in whichever page.
    #[inline]
    #[must_use]
    pub fn after(self, lines: u16) -> Self {
        let lower = (1 << Self::LOWER) - 1;
        Self(self.0 & !lower | self.0.wrapping_add(lines.into()) & lower)
    }

    /// The identifier as a number of [`BITS`](Self::BITS) bits.
    #[inline]
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// The identifier of a number; bits beyond [`BITS`](Self::BITS) are ignored.
    #[inline]
    #[must_use]
    pub fn from_bits(bits: u32) -> Self {
        Self(bits & ((1 << Self::BITS) - 1))
    }

    /// Whether the line is of data, else of code.
    #[inline]
    #[must_use]
    pub fn is_data(self) -> bool {
        self.side() == Side::Data as usize
    }

    #[inline]
    pub(crate) fn side(self) -> usize {
        (self.0 >> Self::LOWER) as usize
    }

    /// The slot of its page, among those of both sides.
    #[inline]
    pub(crate) fn slot(self) -> usize {
        (self.0 >> Self::IN_PAGE) as usize
    }

    #[inline]
    pub(crate) fn in_page(self) -> u64 {
        u64::from(self.0 & ((1 << Self::IN_PAGE) - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_keeps_its_side_and_continues_in_the_next_page() {
        let (code, data) = (LineId::of(Side::Code, 0x1040), LineId::of(Side::Data, 0x1040));
        assert_ne!(code, data);
        assert!(data.is_data() && !code.is_data());
        assert_eq!((code.slot(), code.in_page()), (1, 1));
        assert_eq!((data.slot(), data.in_page()), (PAGE_SLOTS + 1, 1));
        for line in [code, data] {
            assert_eq!(LineId::from_bits(line.bits()), line);
            assert_eq!(line.after(63).slot(), line.slot() + 1);
        }
        // The page after the last slot has the first slot of the same side.
        let last = LineId::of(Side::Code, u64::MAX);
        assert_eq!(last.after(1), LineId::of(Side::Code, 0));
        assert_eq!(LineId::of(Side::Data, u64::MAX).after(1), LineId::of(Side::Data, 0));
    }
}
