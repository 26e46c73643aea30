//! What was wrong in one ring, before it is known whose ring it is.

use cdna::{ContextId, Direction, Fault, Reason};

/// A fault without its context and direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) reason: Reason,
    /// The index of the descriptor, or the producer index.
    pub(crate) index: u32,
    /// The refused value.
    pub(crate) value: u64,
}

impl Violation {
    pub(crate) fn of(self, context: ContextId, direction: Direction) -> Fault {
        let Self { reason, index, value } = self;
        Fault { context, reason, direction, index, value }
    }
}
