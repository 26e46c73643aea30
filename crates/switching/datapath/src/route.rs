//! Where the frames of a window go.

use arrayvec::ArrayVec;
use port::{Frame, WINDOW, Window};
use switch::{Membership, PortSet, Verdict, forward};

use crate::carrier::Carrier;
use crate::domains::Domains;
use crate::port::Port;
use crate::shared::Shared;

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
    Nowhere,
    /// Nowhere: its VLAN is none of its port's.
    Refused,
}

/// Where the frames of a window go, in order of arrival.
pub(crate) struct Routes<'a> {
    pub(crate) of: ArrayVec<Route, WINDOW>,
    /// The ports that flooded frames go to: the same for all frames of an ingress port.
    pub(crate) flood: Option<&'a PortSet>,
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

impl Carrier {
    /// Finds where every frame goes, in order of arrival. Learns where the fresh ones come from:
    /// a frame that waits has been learnt from, and its station may have moved since. Frames whose
    /// slots are in `decided` are neither routed nor learnt from.
    pub(crate) fn route_all<'a>(
        &'a self,
        port: &Port,
        window: &Window,
        fresh: usize,
        decided: u64,
    ) -> Routes<'a> {
        if let Some(member) = self.ports.member(port.id()) {
            return self.route_member(port, member, window, fresh, decided);
        }
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

    /// As [`route_all`](Self::route_all), for a port that is in VLANs or isolated.
    fn route_member<'a>(
        &'a self,
        port: &Port,
        (domains, membership): (&'a Domains, &Membership),
        window: &Window,
        fresh: usize,
        decided: u64,
    ) -> Routes<'a> {
        let first_fresh = window.len() - fresh;
        let seconds = u32::try_from(self.now.as_secs()).unwrap_or(u32::MAX);
        let mut routes = Routes { of: ArrayVec::new(), flood: None };
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
                        Verdict::Flood(_) => Route::FloodIn(number),
                        // An address may stay for a moment after its port has left the domain.
                        Verdict::Port(id) if !reach.contains(id) => Route::Nowhere,
                        Verdict::Port(id) => match self.ports.get(id) {
                            Some(to) => {
                                let queue = u8::try_from(steer(to, frame)).unwrap_or(0);
                                Route::To { port: id.0, queue }
                            }
                            None => Route::Nowhere,
                        },
                    }
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
}

/// The queue of `port` for a frame: always the same for a flow.
#[inline]
pub(crate) fn steer(port: &Port, frame: &Frame) -> usize {
    match port.queues() {
        0 | 1 => 0,
        _ if port.hashes_macs() => port.queue_of(frame.flow_hash_with_macs()),
        _ => port.queue_of(frame.flow_hash()),
    }
}
