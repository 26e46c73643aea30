//! What lies between a port and the switch: guard, limit and capture.

use std::sync::Arc;

use capture::{Capture, CapturePoint, Options, StartError};
use guard::{Guard, Policy};
use limit::Meter;
use port::Queue;

use crate::config::Limits;

/// The wrappers of one port. They stay while the port connects, closes and connects again: captures
/// go on, and a guest that reconnects gets no new burst.
pub(super) struct Wrappers {
    guard: Option<Policy>,
    from_port: Arc<Meter>,
    to_port: Arc<Meter>,
    point: CapturePoint,
}

impl Wrappers {
    /// Wrappers for the port `name`, without a guard if there is no policy.
    pub(super) fn new(name: &str, guard: Option<Policy>, limits: &Limits) -> Self {
        let [from_port, to_port] = [limits.ingress, limits.egress].map(Meter::new);
        Self { guard, from_port, to_port, point: CapturePoint::new(name) }
    }

    /// Wraps a queue: capture around guard around limit.
    ///
    /// Capture is outermost, because it does not see what a wrapper around it drops. Limit is
    /// innermost, so that what the guard refuses has used up its sender's own rate, and the guard
    /// has no more to check than the rate allows.
    pub(super) fn wrap(&self, queue: Queue) -> Queue {
        let ingress = limit::shape(queue.ingress, &self.from_port);
        let ingress = match &self.guard {
            Some(policy) => Guard::wrap(ingress, policy),
            None => ingress,
        };
        let egress = limit::police(queue.egress, &self.to_port);
        self.point.wrap(Queue { ingress, egress })
    }

    /// Starts a capture at the port.
    pub(super) fn capture(&self, options: &Options) -> Result<Capture, StartError> {
        self.point.start(options)
    }
}
