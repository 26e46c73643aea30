//! Event channels: a one-bit doorbell between two domains.

use std::os::fd::AsFd;

use crate::Error;

/// One end of an event channel.
///
/// Events do not count: any number of notifications before the other end looks is one.
/// The descriptor is readable while an event is pending.
pub trait EventChannel: AsFd + Send + Sync + 'static {
    /// Rings the other end's bell.
    fn notify(&self) -> Result<(), Error>;

    /// Takes the pending event, if there is one, so that the next can be seen.
    ///
    /// Call it before looking at the ring, never after: an event that arrives between the
    /// look and the call would be lost.
    fn take(&self) -> Result<bool, Error>;
}
