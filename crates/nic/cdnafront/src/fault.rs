//! What ends the use of a context.

use cdna::Direction;

use crate::call_page::CallError;

/// The card wrote what cannot be, or the hypervisor refused a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A consumer index went back, or beyond the descriptors that the card knows of.
    #[error("{direction:?} consumer {consumer} is outside {seen} to {announced}")]
    Consumer {
        /// In which ring.
        direction: Direction,
        /// The index in the completion page.
        consumer: u32,
        /// The last one.
        seen: u32,
        /// The producer index.
        announced: u32,
    },
    /// A completion without bytes, or of more than the buffer has.
    #[error("{len} bytes in buffer {index}")]
    Length {
        /// The descriptor's index.
        index: u32,
        /// What the completion says.
        len: u16,
    },
    /// A frame without an end, or of too many buffers.
    #[error("the frame that starts in buffer {0} has no end")]
    Unfinished(u32),
    /// An unsegmented frame whose segments have no size.
    #[error("the frame that starts in buffer {0} has segments of 0 bytes")]
    SegmentSize(u32),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}
