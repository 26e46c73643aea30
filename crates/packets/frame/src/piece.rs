//! The parts of a frame in its sender's memory.

use hypervisor::Granted;

/// One contiguous run of a frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Where it lies.
    pub place: Place,
    /// How many bytes.
    pub len: u16,
}

/// Where a piece lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Within one page that the sender grants.
    Grant(Granted),
    /// Within one of the regions that the sender's memory is mapped as.
    Region {
        /// Which region.
        index: u16,
        /// First byte within it.
        offset: u64,
    },
}

impl Piece {
    /// A piece of a granted page.
    #[inline]
    #[must_use]
    pub fn granted(granted: Granted, len: u16) -> Self {
        Self { place: Place::Grant(granted), len }
    }

    /// A piece of the region `index`, from its byte `offset` on.
    #[inline]
    #[must_use]
    pub fn in_region(index: u16, offset: u64, len: u16) -> Self {
        Self { place: Place::Region { index, offset }, len }
    }

    /// Leaves at most the first `left` bytes, and takes those that it has off `left`.
    pub(crate) fn truncate(&mut self, left: &mut usize) {
        self.len = self.len.min(u16::try_from(*left).unwrap_or(u16::MAX));
        *left -= usize::from(self.len);
    }

    /// Takes `taken` bytes off the front, at most all of them.
    #[inline]
    pub(crate) fn advance(&mut self, taken: u16) {
        match &mut self.place {
            Place::Grant(granted) => granted.offset += taken,
            Place::Region { offset, .. } => *offset += u64::from(taken),
        }
        self.len -= taken;
    }
}
