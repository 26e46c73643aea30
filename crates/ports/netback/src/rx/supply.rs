//! Whether a frontend posts buffers fast enough for frames to wait for it.

use std::time::Duration;

use port::{DropReason, Outcome};
use ring::netif::Rx;
use ring::{SharedPage, Slots};

use crate::request::Fault;

use super::posted::PostedRing;

/// Frames that wait block their sender's ring. So they wait only for a frontend that posts [`PACE`]
/// buffers in this time. In XSA-392 a single buffer now and then was enough to avoid the detection
/// of a stall.
const STALL: Duration = Duration::from_millis(200);
/// Buffers that end a shortage, or a stall: a whole ring.
const PACE: u32 = Rx::COUNT;

/// Whether the frontend posts enough buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferSupply {
    Enough,
    /// Too few since the time `since`, when request `at` was the next.
    Short {
        since: Duration,
        at: u32,
    },
    /// Too few for too long. When this was noticed, request `at` was the next.
    Stalled {
        at: u32,
    },
}

impl BufferSupply {
    #[inline]
    pub(super) fn is_enough(self) -> bool {
        self == Self::Enough
    }

    pub(super) fn is_stalled(self) -> bool {
        matches!(self, Self::Stalled { .. })
    }

    /// Whether `slots` buffers are there. Asks for an event if not.
    pub(super) fn has<P: SharedPage>(
        &mut self,
        ring: &mut PostedRing<P>,
        slots: u32,
        now: Duration,
    ) -> Result<bool, Fault> {
        let known = ring.unconsumed()?;
        let enough = known >= slots || ring.refresh()? >= slots || ring.arm_for(slots)?;
        if !enough || !self.is_enough() {
            self.judge(ring, enough, now)?;
        }
        Ok(enough)
    }

    /// Decides whether frames may wait for this frontend. `enough`: it has buffers for the next
    /// frame.
    pub(super) fn judge<P: SharedPage>(
        &mut self,
        ring: &mut PostedRing<P>,
        enough: bool,
        now: Duration,
    ) -> Result<(), Fault> {
        let next = ring.consumed();
        let end = ring.end()?;
        *self = match *self {
            Self::Short { at, .. } | Self::Stalled { at } if end.wrapping_sub(at) >= PACE => {
                if enough {
                    Self::Enough
                } else {
                    Self::Short { since: now, at: next }
                }
            }
            other if enough => other,
            Self::Enough => Self::Short { since: now, at: next },
            Self::Short { since, .. } if now.saturating_sub(since) > STALL => {
                Self::Stalled { at: next }
            }
            other => other,
        };
        Ok(())
    }

    /// The outcome of a frame for which there are too few buffers.
    pub(super) fn without_room(self) -> Outcome {
        match self {
            Self::Stalled { .. } => Outcome::Dropped(DropReason::Stalled),
            _ => Outcome::Waiting,
        }
    }
}
