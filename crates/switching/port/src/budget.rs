//! How much a queue may do in one turn.

/// What a queue may still do in its turn, in work and in bytes.
///
/// One unit of work is about what one ring slot costs: some tens of nanoseconds. Whoever does work
/// charges it, useful or not. A turn may go over by what its last frame costs, never by more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    work: u32,
    bytes: u64,
}

impl Budget {
    /// One turn of a queue among others: a ring of slots.
    pub const TURN: Self = Self { work: 256, bytes: u64::MAX };
    /// Units that a system call costs.
    pub const SYSTEM_CALL: u32 = 8;

    /// A budget of its own.
    #[must_use]
    pub const fn new(work: u32, bytes: u64) -> Self {
        Self { work, bytes }
    }

    /// The part of this budget that has no more than `bytes`. What is charged to the part is charged
    /// to the whole by [`spend_like`](Self::spend_like).
    #[must_use]
    pub fn at_most(self, bytes: u64) -> Self {
        Self { bytes: self.bytes.min(bytes), ..self }
    }

    /// Whether nothing is left: no further frame may be begun.
    #[inline]
    #[must_use]
    pub fn is_spent(self) -> bool {
        self.work == 0 || self.bytes == 0
    }

    /// Charges work, and the bytes of a frame.
    #[inline]
    pub fn charge(&mut self, work: u32, bytes: usize) {
        self.work = self.work.saturating_sub(work);
        self.bytes = self.bytes.saturating_sub(bytes as u64);
    }

    /// The units of work that are left.
    #[inline]
    #[must_use]
    pub fn work(self) -> u32 {
        self.work
    }

    /// The bytes that are left.
    #[inline]
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// Takes the work over that was charged to a part of this budget.
    pub fn spend_like(&mut self, part: Self) {
        self.work = self.work.min(part.work);
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::TURN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn either_kind_ends_a_turn() {
        let mut budget = Budget::new(2, 100);
        budget.charge(1, 60);
        assert!(!budget.is_spent());
        budget.charge(1, 10);
        assert!(budget.is_spent(), "no work left");
        let mut budget = Budget::new(10, 100);
        budget.charge(1, 200);
        assert!(budget.is_spent(), "the last frame may go over");
        assert_eq!((budget.work(), budget.bytes()), (9, 0));
    }

    #[test]
    fn a_part_charges_the_whole() {
        let mut whole = Budget::TURN;
        let mut part = whole.at_most(1000);
        part.charge(56, 1500);
        assert!(part.is_spent());
        whole.spend_like(part);
        assert_eq!((whole.work(), whole.bytes()), (200, u64::MAX));
    }
}
