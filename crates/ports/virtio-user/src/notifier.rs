//! How a ring's two sides notify each other.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use port::Doorbell;
use rustix::event::{EventfdFlags, eventfd};
use vhost_user::Call;
use vhost_user::shared::{Alarm, watch};

use crate::messages::RingDescriptors;

/// A ring's two eventfds, on this side.
pub(crate) struct Notifier {
    /// Announces buffers to the back-end.
    pub(crate) kick: Arc<Call>,
    /// Announces buffers that it has returned.
    pub(crate) call: Arc<Doorbell>,
}

impl Notifier {
    /// Makes both, and the back-end's descriptors of them. `alarm` rings if a write to the back-end's blocks.
    pub(crate) fn new(alarm: &Arc<Alarm>) -> io::Result<(Self, RingDescriptors)> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let theirs: OwnedFd = eventfd(0, flags)?;
        let kick = Arc::<Call>::default();
        kick.set(Some(theirs.try_clone()?.into())).map_err(io::Error::other)?;
        // The back-end can make the descriptor blocking and fill it up.
        watch(&kick, alarm)?;
        let call = Arc::new(Doorbell::new()?);
        let descriptors =
            RingDescriptors { kick: theirs, call: call.as_fd().try_clone_to_owned()? };
        Ok((Self { kick, call }, descriptors))
    }
}
