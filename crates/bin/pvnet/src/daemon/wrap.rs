//! What lies between a port and the switch: the gate, guard, limit, capture, and what merges.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use capture::{Capture, CaptureLayer, CapturePoint, Options, Recording};
use control_socket::{PortState, PortStatus, Reason, VlanStatus};
use datapath::{Datapath, Port, PortParts};
use gate::GateLayer;
use gro::{Counters, GroLayer};
use guard::{GuardLayer, GuardStatus};
use limit::{LimitLayer, LimitStatus, Limits, Meter};
use port::{Coalescing, Egress, Ingress, Layer, Layers, Queue, Rewrap};
use switch::{Membership, Tagging, VlanId};
use tracing::warn;

use crate::config::{Flooding, Rules};
use crate::daemon::mirrors::MirrorRole;

/// The wrappers of one port. They stay while the port connects, closes and connects again: captures
/// go on, and a guest that reconnects gets no new burst.
pub(super) struct Wrappers {
    name: String,
    rules: Rules,
    from_port: Arc<Meter>,
    to_port: Arc<Meter>,
    /// None if captures are not allowed.
    point: Option<CapturePoint>,
    /// Whether the queues have the wrapper of captures.
    captured: bool,
    /// What was merged for the port.
    merged: Arc<Counters>,
    /// What the port has to do with mirrors.
    role: MirrorRole,
}

impl Wrappers {
    /// Wrappers for the port `name`. Captures can be started if `capture` allows it.
    pub(super) fn new(name: &str, rules: Rules, capture: bool) -> Self {
        let [from_port, to_port] = [rules.limits.ingress, rules.limits.egress].map(Meter::new);
        Self {
            name: name.to_owned(),
            rules,
            from_port,
            to_port,
            point: capture.then(|| CapturePoint::new(name)),
            captured: false,
            merged: Arc::default(),
            role: MirrorRole::default(),
        }
    }

    pub(super) fn wrap(&self, queue: Queue) -> Queue {
        let layers = self.layers();
        Queue { ingress: layers.ingress(queue.ingress), egress: layers.egress(queue.egress) }
    }

    /// The same for a queue that has no other side.
    pub(super) fn wrap_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        self.layers().ingress(ingress)
    }

    /// The same for the other side alone.
    pub(super) fn wrap_egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        self.layers().egress(egress)
    }

    /// What is around each queue, outermost first.
    fn layers(&self) -> Layers {
        let Rules { guard, enabled, gro, .. } = &self.rules;
        let MirrorRole { copies, target_of, .. } = &self.role;
        let (from_port, to_port) = (self.from_port.clone(), self.to_port.clone());
        // What a mirror's target gets is what the mirrored ports got.
        let merges = *gro && target_of.is_none();
        Layers(vec![
            // It does not see what a wrapper around it drops.
            Box::new(self.capture_layer()),
            Box::new(copies.clone()),
            Box::new(GateLayer { is_open: *enabled }),
            Box::new(GuardLayer(guard.clone())),
            // So what the guard refuses has used up its sender's own rate, and the guard has no more to check than the rate allows.
            Box::new(LimitLayer { from_port, to_port }),
            Box::new(GroLayer(merges.then(|| self.merged.clone()))),
        ])
    }

    fn capture_layer(&self) -> CaptureLayer {
        let point = self.point.as_ref().filter(|_| self.captured);
        point.map(CapturePoint::layer).unwrap_or_default()
    }

    /// Enforces other rules from now on, on the queues of the port too, and without losing a frame of them. A direction whose
    /// limit stays as it is gets no new burst. Returns whether the port's addresses must be taught again.
    pub(super) fn set(&mut self, rules: Rules, datapath: &Datapath, port: Option<&Port>) -> bool {
        let moves = rules.membership != self.rules.membership;
        if let Some(port) = port.filter(|_| moves && self.role.target_of.is_none()) {
            datapath.set_member(port.id(), rules.membership.clone());
        }
        let refloods = rules.flooding != self.rules.flooding;
        let Limits { ingress, egress } = rules.limits;
        if ingress != self.rules.limits.ingress {
            self.from_port = Meter::new(ingress);
        }
        if egress != self.rules.limits.egress {
            self.to_port = Meter::new(egress);
        }
        let replaces = rules.workers != self.rules.workers;
        self.rules = rules;
        if let Some(port) = port.filter(|_| replaces) {
            self.place(datapath, port);
        }
        if let Some(port) = port.filter(|_| refloods) {
            self.attached(datapath, port);
        }
        self.rewrap(datapath, port, None);
        moves
    }

    /// Says what the datapath enforces of the rules, where it does not know it from the attachment of the port.
    pub(super) fn attached(&self, datapath: &Datapath, port: &Port) {
        let Flooding { router, copies } = self.rules.flooding;
        datapath.set_router(port.id(), router);
        datapath.limit_floods_of(port.id(), copies);
        if let Some(mirror) = &self.role.target_of {
            datapath.aim(mirror, port);
        }
    }

    /// Has the workers that the rules name serve the port's queues.
    pub(super) fn place(&self, datapath: &Datapath, port: &Port) {
        if let Err(error) = datapath.place(port, self.rules.workers.clone()) {
            warn!(port = self.name, %error, "any worker serves the port");
        }
    }

    /// Attaches the port to the switch, or to the mirror whose copies it gets.
    pub(super) fn attach(&self, parts: PortParts, datapath: &Datapath) -> Arc<Port> {
        let port = match &self.role.target_of {
            Some(_) => datapath.attach_target(&self.name, parts),
            None => datapath.attach_member(&self.name, parts, self.membership()),
        };
        self.attached(datapath, &port);
        port
    }

    /// Sets what the port has to do with mirrors. Returns whether its addresses must be taught again.
    pub(super) fn set_role(
        &mut self,
        role: MirrorRole,
        datapath: &Datapath,
        port: Option<&Port>,
    ) -> bool {
        if role == self.role {
            return false;
        }
        let old = std::mem::replace(&mut self.role, role);
        self.record(&old.recordings);
        let Some(port) = port else { return false };
        // The next target may have its role already.
        if let Some(mirror) = &old.target_of {
            datapath.aim_away(mirror, port);
        }
        let is_target = self.role.target_of.is_some();
        let comes_back = old.target_of.is_some() && !is_target;
        if is_target != old.target_of.is_some() {
            datapath.set_target(port.id(), is_target, self.membership());
        }
        self.attached(datapath, port);
        if is_target != old.target_of.is_some() || old.copies != self.role.copies {
            self.rewrap(datapath, Some(port), None);
        }
        comes_back
    }

    /// Has the recordings of its role take the port's packets, and those of the role before end.
    fn record(&self, old: &[Recording]) {
        let Some(point) = &self.point else { return };
        for gone in old.iter().filter(|one| !self.role.recordings.contains(one)) {
            point.end_recording(gone);
        }
        for new in self.role.recordings.iter().filter(|one| !old.contains(one)) {
            point.record(new);
        }
    }

    /// In which VLANs the port is.
    pub(super) fn membership(&self) -> Option<Membership> {
        self.rules.membership.clone()
    }

    /// Has the queues of the port hold back their notifications by other rules.
    pub(super) fn coalesce(
        &self,
        coalescing: Option<Coalescing>,
        datapath: &Datapath,
        port: Option<&Port>,
    ) {
        self.rewrap(datapath, port, Some(coalescing));
    }

    /// Allows captures, or forbids them and ends those that run.
    pub(super) fn allow_capture(
        &mut self,
        allowed: bool,
        datapath: &Datapath,
        port: Option<&Port>,
    ) {
        if allowed != self.point.is_some() {
            self.point = allowed.then(|| CapturePoint::new(&*self.name));
            self.record(&[]);
            if std::mem::take(&mut self.captured) {
                self.rewrap(datapath, port, None);
            }
        }
    }

    fn rewrap(
        &self,
        datapath: &Datapath,
        port: Option<&Port>,
        coalescing: Option<Option<Coalescing>>,
    ) {
        if let Some(port) = port {
            let mut layers = self.layers();
            layers.0.extend(coalescing.map(|coalescing| Box::new(Coalesced(coalescing)) as _));
            let layers: Arc<dyn Rewrap> = Arc::new(layers);
            datapath.rewrap(port, &layers);
        }
    }

    /// The rules that are enforced.
    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Puts the wrapper of captures around the queues of the port while a capture runs, and takes
    /// it off after the last one. Call it now and then.
    pub(super) fn refresh(&mut self, datapath: &Datapath, port: Option<&Port>) {
        let Some(point) = &self.point else { return };
        if point.is_active() == self.captured {
            return;
        }
        self.captured = !self.captured;
        if let Some(port) = port {
            // The outermost layer alone.
            let capture: Arc<dyn Rewrap> = Arc::new(Layers(vec![Box::new(self.capture_layer())]));
            datapath.rewrap(port, &capture);
        }
    }

    /// Starts a capture at the port.
    pub(super) fn capture(&self, options: &Options) -> Result<Capture, String> {
        let Some(point) = &self.point else {
            let key = "capture = false in [daemon] of the configuration";
            return Err(format!("this daemon does not record traffic ({key})"));
        };
        point.start(options).map_err(|error| error.to_string())
    }

    /// Completes the status of the port: what its frames are checked for, if one may be guarded at all, and what it may carry.
    pub(super) fn describe(&self, status: PortStatus, may_be_guarded: bool) -> PortStatus {
        let Rules { guard, limits, enabled, membership, .. } = &self.rules;
        let guard = may_be_guarded.then(|| GuardStatus::new(guard.as_ref()));
        let limit = LimitStatus::new(*limits, &self.from_port, &self.to_port);
        let status = match enabled {
            true => status,
            false => PortStatus { state: PortState::Down, reason: Some(Reason::SetDown), ..status },
        };
        let vlans = membership.as_ref().map(vlans);
        let gro = self.merged.counts();
        PortStatus { guard, limit, vlans, gro, ..status }
    }
}

/// The port holds back notifications by these rules from now on. Innermost, and not a layer of its own in a crate: it wraps nothing,
/// and only passes a setting to the port through what does.
struct Coalesced(Option<Coalescing>);

impl Layer for Coalesced {
    fn wrap_egress(&self, mut egress: Box<dyn Egress>) -> Box<dyn Egress> {
        egress.set_coalescing(self.0);
        egress
    }
}

fn vlans(Membership { tagging, isolated }: &Membership) -> VlanStatus {
    let status = VlanStatus { isolated: *isolated, ..VlanStatus::default() };
    match tagging {
        None => status,
        Some(Tagging::Access(vlan)) => VlanStatus { vlan: Some(vlan.number()), ..status },
        Some(Tagging::Trunk { tagged, native }) => VlanStatus {
            trunk: tagged.iter().map(VlanId::number).collect(),
            native: native.map(VlanId::number),
            ..status
        },
    }
}
