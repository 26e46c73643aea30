//! A frame at a port, as a capture sees it.

use port::{DropReason, Frame, Outcome};

/// Which way a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the port into the switch.
    Inbound,
    /// From the switch out of the port.
    Outbound,
}

/// A frame that passes a port.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The frame.
    pub frame: &'a Frame,
    /// Which way it goes.
    pub direction: Direction,
    /// What became of it.
    pub outcome: Outcome,
}

impl Packet<'_> {
    /// Why the frame went nowhere, if it did. Unreadable source memory is a memory fault, as in
    /// the metrics.
    pub(crate) fn drop_reason(&self) -> Option<DropReason> {
        match self.outcome {
            Outcome::Dropped(reason) => Some(reason),
            Outcome::SourceFault => Some(DropReason::MemoryFault),
            Outcome::Waiting
            | Outcome::Partial { .. }
            | Outcome::InFlight(_)
            | Outcome::Delivered => None,
        }
    }
}
