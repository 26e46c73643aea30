//! From one ingress queue to wherever its frames go.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use port::{
    Body, Broken, Budget, DropReason, Frame, Ingress, Offer, Outcome, Outcomes, Received, Rewrap,
    WINDOW, Window,
};
use switch::{PortId, PortSet, Verdict, forward};

use crate::head_of_line::Waits;
use crate::in_flight::Deliveries;
use crate::port::Port;
use crate::shared::{Ports, Shared};
use crate::storm;

/// A turn that has lasted for so long ends before all its frames have been offered. The rest are
/// offered in the next turn.
const TURN: Duration = Duration::from_millis(1);
/// Copies of flooded frames after which a turn looks at the time.
const FLOOD_COPIES: usize = 256;
/// Packets that are delivered under one lock of an egress queue, counted as on a wire: a frame may
/// have to be cut into many, one system call each, while others wait for the lock.
const LOCKED_PACKETS: u32 = 1024;

/// What a pass over a queue came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Frames were taken, or done with.
    Worked,
    /// Nothing to do.
    Dry,
    /// Frames wait for room or for a device, and none was done with.
    Blocked,
}

/// An ingress queue that a worker owns.
pub(crate) struct IngressQueue {
    ingress: Box<dyn Ingress>,
    received: Received,
    deliveries: Deliveries,
    waits: Box<Waits>,
}

impl IngressQueue {
    pub(crate) fn new(ingress: Box<dyn Ingress>) -> Self {
        let waits = Box::new(Waits::new(ingress.has_back_pressure()));
        Self { ingress, received: Received::default(), deliveries: Deliveries::default(), waits }
    }

    pub(crate) fn ingress(&mut self) -> &mut dyn Ingress {
        &mut *self.ingress
    }

    /// When it must have its next turn while frames wait, even if no room is announced.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.waits.due()
    }

    /// Wraps the queue anew. Frames in hand stay in hand.
    pub(crate) fn rewrap(self, rewrap: &dyn Rewrap) -> Self {
        Self { ingress: rewrap.ingress(self.ingress), ..self }
    }
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    To {
        port: u16,
        queue: u8,
    },
    /// To the set of ports in [`Routes::flood`].
    Flood,
    Nowhere,
}

/// Where the frames of a window go, in order of arrival.
struct Routes<'a> {
    of: ArrayVec<Route, WINDOW>,
    /// The ports that flooded frames go to: the same for all frames of an ingress port.
    flood: Option<&'a PortSet>,
}

/// What the switch said about the frames from one station to another.
struct Lookup<'a> {
    /// Destination and source.
    addresses: [u8; 12],
    route: Route,
    /// The port, if it has several queues: the flow decides to which one a frame goes.
    steered: Option<&'a Port>,
}

impl Lookup<'_> {
    #[inline]
    fn route(&self, frame: &Frame) -> Route {
        match (self.steered, self.route) {
            (Some(to), Route::To { port, .. }) => {
                Route::To { port, queue: u8::try_from(steer(to, frame)).unwrap_or(0) }
            }
            (_, route) => route,
        }
    }
}

/// What a queue has in hand, and the memory that it lies in.
#[derive(Clone, Copy)]
struct Batch<'a> {
    window: &'a Window,
    body: Body<'a>,
}

/// What becomes of the frames that a queue has in hand.
struct Hand<'a> {
    deliveries: &'a mut Deliveries,
    waits: &'a mut Waits,
    outcomes: &'a mut Outcomes,
    /// When the turn ends. Frames that have not been offered by then are offered in the next one.
    end: Instant,
}

impl Hand<'_> {
    fn is_over(&self) -> bool {
        Instant::now() >= self.end
    }
}

/// Slots of a window, in order of arrival.
type Slots = ArrayVec<u8, WINDOW>;

/// A worker's view of the switch.
pub(crate) struct Carrier {
    worker: usize,
    shared: Arc<Shared>,
    ports: Arc<Ports>,
    generation: u64,
    now: Duration,
}

impl Carrier {
    pub(crate) fn new(worker: usize, shared: Arc<Shared>) -> Self {
        let ports = shared.ports();
        Self { worker, shared, ports, generation: 0, now: Duration::ZERO }
    }

    /// A round begins: takes the time, and the ports if they have changed.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.now = now.duration_since(self.shared.started);
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.ports = self.shared.ports();
        }
    }

    /// Takes what is new on a queue and delivers what can be delivered.
    pub(crate) fn carry(
        &self,
        port: &Arc<Port>,
        queue: &mut IngressQueue,
        now: Instant,
    ) -> Result<Progress, Broken> {
        let IngressQueue { ingress, received, deliveries, waits } = queue;
        received.clear();
        waits.begin(self.now);
        let mut budget = Budget::TURN;
        ingress.receive(&mut budget, received)?;
        let malformed = received.malformed;
        if malformed > 0 {
            port.counters().add_drops(DropReason::Malformed, malformed);
        }
        let window = ingress.window();
        let before = window.len();
        if before == 0 && malformed == 0 {
            return Ok(Progress::Dry);
        }
        let mut outcomes = [Outcome::Waiting; WINDOW];
        let mut decided = deliveries.reap(window, &mut outcomes, self.worker);
        for (slot, reason) in &received.refused {
            port.counters().add_drops(*reason, 1);
            outcomes[usize::from(*slot)] = Outcome::Dropped(*reason);
            decided |= 1 << slot;
        }
        let routes = self.route_all(port, window, received.fresh, decided);
        ingress.with_body(&mut |body| {
            let batch = Batch { window, body };
            let end = now + TURN;
            let mut hand = Hand { deliveries, waits, outcomes: &mut outcomes, end };
            self.deliver_all(port, batch, &routes, decided, &mut hand);
        });
        ingress.finish(&outcomes);
        waits.end(ingress.window());
        let worked = received.fresh > 0 || malformed > 0 || ingress.window().len() < before;
        Ok(if worked { Progress::Worked } else { Progress::Blocked })
    }

    /// Finds where every frame goes, in order of arrival. Learns where the fresh ones come from:
    /// a frame that waits has been learnt from, and its station may have moved since. Frames whose
    /// slots are in `decided` are neither routed nor learnt from.
    fn route_all<'a>(
        &'a self,
        port: &Port,
        window: &Window,
        fresh: usize,
        decided: u64,
    ) -> Routes<'a> {
        let first_fresh = window.len() - fresh;
        let seconds = u32::try_from(self.now.as_secs()).unwrap_or(u32::MAX);
        let mut routes = Routes { of: ArrayVec::new(), flood: None };
        let mut bytes = 0;
        // Frames of one flow come in a row: what was just looked up is not looked up again.
        let mut last: Option<Lookup<'a>> = None;
        for (n, slot) in window.order().iter().enumerate() {
            let frame = window.frame(*slot);
            let is_fresh = n >= first_fresh;
            if is_fresh {
                bytes += u64::from(frame.len);
                if n == first_fresh {
                    last = None;
                }
            }
            let route = match &last {
                _ if decided & (1 << slot) != 0 => Route::Nowhere,
                Some(last) if last.addresses == *frame.addresses() => last.route(frame),
                _ => {
                    if is_fresh {
                        let learning = self.shared.table.learn(frame.source(), port.id(), seconds);
                        port.counters().add_learning(learning);
                    }
                    let lookup = self.look_up(port, frame, seconds, &mut routes.flood);
                    last.insert(lookup).route(frame)
                }
            };
            routes.of.push(route);
        }
        if fresh > 0 {
            port.counters().add_ingress(fresh as u64, bytes);
        }
        routes
    }

    /// Asks the switch where a frame goes. Sets `flood` if it goes to a set of ports.
    fn look_up<'a>(
        &'a self,
        port: &Port,
        frame: &Frame,
        seconds: u32,
        flood: &mut Option<&'a PortSet>,
    ) -> Lookup<'a> {
        let addresses = *frame.addresses();
        let Shared { table, .. } = &*self.shared;
        let id = match forward(table, &self.ports.all, port.id(), frame, seconds) {
            Verdict::Port(id) => id,
            Verdict::Flood(ports) => {
                *flood = Some(ports);
                return Lookup { addresses, route: Route::Flood, steered: None };
            }
            Verdict::Drop => return Lookup { addresses, route: Route::Nowhere, steered: None },
        };
        let Some(to) = self.ports.get(id) else {
            return Lookup { addresses, route: Route::Nowhere, steered: None };
        };
        let steered = (to.queues() > 1).then_some(&**to);
        Lookup { addresses, route: Route::To { port: id.0, queue: 0 }, steered }
    }

    /// Delivers the frames that are not decided, those with the same destination in one batch.
    fn deliver_all(
        &self,
        from: &Port,
        batch: Batch<'_>,
        routes: &Routes<'_>,
        decided: u64,
        hand: &mut Hand<'_>,
    ) {
        let order = batch.window.order();
        let mut left: u64 = if order.is_empty() { 0 } else { u64::MAX >> (64 - order.len()) };
        if decided != 0 {
            for (n, slot) in order.iter().enumerate() {
                left &= !((decided >> slot & 1) << n);
            }
        }
        while left != 0 {
            let route = routes.of[left.trailing_zeros() as usize];
            // In order of arrival: frames of one flow stay in order.
            let mut group = Slots::new();
            let mut others = 0u64;
            while left != 0 {
                let n = left.trailing_zeros() as usize;
                left &= left - 1;
                if routes.of[n] == route {
                    group.push(order[n]);
                } else {
                    others |= 1 << n;
                }
            }
            left = others;
            match route {
                Route::To { port, queue } => {
                    if let Some(to) = self.ports.get(PortId(port)) {
                        let queue = queue.into();
                        self.unicast(to, queue, batch, &group, hand);
                    }
                }
                Route::Flood => {
                    let ports = routes.flood.unwrap_or(&self.ports.all);
                    self.flood(from, ports, batch, &group, hand);
                }
                Route::Nowhere => {
                    let reason = DropReason::NotForwarded;
                    from.counters().add_drops(reason, group.len() as u64);
                    group.iter().for_each(|slot| {
                        hand.outcomes[usize::from(*slot)] = Outcome::Dropped(reason);
                    });
                }
            }
            if left != 0 && hand.is_over() {
                return;
            }
        }
    }

    /// Delivers frames to one queue of one port.
    fn unicast(
        &self,
        to: &Arc<Port>,
        queue: usize,
        batch: Batch<'_>,
        group: &[u8],
        hand: &mut Hand<'_>,
    ) {
        let Hand { deliveries, waits, outcomes, .. } = hand;
        let mut waiting = Slots::new();
        let mut bytes = 0;
        let mut rest = group;
        while !rest.is_empty() && waiting.is_empty() {
            let (run, later) = rest.split_at(packets_of_one_lock(batch.window, rest));
            bytes += self.deliver(to, queue, batch, run, |slot, outcome| {
                outcomes[usize::from(slot)] = outcome;
                match outcome {
                    Outcome::InFlight(ticket) => deliveries.add(slot, to, queue, ticket),
                    Outcome::Waiting => waiting.push(slot),
                    _ => {}
                }
            });
            rest = later;
        }
        waits.delivered(to.serial(), bytes, self.now);
        if waiting.is_empty() {
            return;
        }
        waiting.extend(rest.iter().copied());
        let admitted = waits.admit(to.serial(), &waiting, self.now);
        let dropped = &waiting[admitted..];
        to.counters().add_drops(DropReason::NoRoom, dropped.len() as u64);
        for slot in dropped {
            outcomes[usize::from(*slot)] = Outcome::Dropped(DropReason::NoRoom);
        }
    }

    /// Delivers frames to every port of a set but the one they came from, as many as that port may flood. No frame
    /// waits: a port without room misses them, so that one stalled guest cannot hold back what all others get.
    fn flood(
        &self,
        from: &Port,
        ports: &PortSet,
        batch: Batch<'_>,
        group: &[u8],
        hand: &mut Hand<'_>,
    ) {
        let part = (FLOOD_COPIES / self.ports.list.len().max(1)).max(1);
        for group in group.chunks(part) {
            self.flood_part(from, ports, batch, group, hand);
            if hand.is_over() {
                return;
            }
        }
    }

    fn flood_part(
        &self,
        from: &Port,
        ports: &PortSet,
        batch: Batch<'_>,
        group: &[u8],
        hand: &mut Hand<'_>,
    ) {
        let Hand { deliveries, outcomes, .. } = hand;
        let group = &*storm::admit(from, ports, batch.window, group, self.now, outcomes);
        let mut faulty = 0u64;
        for id in ports.iter().filter(|id| *id != from.id()) {
            let Some(to) = self.ports.get(id) else { continue };
            for queue in 0..to.queues() {
                let ours = |slot: &&u8| steer(to, batch.window.frame(**slot)) == queue;
                let group: Slots = group.iter().filter(ours).copied().collect();
                if group.is_empty() {
                    continue;
                }
                self.deliver(to, queue, batch, &group, |slot, outcome| match outcome {
                    Outcome::Waiting => to.counters().add_drops(DropReason::NoRoom, 1),
                    Outcome::SourceFault => faulty |= 1 << slot,
                    Outcome::InFlight(ticket) => deliveries.add(slot, to, queue, ticket),
                    Outcome::Delivered | Outcome::Dropped(_) => {}
                });
            }
        }
        for slot in group {
            let outcome = match faulty & (1 << slot) {
                0 => Outcome::Delivered,
                _ => Outcome::SourceFault,
            };
            if deliveries.slots() & (1 << slot) != 0 {
                deliveries.note(*slot, outcome);
            } else {
                outcomes[usize::from(*slot)] = outcome;
            }
        }
    }

    /// Offers the frames in `group` (slots of the window) to one queue of a port, and calls `each`
    /// with what became of each. Returns the bytes that were delivered.
    fn deliver(
        &self,
        to: &Arc<Port>,
        queue: usize,
        batch: Batch<'_>,
        group: &[u8],
        mut each: impl FnMut(u8, Outcome),
    ) -> u64 {
        let Batch { window, body } = batch;
        let offer = |slot: &u8| Offer::new(window.frame(*slot));
        let mut offers: ArrayVec<Offer<'_>, WINDOW> = group.iter().map(offer).collect();
        if let Err(Broken(reason)) = to.deliver(queue, body, &mut offers, self.now, self.worker) {
            // The egress guest broke its ring: it alone is disabled.
            to.close();
            self.shared.fail(to, reason);
            for offer in offers.iter_mut().filter(|o| o.outcome == Outcome::Waiting) {
                offer.outcome = Outcome::Dropped(DropReason::PortGone);
            }
        }
        let (mut frames, mut bytes) = (0, 0);
        for (slot, offer) in group.iter().zip(&offers) {
            match offer.outcome {
                Outcome::Delivered => {
                    frames += 1;
                    bytes += u64::from(offer.frame.len);
                }
                Outcome::Dropped(reason) => to.counters().add_drops(reason, 1),
                Outcome::SourceFault => to.counters().add_drops(DropReason::MemoryFault, 1),
                Outcome::Waiting | Outcome::InFlight(_) => {}
            }
            each(*slot, offer.outcome);
        }
        if frames > 0 {
            to.counters().add_egress(frames, bytes);
        }
        bytes
    }
}

/// How many of the frames, at least one, make up the packets that are delivered under one lock.
#[inline]
fn packets_of_one_lock(window: &Window, group: &[u8]) -> usize {
    let mut packets = 0;
    let within = group.iter().take_while(|slot| {
        let before = packets;
        packets += window.frame(**slot).packets();
        before < LOCKED_PACKETS
    });
    within.count()
}

/// The queue of `port` for a frame: always the same for a flow.
#[inline]
fn steer(port: &Port, frame: &Frame) -> usize {
    match port.queues() {
        0 | 1 => 0,
        _ => port.queue_of(frame.flow_hash()),
    }
}
