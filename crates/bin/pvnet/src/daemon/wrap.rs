//! What lies between a port and the switch: guard, limit and capture.

use std::sync::Arc;

use capture::{Capture, CapturePoint, Options, Unwrap};
use control_socket::{GuardStatus, LimitStatus, PortKind, PortStatus, Rates};
use datapath::{Datapath, Port};
use guard::{Guard, Policy};
use limit::{Limit, Meter};
use port::{Ingress, Queue};

use crate::config::Limits;

/// The wrappers of one port. They stay while the port connects, closes and connects again: captures
/// go on, and a guest that reconnects gets no new burst.
pub(super) struct Wrappers {
    guard: Option<Policy>,
    limits: Limits,
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
            limits: *limits,
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
        let ingress = self.wrap_ingress(queue.ingress);
        let egress = limit::police(queue.egress, &self.to_port);
        let egress = match &self.point {
            Some(point) if self.captured => point.wrapper().egress(egress),
            _ => egress,
        };
        Queue { ingress, egress }
    }

    /// The same for a queue that has no other side.
    pub(super) fn wrap_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        let ingress = limit::shape(ingress, &self.from_port);
        let ingress = match &self.guard {
            Some(policy) => Guard::wrap(ingress, policy),
            None => ingress,
        };
        match &self.point {
            Some(point) if self.captured => point.wrapper().ingress(ingress),
            _ => ingress,
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

    /// Completes the status of the port: what its frames are checked for, and what it may carry.
    pub(super) fn describe(&self, status: PortStatus) -> PortStatus {
        // An uplink has no guard: its frames come from many sources.
        let guard = (status.kind == PortKind::Guest).then(|| guard_status(self.guard.as_ref()));
        let [ingress, egress] = [self.limits.ingress, self.limits.egress].map(rates);
        let is_limited = ingress.is_some() || egress.is_some();
        let limit = is_limited.then_some(LimitStatus { ingress, egress });
        PortStatus { guard, limit, ..status }
    }
}

fn guard_status(policy: Option<&Policy>) -> GuardStatus {
    let Some(policy) = policy else { return GuardStatus::Off };
    let Some(addresses) = &policy.addresses else { return GuardStatus::Mac };
    GuardStatus::Addresses { addresses: addresses.iter().map(ToString::to_string).collect() }
}

fn rates(limit: Limit) -> Option<Rates> {
    let Limit { bytes_per_second, packets_per_second, .. } = limit;
    (!limit.is_unlimited()).then_some(Rates { bytes_per_second, packets_per_second })
}

#[cfg(test)]
mod tests {
    use control_socket::PortState;
    use wire::ethernet::MacAddr;

    use super::*;

    fn described(kind: PortKind, guard: Option<Policy>, limits: &Limits) -> PortStatus {
        let wrappers = Wrappers::new("red", guard, limits, false);
        wrappers.describe(PortStatus::new("red", kind, PortState::Up))
    }

    #[test]
    fn a_port_says_how_it_is_guarded() {
        let guard = |policy| described(PortKind::Guest, policy, &Limits::default()).guard;
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        assert_eq!(guard(None), Some(GuardStatus::Off));
        assert_eq!(guard(Some(Policy { mac, addresses: None })), Some(GuardStatus::Mac));
        let texts = ["10.77.0.1", "fd00:77::/64"];
        let addresses = texts.map(|text| text.parse().unwrap()).to_vec();
        let addresses = guard(Some(Policy { mac, addresses: Some(addresses) }));
        let texts = texts.map(str::to_owned).to_vec();
        assert_eq!(addresses, Some(GuardStatus::Addresses { addresses: texts }));
        assert_eq!(described(PortKind::Uplink, None, &Limits::default()).guard, None);
    }

    #[test]
    fn a_port_says_what_it_may_carry() {
        assert_eq!(described(PortKind::Uplink, None, &Limits::default()).limit, None);
        let ingress = Limit::new(Some(125_000), Some(7));
        for (egress, packets) in [(Limit::default(), None), (Limit::new(None, Some(9)), Some(9))] {
            let limit = described(PortKind::Guest, None, &Limits { ingress, egress }).limit;
            let egress =
                packets.map(|n| Rates { bytes_per_second: None, packets_per_second: Some(n) });
            let ingress =
                Some(Rates { bytes_per_second: Some(125_000), packets_per_second: Some(7) });
            assert_eq!(limit, Some(LimitStatus { ingress, egress }));
        }
    }
}
