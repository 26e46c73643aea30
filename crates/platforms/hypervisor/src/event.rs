//! Event channels: a one-bit doorbell between two domains.

use std::os::fd::AsFd;

use crate::error::Error;

/// One end of an event channel.
///
/// Events do not count: several notifications before the other end looks are one event. The
/// descriptor becomes readable with an event; wait for it edge-triggered (`EPOLLET`).
pub trait EventChannel: AsFd + Send + Sync + 'static {
    /// Sends an event to the other end. Never blocks.
    fn notify(&self) -> Result<(), Error>;

    /// Clears a pending event, so that the next one makes a new edge. Never blocks.
    ///
    /// Call it before looking at the ring, never after: an event in between would be lost.
    fn take(&self) -> Result<(), Error>;
}
