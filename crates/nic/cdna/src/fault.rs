//! Protection faults: why a card stopped a context.

use core::fmt;

use crate::{ContextId, Direction};

named::each! {
    /// What a context's guest, or its memory, did wrong.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u32)]
    pub enum Reason {
        /// The producer index claims more descriptors than the ring holds.
        ProducerAhead = 1,
        /// The producer index went back.
        ProducerBackwards = 2,
        /// A descriptor is stale, or others are missing before it.
        Sequence = 3,
        /// A descriptor has no buffer and is no offload's.
        Length = 4,
        /// A descriptor of an offload that does not exist, or inside a frame.
        Offload = 5,
        /// A frame has too many buffers, or no end.
        Chain = 6,
        /// A frame is longer than [`FRAME_MAX`](crate::descriptor::FRAME_MAX) or shorter than its Ethernet header.
        FrameLength = 7,
        /// The address is outside the machine's memory.
        Outside = 8,
        /// The IOMMU has no translation for the address.
        Unmapped = 9,
        /// The IOMMU's translation forbids this access.
        Forbidden = 10,
    }
}

impl Reason {
    /// The reason of this number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| *reason as u32 == number)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ProducerAhead => "producer index beyond the ring",
            Self::ProducerBackwards => "producer index went back",
            Self::Sequence => "wrong sequence number",
            Self::Length => "descriptor without a buffer",
            Self::Offload => "impossible offload",
            Self::Chain => "frame of too many buffers",
            Self::FrameLength => "impossible frame length",
            Self::Outside => "address outside the machine",
            Self::Unmapped => "address not mapped",
            Self::Forbidden => "access not permitted",
        })
    }
}

/// A report of a fault. After it the card touches none of the context's memory until the context is
/// assigned again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Whose.
    pub context: ContextId,
    /// What was wrong.
    pub reason: Reason,
    /// In which ring.
    pub direction: Direction,
    /// The index of the descriptor, or the producer index.
    pub index: u32,
    /// The value that the card refused: a sequence number, a length or an address.
    pub value: u64,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { reason, index, value, .. } = self;
        let ring = match self.direction {
            Direction::Tx => "tx",
            Direction::Rx => "rx",
        };
        write!(f, "{reason} ({ring} {index}: {value:#x})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_numbers_from_1_on() {
        for (number, reason) in (1..).zip(Reason::ALL) {
            assert_eq!(Reason::from_number(number), Some(reason));
        }
        assert_eq!((Reason::from_number(0), Reason::from_number(11)), (None, None));
    }

    #[test]
    fn a_fault_is_one_line() {
        let context = ContextId::new(3);
        let (reason, direction) = (Reason::Sequence, Direction::Tx);
        let fault = Fault { context, reason, direction, index: 7, value: 0xff };
        assert_eq!(fault.to_string(), "wrong sequence number (tx 7: 0xff)");
    }
}
