//! Why a ring cannot be used.

use crate::MemoryError;

/// The driver broke the protocol; the ring must not be used any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RingBroken {
    /// The driver claims more chains than the ring has entries.
    #[error(
        "the available index {available} is more than {size} entries ahead of the used index {used}"
    )]
    AvailableOverflow {
        /// The index in shared memory.
        available: u16,
        /// The last chain that was returned.
        used: u16,
        /// The ring's size.
        size: u16,
    },
    /// The driver moved its index back.
    #[error("the available index went back from {before} to {now}")]
    AvailableBackwards {
        /// The earlier index.
        before: u16,
        /// The present index.
        now: u16,
    },
    /// An index names a descriptor that does not exist.
    #[error("descriptor {index} of a table of {size}")]
    NoSuchDescriptor {
        /// The index.
        index: u16,
        /// The table's size.
        size: u16,
    },
    /// A chain is longer than the ring, its table or [`DESCRIPTORS_MAX`](crate::DESCRIPTORS_MAX): a loop, descriptors that are
    /// in use already, or too many empty ones.
    #[error("a chain of more than {0} descriptors")]
    LongChain(u16),
    /// An indirect table within an indirect table, one without the feature, or one in a chain that goes on.
    #[error("an indirect table where none may be")]
    Indirect,
    /// An indirect table whose length is not that of 1 to [`SIZE_MAX`](crate::SIZE_MAX) descriptors.
    #[error("an indirect table of {0} bytes")]
    IndirectLength(u32),
    /// A packed ring's buffer id is not below the ring's size.
    #[error("buffer id {id} in a ring of {size}")]
    NoSuchId {
        /// The id.
        id: u16,
        /// The ring's size.
        size: u16,
    },
    /// The memory's file was cut short, or the kernel could not provide its pages.
    #[error("the guest's memory is gone: its file was truncated, or its pages could not be had")]
    MemoryLost,
}

/// A ring cannot be set up as the driver wants it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetupError {
    /// Not a size that a ring of this layout can have.
    #[error("a {layout} ring of {size} entries")]
    Size {
        /// "split" or "packed".
        layout: &'static str,
        /// The size asked for.
        size: u32,
    },
    /// A part of the ring is not where its layout allows.
    #[error("the {part} of the ring: {source}")]
    Area {
        /// Which part.
        part: &'static str,
        /// Why not.
        source: MemoryError,
    },
    /// A part of the ring is not aligned.
    #[error("the {part} of the ring is not at a multiple of {align} bytes")]
    Alignment {
        /// Which part.
        part: &'static str,
        /// The alignment that its layout demands.
        align: usize,
    },
    /// The position to start from is not in the ring.
    #[error("position {0:#x} is not in the ring")]
    Position(u32),
    /// The log of inflight descriptors is that of a smaller ring, or contradicts itself.
    #[error("the log of inflight descriptors does not fit the ring")]
    Inflight,
    /// The ring was broken before it was set up.
    #[error(transparent)]
    Broken(#[from] RingBroken),
}
