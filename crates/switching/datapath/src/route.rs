//! Where the frames of a window go.

use arrayvec::ArrayVec;
use port::{Frame, SteeringCell, SteeringGuard, WINDOW};
use switch::multicast::{Arrival, Reach};
use switch::{Membership, NO_VLAN, PortId, PortSet, Verdict, forward};

use crate::carrier::{Carrier, Pass};
use crate::domains::Domains;
use crate::port::{Peer, Port};
use crate::shared::Shared;
use crate::targets::Targets;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    To {
        port: u16,
        queue: u8,
    },
    /// To the set of ports in [`Routes::flood`].
    Flood,
    /// To the ports of a VLAN, or to those that an isolated port may reach.
    FloodIn(u16),
    /// To those targets of [`Routes::groups`].
    Group(u8),
    Nowhere,
    /// Nowhere: its port is not in its VLAN.
    Refused,
}

/// Where the frames of a window go, in order of arrival. It is large, so it is filled in its place and not moved.
pub(crate) struct Routes<'a> {
    pub(crate) of: ArrayVec<Route, WINDOW>,
    /// The ports that flooded frames go to: the same for all frames of an ingress port.
    pub(crate) flood: Option<&'a PortSet>,
    /// Who gets the frames of multicast groups.
    pub(crate) groups: ArrayVec<Targets<'a>, WINDOW>,
}

impl<'a> Routes<'a> {
    pub(crate) fn new() -> Self {
        Self { of: ArrayVec::new(), flood: None, groups: ArrayVec::new() }
    }

    /// The route to these targets, the same for all frames with the same ones.
    fn group(&mut self, targets: Targets<'a>) -> Route {
        let known = self.groups.iter().position(|other| other.is(targets));
        let place = known.unwrap_or(self.groups.len());
        if known.is_none() && self.groups.try_push(targets).is_err() {
            return Route::Nowhere;
        }
        u8::try_from(place).map_or(Route::Nowhere, Route::Group)
    }
}

/// What the switch said about the frames from one station to another.
struct Lookup<'a> {
    /// Destination and source.
    addresses: [u8; 12],
    route: Route,
    /// The port, if it has several queues: the flow decides to which one a frame goes.
    steered: Option<Steer<'a>>,
}

impl Lookup<'_> {
    #[inline]
    fn route(&self, frame: &Frame) -> Route {
        match (&self.steered, self.route) {
            (Some(to), Route::To { port, .. }) => {
                Route::To { port, queue: u8::try_from(to.queue(frame)).unwrap_or(0) }
            }
            (_, route) => route,
        }
    }
}

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

    /// The queue for a frame: as its guest wants it; otherwise that which its flow [uses](crate::flow_queues); otherwise by its hash.
    #[inline]
    pub(crate) fn queue(&self, frame: &Frame) -> usize {
        let Self { port, wanted } = self;
        if port.queues() < 2 {
            return 0;
        }
        if let Some(steering) = wanted.steering() {
            return steering.queue_of(steering.hash(frame), port.queues());
        }
        let of_flow = port.flow_queues().and_then(|flows| flows.queue_of(frame));
        if let Some(queue) = of_flow.filter(|queue| *queue < port.queues()) {
            return queue;
        }
        port.queue_of(match port.hashes_macs() {
            true => frame.flow_hash_with_macs(),
            false => frame.flow_hash(),
        })
    }
}

impl Carrier {
    /// Finds where every frame goes, in order of arrival. Learns where the fresh ones come from:
    /// a frame that waits has been learnt from, and its station may have moved since. Frames that are
    /// decided are not learnt from either.
    pub(crate) fn route_all<'a>(&'a self, pass: &Pass<'_>, routes: &mut Routes<'a>) {
        let Pass { port, window, fresh, decided } = *pass;
        if let Some(peer) = port.peer() {
            return self.route_to_peer(peer, pass, routes);
        }
        if self.ports.targets.contains(port.id()) {
            return self.route_nowhere(pass, routes);
        }
        if let Some(member) = self.ports.member(port.id()) {
            return self.route_member(member, pass, routes);
        }
        let first_fresh = window.len() - fresh;
        let seconds = u32::try_from(self.now.as_secs()).unwrap_or(u32::MAX);
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
                    let lookup = self.lookup(port, frame, seconds, &mut routes.flood);
                    match lookup.route {
                        Route::Flood
                            if self.groups.is_some() && frame.destination().is_multicast() =>
                        {
                            // A report may have the addresses of other frames.
                            last = None;
                            let arrival = Arrival {
                                frame,
                                port: port.id(),
                                vlan: NO_VLAN,
                                ports: &self.ports.all,
                                is_fresh,
                                now: seconds,
                            };
                            self.multicast(arrival, routes).unwrap_or(Route::Flood)
                        }
                        _ => last.insert(lookup).route(frame),
                    }
                }
            };
            routes.of.push(route);
        }
        if self.groups.is_some() {
            self.route_messages(pass, |_| NO_VLAN, routes);
        }
        if fresh > 0 {
            port.counters().add_ingress(self.worker, fresh as u64, bytes);
        }
    }

    /// Routes frames from a mirror's target, which sends nothing.
    fn route_nowhere(&self, Pass { port, window, fresh, .. }: &Pass<'_>, routes: &mut Routes<'_>) {
        let order = window.order();
        let lens =
            order[order.len() - *fresh..].iter().map(|slot| u64::from(window.frame(*slot).len));
        let bytes = lens.sum();
        if *fresh > 0 {
            port.counters().add_ingress(self.worker, *fresh as u64, bytes);
        }
        routes.of.extend(order.iter().map(|_| Route::Nowhere));
    }

    /// Routes the frames in hand to the other port of a pair; nowhere while that is not there.
    fn route_to_peer(&self, peer: &Peer, pass: &Pass<'_>, routes: &mut Routes<'_>) {
        let Pass { port, window, fresh, decided } = *pass;
        let (id, serial) = peer.get();
        let to = self.ports.get(id).filter(|to| to.serial() == serial);
        let to = to.map(|to| Steer::to(to));
        let first_fresh = window.len() - fresh;
        let mut bytes = 0;
        for (n, slot) in window.order().iter().enumerate() {
            let frame = window.frame(*slot);
            if n >= first_fresh {
                bytes += u64::from(frame.len);
            }
            routes.of.push(match &to {
                Some(to) if decided & (1 << slot) == 0 => {
                    let queue = u8::try_from(to.queue(frame)).unwrap_or(0);
                    Route::To { port: id.0, queue }
                }
                _ => Route::Nowhere,
            });
        }
        if fresh > 0 {
            port.counters().add_ingress(self.worker, fresh as u64, bytes);
        }
    }

    /// As [`route_all`](Self::route_all), for a port that is in VLANs or isolated.
    fn route_member<'a>(
        &'a self,
        (domains, membership): (&'a Domains, &Membership),
        pass: &Pass<'_>,
        routes: &mut Routes<'a>,
    ) {
        let Pass { port, window, fresh, decided } = *pass;
        let first_fresh = window.len() - fresh;
        let seconds = u32::try_from(self.now.as_secs()).unwrap_or(u32::MAX);
        let mut bytes = 0;
        for (n, slot) in window.order().iter().enumerate() {
            let frame = window.frame(*slot);
            let is_fresh = n >= first_fresh;
            bytes += if is_fresh { u64::from(frame.len) } else { 0 };
            let is_decided = decided & (1 << slot) != 0;
            let found =
                membership.domain_of(frame).and_then(|number| Some((number, domains.get(number)?)));
            let route = match found {
                _ if is_decided => Route::Nowhere,
                None => Route::Refused,
                Some((number, domain)) => {
                    let table = domain.table(&self.shared.table);
                    if is_fresh {
                        let learning = table.learn(frame.source(), port.id(), seconds);
                        port.counters().add_learning(learning);
                    }
                    let reach = domain.reach(membership.isolated);
                    match forward(table, reach, port.id(), frame, seconds) {
                        Verdict::Drop => Route::Nowhere,
                        Verdict::Flood(ports) => {
                            let (port, vlan, now) = (port.id(), number, seconds);
                            let arrival = Arrival { frame, port, vlan, ports, is_fresh, now };
                            self.multicast(arrival, routes).unwrap_or(Route::FloodIn(number))
                        }
                        // An address may stay for a moment after its port has left the domain.
                        Verdict::Port(id) if !reach.contains(id) => Route::Nowhere,
                        Verdict::Port(id) => match self.ports.get(id) {
                            Some(to) => {
                                let queue = u8::try_from(Steer::to(to).queue(frame)).unwrap_or(0);
                                Route::To { port: id.0, queue }
                            }
                            None => Route::Nowhere,
                        },
                    }
                }
            };
            routes.of.push(route);
        }
        if self.groups.is_some() {
            let vlan = |frame: &Frame| membership.domain_of(frame).unwrap_or(NO_VLAN);
            self.route_messages(pass, vlan, routes);
        }
        if fresh > 0 {
            port.counters().add_ingress(self.worker, fresh as u64, bytes);
        }
    }

    /// Takes messages of IGMP and MLD that are in frames to one station off the ways that they would not go in a frame to a group.
    fn route_messages<'a>(
        &'a self,
        Pass { port, window, fresh, .. }: &Pass<'_>,
        vlan: impl Fn(&Frame) -> u16,
        routes: &mut Routes<'a>,
    ) {
        let Some(groups) = &self.groups else { return };
        let now = u32::try_from(self.now.as_secs()).unwrap_or(u32::MAX);
        let first_fresh = window.len() - fresh;
        for (n, slot) in window.order().iter().enumerate() {
            let frame = window.frame(*slot);
            let route = routes.of[n];
            if matches!(route, Route::Nowhere | Route::Refused)
                || frame.destination().is_multicast()
            {
                continue;
            }
            let arrival = Arrival {
                frame,
                port: port.id(),
                vlan: vlan(frame),
                ports: &self.ports.all,
                is_fresh: n >= first_fresh,
                now,
            };
            let found = self.shared.snooping.route_unicast(groups, arrival);
            let Some(reach) = found.filter(|reach| !matches!(reach, Reach::All)) else { continue };
            let goes_on = match route {
                Route::To { port, .. } => reach.takes(PortId(port)),
                // Its station is not known. Who sends a message to a router has heard from it.
                _ => false,
            };
            if !goes_on {
                routes.of[n] = Route::Nowhere;
            }
        }
    }

    /// The route of a frame to a multicast group; none if it is flooded.
    fn multicast<'a>(&'a self, arrival: Arrival<'_, 'a>, routes: &mut Routes<'a>) -> Option<Route> {
        let Arrival { frame, ports, .. } = arrival;
        let groups = self.groups.as_ref().filter(|_| frame.destination().is_multicast())?;
        match self.shared.snooping.route(groups, arrival) {
            Reach::All => None,
            Reach::Nowhere => Some(Route::Nowhere),
            reach => Some(routes.group(Targets::within(ports, reach))),
        }
    }

    /// Asks the switch where a frame goes. Sets `flood` if it goes to a set of ports.
    fn lookup<'a>(
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
        let steered = (to.queues() > 1).then(|| Steer::to(to));
        Lookup { addresses, route: Route::To { port: id.0, queue: 0 }, steered }
    }
}
