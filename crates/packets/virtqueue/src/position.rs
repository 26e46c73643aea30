//! A place in a packed ring.

/// `VIRTQ_DESC_F_AVAIL` and `VIRTQ_DESC_F_USED`.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// The wrap counter in an event's or a position's 16 bits.
const WRAP: u16 = 1 << 15;

/// A place in the ring, and the driver's or device's lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) index: u16,
    pub(crate) wrap: bool,
}

impl Position {
    /// From the 16 bits that vhost-user has for it.
    pub(crate) fn from_bits(bits: u16) -> Self {
        Self { index: bits & !WRAP, wrap: bits & WRAP != 0 }
    }

    pub(crate) fn bits(self) -> u16 {
        self.index | if self.wrap { WRAP } else { 0 }
    }

    /// The place `by` descriptors further on.
    #[inline]
    pub(crate) fn advance(self, by: u16, size: u16) -> Self {
        // Both are at most 32768, so the sum has 32 bits.
        let index = u32::from(self.index) + u32::from(by);
        match index.checked_sub(size.into()) {
            Some(past) => Self { index: u16::try_from(past).unwrap_or(0), wrap: !self.wrap },
            None => Self { index: u16::try_from(index).unwrap_or(0), wrap: self.wrap },
        }
    }

    /// The place `by` descriptors before, at most a lap.
    pub(crate) fn back(self, by: u16, size: u16) -> Self {
        let Self { index, wrap } = self;
        match index.checked_sub(by) {
            Some(index) => Self { index, wrap },
            None => Self { index: size - (by - index), wrap: !wrap },
        }
    }

    /// Whether a descriptor here is available in this lap, by its flags.
    #[inline]
    pub(crate) fn is_available(self, flags: u16) -> bool {
        let (available, used) = (flags & AVAILABLE != 0, flags & USED != 0);
        available == self.wrap && used != self.wrap
    }

    /// The flags by which a descriptor here is used in this lap.
    #[inline]
    pub(crate) fn used_flags(self) -> u16 {
        if self.wrap { AVAILABLE | USED } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laps_are_distinguished() {
        const SIZE: u16 = 5;
        let start = Position { index: 0, wrap: true };
        for by in 0..=SIZE {
            let mut place = start;
            for _ in 0..9 {
                let next = place.advance(by, SIZE);
                assert_eq!(next.back(by, SIZE), place);
                assert_eq!(Position::from_bits(next.bits()), next);
                place = next;
            }
        }
        assert_eq!(start.advance(SIZE, SIZE), Position { index: 0, wrap: false });
        for (lap, other) in [(true, false), (false, true)] {
            let [place, next] = [lap, other].map(|wrap| Position { index: 3, wrap });
            let available = if lap { AVAILABLE } else { USED };
            assert_eq!(
                (place.is_available(available), next.is_available(available)),
                (true, false)
            );
            // What the device has used is for neither lap.
            let used = place.used_flags();
            assert_eq!((place.is_available(used), next.is_available(used)), (false, false));
        }
    }
}
