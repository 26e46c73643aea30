//! What lies between a port and the switch: the gate, guard, limit and capture.

use std::sync::Arc;

use capture::{Capture, CapturePoint, Options, Unwrap};
use control_socket::{
    GuardStatus, LimitStatus, PortKind, PortState, PortStatus, Rates, Reason, VlanStatus,
};
use datapath::{Datapath, Port};
use guard::{Guard, Policy};
use limit::{Limit, Meter};
use port::{Coalescing, Egress, Ingress, Queue, Rewrap};
use switch::{Membership, Tagging, VlanId};

use crate::config::Limits;
use crate::daemon::gate;

/// What the wrappers of a port enforce.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rules {
    /// None if no source is checked.
    pub(super) guard: Option<Policy>,
    pub(super) limits: Limits,
    /// Whether frames pass at all.
    pub(super) enabled: bool,
    /// In which VLANs the port is; none if in none. The datapath enforces it.
    pub(super) membership: Option<Membership>,
}

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
        }
    }

    /// Wraps a queue: capture around gate around guard around limit.
    ///
    /// Capture is outermost, because it does not see what a wrapper around it drops. Limit is
    /// innermost, so that what the guard refuses has used up its sender's own rate, and the guard
    /// has no more to check than the rate allows.
    pub(super) fn wrap(&self, queue: Queue) -> Queue {
        let layers = self.layers();
        Queue { ingress: layers.ingress(queue.ingress), egress: layers.egress(queue.egress) }
    }

    /// The same for a queue that has no other side.
    pub(super) fn wrap_ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        self.layers().ingress(ingress)
    }

    fn layers(&self) -> Layers {
        let Rules { guard, enabled, .. } = &self.rules;
        Layers {
            guard: guard.clone(),
            enabled: *enabled,
            from_port: self.from_port.clone(),
            to_port: self.to_port.clone(),
            capture: self.point.as_ref().filter(|_| self.captured).map(CapturePoint::wrapper),
            coalescing: None,
        }
    }

    /// Enforces other rules from now on, on the queues of the port too, and without losing a frame of them. A direction whose
    /// limit stays as it is gets no new burst. Returns whether the port's addresses must be taught again.
    pub(super) fn set(&mut self, rules: Rules, datapath: &Datapath, port: Option<&Port>) -> bool {
        let moves = rules.membership != self.rules.membership;
        if let Some(port) = port.filter(|_| moves) {
            datapath.set_member(port.id(), rules.membership.clone());
        }
        let Limits { ingress, egress } = rules.limits;
        if ingress != self.rules.limits.ingress {
            self.from_port = Meter::new(ingress);
        }
        if egress != self.rules.limits.egress {
            self.to_port = Meter::new(egress);
        }
        self.rules = rules;
        self.rewrap(datapath, port, None);
        moves
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
            let layers: Arc<dyn Rewrap> = Arc::new(Layers { coalescing, ..self.layers() });
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
        let Rules { guard, limits, enabled, membership } = &self.rules;
        let guard = (status.kind == PortKind::Guest).then(|| guard_status(guard.as_ref()));
        let [ingress, egress] = [limits.ingress, limits.egress].map(rates);
        let is_limited = ingress.is_some() || egress.is_some();
        let limit = is_limited.then_some(LimitStatus { ingress, egress });
        let status = match enabled {
            true => status,
            false => PortStatus { state: PortState::Down, reason: Some(Reason::SetDown), ..status },
        };
        let vlans = membership.as_ref().map(vlans);
        PortStatus { guard, limit, vlans, ..status }
    }
}

/// The wrappers of a port's queues.
struct Layers {
    guard: Option<Policy>,
    enabled: bool,
    from_port: Arc<Meter>,
    to_port: Arc<Meter>,
    capture: Option<Arc<dyn Rewrap>>,
    /// How the port holds back notifications, if that changes.
    coalescing: Option<Option<Coalescing>>,
}

impl Rewrap for Layers {
    /// Takes off what is around the port, and puts these wrappers around it.
    fn ingress(&self, ingress: Box<dyn Ingress>) -> Box<dyn Ingress> {
        let ingress = gate::open_ingress(Unwrap.ingress(ingress));
        let ingress = limit::unshape(Guard::take_off(ingress));
        let ingress = limit::shape(ingress, &self.from_port);
        let ingress = match &self.guard {
            Some(policy) => Guard::wrap(ingress, policy),
            None => ingress,
        };
        let ingress = if self.enabled { ingress } else { gate::shut_ingress(ingress) };
        match &self.capture {
            Some(capture) => capture.ingress(ingress),
            None => ingress,
        }
    }

    fn egress(&self, egress: Box<dyn Egress>) -> Box<dyn Egress> {
        let mut egress = limit::unpolice(gate::open_egress(Unwrap.egress(egress)));
        if let Some(coalescing) = self.coalescing {
            egress.set_coalescing(coalescing);
        }
        let egress = limit::police(egress, &self.to_port);
        let egress = if self.enabled { egress } else { gate::shut_egress(egress) };
        match &self.capture {
            Some(capture) => capture.egress(egress),
            None => egress,
        }
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
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use port::{DropReason, Outcome};
    use port_testing::{FakeEgress, Sender};
    use wire::ethernet::MacAddr;

    use super::*;

    fn described(kind: PortKind, guard: Option<Policy>, limits: &Limits) -> PortStatus {
        let rules = Rules { guard, limits: *limits, enabled: true, membership: None };
        let wrappers = Wrappers::new("red", rules, false);
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
    fn a_port_that_was_set_down_says_so() {
        let rules =
            Rules { guard: None, limits: Limits::default(), enabled: false, membership: None };
        let wrappers = Wrappers::new("red", rules, false);
        let status = PortStatus::new("red", PortKind::Guest, PortState::Up);
        let PortStatus { state, reason, .. } = wrappers.describe(status);
        assert_eq!((state, reason), (PortState::Down, Some(Reason::SetDown)));
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

    const RED: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const BLUE: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    /// Two ports, and what came out of the second one.
    struct Bed {
        datapath: Datapath,
        sender: Sender,
        red: Arc<Port>,
        wrappers: Wrappers,
        arrived: Arc<AtomicUsize>,
    }

    impl Bed {
        fn new(rules: Rules) -> Self {
            let config = datapath::Config { workers: 1, ..datapath::Config::default() };
            let datapath = Datapath::start(&config, Box::new(|_| ())).unwrap();
            let arrived = Arc::<AtomicUsize>::default();
            let count = arrived.clone();
            let blue = FakeEgress::new(move |_, _| {
                count.fetch_add(1, Ordering::Relaxed);
                Ok(Outcome::Delivered)
            });
            let blue = Queue { ingress: Sender::new().1, egress: Box::new(blue) };
            let blue = datapath.attach("blue", vec![blue], Vec::new());
            datapath.teach(blue.id(), BLUE).unwrap();
            let (sender, ingress) = Sender::new();
            let egress = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
            let wrappers = Wrappers::new("red", rules, true);
            let queue = wrappers.wrap(Queue { ingress, egress });
            let red = datapath.attach("red", vec![queue], Vec::new());
            Self { datapath, sender, red, wrappers, arrived }
        }

        fn set(&mut self, rules: Rules) {
            self.wrappers.set(rules, &self.datapath, Some(&self.red));
        }

        /// Sends frames with this source, and returns how many arrive. All are answered by then.
        fn send(&self, frames: usize, source: MacAddr) -> usize {
            let before = [self.sender.answers().len(), self.arrived.load(Ordering::Relaxed)];
            for _ in 0..frames {
                self.sender.send([&BLUE.0[..], &source.0, &[0x88, 0xb5]].concat());
            }
            let start = Instant::now();
            while self.sender.answers().len() < before[0] + frames {
                assert!(start.elapsed() < Duration::from_secs(20), "frames are late");
                std::thread::sleep(Duration::from_millis(1));
            }
            self.arrived.load(Ordering::Relaxed) - before[1]
        }

        fn dropped(&self, reason: DropReason) -> u64 {
            self.red.counters().snapshot().dropped(reason)
        }
    }

    #[test]
    fn rules_change_while_the_port_is_in_use() {
        let free =
            Rules { guard: None, limits: Limits::default(), enabled: true, membership: None };
        let mut bed = Bed::new(free.clone());
        assert_eq!(bed.send(10, RED), 10);
        bed.set(Rules { enabled: false, ..free.clone() });
        assert_eq!((bed.send(10, RED), bed.dropped(DropReason::SetDown)), (0, 10));
        let guard = Some(Policy { mac: BLUE, addresses: None });
        bed.set(Rules { guard, ..free.clone() });
        assert_eq!((bed.send(10, RED), bed.dropped(DropReason::SpoofedMac)), (0, 10));
        let capture = bed.wrappers.capture(&Options::default()).unwrap();
        bed.wrappers.refresh(&bed.datapath, Some(&bed.red));
        bed.set(free.clone());
        assert_eq!(bed.send(10, RED), 10);
        assert_eq!(bed.dropped(DropReason::SetDown) + bed.dropped(DropReason::SpoofedMac), 20);
        // It still has the wrapper of the capture, once, which goes in the end.
        drop(capture);
        bed.wrappers.refresh(&bed.datapath, Some(&bed.red));
        assert_eq!(bed.send(10, RED), 10);
        bed.wrappers.allow_capture(false, &bed.datapath, Some(&bed.red));
        assert!(bed.wrappers.capture(&Options::default()).is_err());
        assert_eq!(bed.send(10, RED), 10);
    }

    #[test]
    fn a_sender_that_waits_for_its_rate_goes_on_when_the_limit_goes() {
        let limited = |packets| {
            let ingress = Limit { burst_packets: 4, ..Limit::new(None, Some(packets)) };
            let limits = Limits { ingress, egress: Limit::default() };
            Rules { guard: None, limits, enabled: true, membership: None }
        };
        let mut bed = Bed::new(limited(1));
        // A frame per second: it would take minutes.
        for _ in 0..200 {
            bed.sender.send([&BLUE.0[..], &RED.0, &[0x88, 0xb5]].concat());
        }
        while bed.arrived.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        bed.set(limited(1_000_000));
        let start = Instant::now();
        while bed.arrived.load(Ordering::Relaxed) < 200 {
            assert!(start.elapsed() < Duration::from_secs(20), "frames are late");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
