//! How much a queue may do in one turn.

use frame::Frame;

/// What a queue may still do in its turn, in work, bytes and packets.
///
/// One unit of work is about what one ring slot costs: some tens of nanoseconds. All work
/// is charged, useful or not. A turn may exceed its budget by the cost of its last frame only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    work: u32,
    bytes: u64,
    packets: u64,
}

impl Budget {
    /// The budget of one turn: a ring of slots.
    pub const TURN: Self = Self::new(256, u64::MAX);
    /// Units that a system call costs.
    pub const SYSTEM_CALL: u32 = 8;
    /// The budget of one system call.
    pub const CALL: Self = Self::new(Self::SYSTEM_CALL, u64::MAX);

    /// A budget without a limit on packets.
    #[must_use]
    pub const fn new(work: u32, bytes: u64) -> Self {
        Self { work, bytes, packets: u64::MAX }
    }

    /// Whether nothing is left, so that the turn ends.
    #[inline]
    #[must_use]
    pub fn is_spent(self) -> bool {
        self.work == 0 || self.bytes == 0 || self.packets == 0
    }

    /// Charges work, and the bytes of a packet. Work without bytes is no packet.
    #[inline]
    pub fn charge(&mut self, work: u32, bytes: usize) {
        self.charge_all(work, bytes as u64, u64::from(bytes != 0));
    }

    /// Charges work, and the bytes and [packets](Frame::packets) of a frame. A port whose frames
    /// may be segmented must use this, because a limit on packets counts segments.
    #[inline]
    pub fn charge_frame(&mut self, work: u32, frame: &Frame) {
        self.charge_all(work, frame.len.into(), frame.packets().into());
    }

    #[inline]
    fn charge_all(&mut self, work: u32, bytes: u64, packets: u64) {
        self.work = self.work.saturating_sub(work);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.packets = self.packets.saturating_sub(packets);
    }

    /// Runs `take` with a part of this budget, of at most `bytes` and `packets`, and charges its
    /// costs to the whole budget.
    pub fn within<T>(&mut self, bytes: u64, packets: u64, take: impl FnOnce(&mut Self) -> T) -> T {
        let bytes = self.bytes.min(bytes);
        let packets = self.packets.min(packets);
        let mut part = Self { work: self.work, bytes, packets };
        let result = take(&mut part);
        self.charge_all(self.work - part.work, bytes - part.bytes, packets - part.packets);
        result
    }

    /// Whether only work is bounded. Then frames may be taken together; otherwise one by one, because a turn may exceed its bytes and packets by one
    /// frame's only.
    #[inline]
    #[must_use]
    pub fn bounds_only_work(self) -> bool {
        self.bytes == u64::MAX && self.packets == u64::MAX
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
}

impl Default for Budget {
    fn default() -> Self {
        Self::TURN
    }
}

#[cfg(test)]
mod tests {
    use offload::{Gso, GsoKind};

    use super::*;

    #[test]
    fn every_kind_ends_a_turn() {
        let mut budget = Budget::new(2, 100);
        budget.charge(1, 60);
        assert!(!budget.is_spent());
        budget.charge(1, 10);
        assert!(budget.is_spent(), "no work left");
        let mut budget = Budget::new(10, 100);
        budget.charge(1, 200);
        assert!(budget.is_spent(), "the last frame may go over");
        assert_eq!((budget.work(), budget.bytes()), (9, 0));
        Budget::default().within(u64::MAX, 2, |budget| {
            budget.charge(Budget::SYSTEM_CALL, 0);
            budget.charge(1, 60);
            assert!(!budget.is_spent(), "work without bytes is no packet");
            budget.charge(1, 60);
            assert!(budget.is_spent(), "no packets left");
        });
    }

    #[test]
    fn a_part_charges_the_whole() {
        let mut whole = Budget::new(256, 5000);
        whole.within(1000, u64::MAX, |part| {
            part.charge(56, 400);
            assert!(!part.is_spent());
            part.charge(0, 1500);
            assert!(part.is_spent());
        });
        assert_eq!((whole.work(), whole.bytes()), (200, 4000));
        let bytes = whole.within(u64::MAX, 1, |part| part.bytes());
        assert_eq!(bytes, 4000, "a part is no larger than the whole");
    }

    #[test]
    fn a_frame_is_the_packets_it_becomes() {
        let mut frame = Frame::empty();
        frame.len = 54 + 4000;
        frame.headers.payload_offset = 54;
        frame.gso = Some(Gso { kind: GsoKind::TcpV4, size: 1448 });
        let left = Budget::default().within(10_000, 4, |budget| {
            budget.charge_frame(3, &frame);
            *budget
        });
        assert_eq!((left.work, left.bytes, left.packets), (253, 10_000 - 4054, 1));
    }
}
