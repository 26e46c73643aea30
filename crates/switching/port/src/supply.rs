//! Whether the other side takes frames fast enough for frames to wait for it.

use std::time::Duration;

use frame::{DropReason, Outcome};

/// Frames that wait block their sender's ring. So they wait only for a guest that posts a whole ring of buffers in this
/// time: a single buffer now and then must not keep them waiting for ever (XSA-392).
const STALL: Duration = Duration::from_millis(200);

/// Whether the other side has enough room for frames: a guest posts buffers, a back-end takes frames off its ring, a NIC sends
/// them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BufferSupply {
    /// There is room, or was a moment ago.
    #[default]
    Enough,
    /// Too few since this time, when so many had been used.
    Short {
        /// When frames began to wait.
        since: Duration,
        /// Buffers used until then.
        used: u64,
    },
    /// Too few for too long. So many had been used when this was noticed.
    Stalled {
        /// Buffers used until then.
        used: u64,
    },
}

impl BufferSupply {
    /// Whether frames no longer wait.
    #[must_use]
    pub fn is_stalled(self) -> bool {
        matches!(self, Self::Stalled { .. })
    }

    /// A frame was delivered, and `used` buffers have been used by now. `pace` of them end a shortage.
    #[inline]
    pub fn delivered(&mut self, used: u64, pace: u64) {
        if let Self::Short { used: before, .. } | Self::Stalled { used: before } = *self
            && used - before >= pace
        {
            *self = Self::Enough;
        }
    }

    /// There are too few buffers for a frame. Returns what becomes of it.
    pub fn without_room(&mut self, used: u64, now: Duration) -> Outcome {
        *self = match *self {
            Self::Enough => Self::Short { since: now, used },
            Self::Short { since, .. } if now.saturating_sub(since) > STALL => {
                Self::Stalled { used }
            }
            other => other,
        };
        match self {
            Self::Stalled { .. } => Outcome::Dropped(DropReason::Stalled),
            _ => Outcome::Waiting,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_now_and_then_is_no_supply() {
        let mut supply = BufferSupply::default();
        let ms = Duration::from_millis;
        assert_eq!(supply.without_room(0, ms(0)), Outcome::Waiting);
        for n in 1..20 {
            supply.delivered(n, 256);
            assert_eq!(supply.without_room(n, ms(n * 10)), Outcome::Waiting);
        }
        assert_eq!(supply.without_room(20, ms(201)), Outcome::Dropped(DropReason::Stalled));
        supply.delivered(30, 256);
        assert!(supply.is_stalled());
        supply.delivered(276, 256);
        assert_eq!(supply, BufferSupply::Enough);
    }
}
