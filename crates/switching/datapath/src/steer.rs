//! Which queue of its destination a frame goes to.

use port::{Frame, SteeringCell, SteeringGuard};

use crate::port::Port;

/// A port, and how its guest wants flows spread over its queues, for one batch of frames.
pub(crate) struct Steer<'a> {
    port: &'a Port,
    wanted: SteeringGuard,
}

impl<'a> Steer<'a> {
    #[inline]
    pub(crate) fn to(port: &'a Port) -> Self {
        Self {
            port,
            wanted: port.steering().map_or_else(SteeringGuard::default, SteeringCell::load),
        }
    }

    /// The queue for a frame: the same for all frames of a flow.
    #[inline]
    pub(crate) fn queue(&self, frame: &Frame) -> usize {
        let Self { port, wanted } = self;
        if port.queues() < 2 {
            return 0;
        }
        if let Some(steering) = wanted.steering() {
            return steering.queue_of(steering.hash(frame), port.queues());
        }
        port.queue_of(match port.hashes_macs() {
            true => frame.flow_hash_with_macs(),
            false => frame.flow_hash(),
        })
    }
}
