//! Event channels: a one-bit doorbell between two domains.

use std::os::fd::AsFd;

use crate::Error;

/// One end of an event channel.
///
/// Events do not count: any number of notifications before the other end looks is one.
/// The descriptor becomes readable with an event; wait for it edge-triggered (`EPOLLET`).
pub trait EventChannel: AsFd + Send + Sync + 'static {
    /// Rings the other end's bell. Never blocks.
    fn notify(&self) -> Result<(), Error>;

    /// Takes what is pending, so that the next event makes a new edge. Never blocks.
    ///
    /// Call it before looking at the ring, never after: an event that arrives between the
    /// look and the call would be lost.
    fn take(&self) -> Result<(), Error>;
}
