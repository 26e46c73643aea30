//! What lies between a port and the switch: guard, limit and capture.

use std::sync::Arc;

use capture::{Capture, CapturePoint, Options, Unwrap};
use datapath::{Datapath, Port};
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
    /// None if captures are not allowed.
    point: Option<CapturePoint>,
    /// Whether the queues have the wrapper of captures.
    captured: bool,
}

impl Wrappers {
    /// Wrappers for the port `name`: without a guard if there is no policy. Captures can be started
    /// if `capture` allows it.
    pub(super) fn new(name: &str, guard: Option<Policy>, limits: &Limits, capture: bool) -> Self {
        let [from_port, to_port] = [limits.ingress, limits.egress].map(Meter::new);
        Self {
            guard,
            from_port,
            to_port,
            point: capture.then(|| CapturePoint::new(name)),
            captured: false,
        }
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
        let queue = Queue { ingress, egress };
        match &self.point {
            Some(point) if self.captured => point.wrap(queue),
            _ => queue,
        }
    }

    /// Puts the wrapper of captures around the queues of the port while a capture runs, and takes
    /// it off after the last one. Call it now and then.
    pub(super) fn refresh(&mut self, datapath: &Datapath, port: Option<&Port>) {
        let Some(point) = &self.point else { return };
        if point.is_active() == self.captured {
            return;
        }
        self.captured = !self.captured;
        let rewrap = if self.captured { point.wrapper() } else { Arc::new(Unwrap) };
        if let Some(port) = port {
            datapath.rewrap(port, &rewrap);
        }
    }

    /// Starts a capture at the port.
    ///
    /// # Errors
    /// A sentence for an operator.
    pub(super) fn capture(&self, options: &Options) -> Result<Capture, String> {
        let Some(point) = &self.point else {
            let key = "capture = false in [daemon] of the configuration";
            return Err(format!("this daemon does not record traffic ({key})"));
        };
        point.start(options).map_err(|error| error.to_string())
    }
}
