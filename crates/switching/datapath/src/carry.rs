//! From one ingress queue to wherever its frames go.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use frame::{Body, DropReason, Frame, Offer, Outcome, WINDOW, Window};
use hypervisor::Hypervisor;
use switch::{PortId, Verdict, forward};
use wire::toeplitz;

use crate::{Ingress, Port, Ports, Shared};

/// The hash that spreads flows over queues.
static FLOWS: toeplitz::Table = toeplitz::Table::new(&toeplitz::MICROSOFT_KEY);

/// What a pass over a queue came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Frames were taken or settled.
    Worked,
    /// Nothing to do.
    Dry,
    /// Frames wait, and none could be settled.
    Blocked,
}

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Route {
    To { port: u16, queue: u8 },
    Flood,
    Nowhere,
}

/// What a queue has in hand, and the memory that it lies in.
struct Batch<'a, P> {
    window: &'a Window,
    body: Body<'a, P>,
}

impl<P> Clone for Batch<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<P> Copy for Batch<'_, P> {}

/// A worker's view of the switch.
pub(crate) struct Carrier<H: Hypervisor> {
    worker: usize,
    shared: Arc<Shared<H>>,
    ports: Arc<Ports<H>>,
    generation: u64,
    now: Duration,
}

impl<H: Hypervisor> Carrier<H> {
    pub(crate) fn new(worker: usize, shared: Arc<Shared<H>>) -> Self {
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

    /// Takes what is new on a queue and settles what can be. The error is the reason the queue
    /// is of no use any more.
    pub(crate) fn carry(
        &self,
        port: &Port<H>,
        ingress: &mut Ingress<H>,
    ) -> Result<Progress, String> {
        let fresh = ingress.receive()?;
        let refused = ingress.take_refused();
        if refused > 0 {
            port.counters().add_drops(DropReason::Malformed, refused);
            ingress.publish();
        }
        if ingress.window().is_empty() {
            return Ok(if refused > 0 { Progress::Worked } else { Progress::Dry });
        }
        let routes = self.route_all(port, ingress, fresh);
        let mut outcomes = [Outcome::Waiting; WINDOW];
        ingress.with_body(|body| {
            let batch = Batch { window: ingress.window(), body };
            self.deliver_all(port, batch, &routes, &mut outcomes);
        });
        let before = ingress.window().len();
        ingress.finish(&outcomes);
        let settled = before - ingress.window().len();
        Ok(if fresh > 0 || settled > 0 { Progress::Worked } else { Progress::Blocked })
    }

    /// Finds every frame's way, in order of arrival; learns where the fresh ones come from.
    fn route_all(
        &self,
        port: &Port<H>,
        ingress: &Ingress<H>,
        fresh: usize,
    ) -> ArrayVec<Route, WINDOW> {
        let window = ingress.window();
        let old = window.len() - fresh;
        let seconds = u32::try_from(self.now.as_secs()).unwrap_or(u32::MAX);
        let mut bytes = 0;
        let mut last = None;
        let route = |(n, slot): (usize, &u8)| {
            let frame = window.frame(*slot);
            // Frames of one flow come in a row: what was just looked up need not be again.
            let addresses = (frame.source(), frame.destination());
            let verdict = match last {
                Some((same, verdict)) if same == addresses => verdict,
                _ => {
                    self.shared.table.learn(addresses.0, port.id(), seconds);
                    forward(&self.shared.table, addresses.1, port.id(), seconds)
                }
            };
            last = Some((addresses, verdict));
            if n >= old {
                bytes += u64::from(frame.len);
            }
            self.route(verdict, frame)
        };
        let routes = window.order().iter().enumerate().map(route).collect();
        if fresh > 0 {
            port.counters().add_rx(fresh as u64, bytes);
        }
        routes
    }

    fn route(&self, verdict: Verdict, frame: &Frame) -> Route {
        let PortId(to) = match verdict {
            Verdict::Port(to) => to,
            Verdict::Flood => return Route::Flood,
            Verdict::Drop => return Route::Nowhere,
        };
        let Some(Some(port)) = self.ports.get(usize::from(to)) else { return Route::Nowhere };
        let queue = steer(port, frame);
        Route::To { port: to, queue: u8::try_from(queue).unwrap_or(0) }
    }

    /// Delivers the frames, those with the same destination in one batch.
    fn deliver_all(
        &self,
        from: &Port<H>,
        batch: Batch<'_, H::Peer>,
        routes: &[Route],
        outcomes: &mut [Outcome; WINDOW],
    ) {
        let order = batch.window.order();
        let mut left: u64 = if order.is_empty() { 0 } else { u64::MAX >> (64 - order.len()) };
        while left != 0 {
            let route = routes[left.trailing_zeros() as usize];
            // In order of arrival: frames of one flow stay in order.
            let mut group = ArrayVec::<u8, WINDOW>::new();
            let mut others = 0u64;
            while left != 0 {
                let n = left.trailing_zeros() as usize;
                left &= left - 1;
                if routes[n] == route {
                    group.push(order[n]);
                } else {
                    others |= 1 << n;
                }
            }
            left = others;
            match route {
                Route::To { port, queue } => {
                    if let Some(Some(to)) = self.ports.get(usize::from(port)) {
                        self.deliver(to, queue.into(), batch, &group, outcomes);
                    }
                }
                Route::Flood => self.flood(from, batch, &group, outcomes),
                Route::Nowhere => {
                    let reason = DropReason::NotForwarded;
                    from.counters().add_drops(reason, group.len() as u64);
                    group.iter().for_each(|slot| {
                        outcomes[usize::from(*slot)] = Outcome::Dropped(reason);
                    });
                }
            }
        }
    }

    /// Offers the frames in `group` (slots of the window) to one queue of a port.
    fn deliver(
        &self,
        to: &Port<H>,
        queue: usize,
        batch: Batch<'_, H::Peer>,
        group: &[u8],
        outcomes: &mut [Outcome; WINDOW],
    ) {
        let Batch { window, body } = batch;
        let offer = |slot: &u8| Offer { frame: window.frame(*slot), outcome: Outcome::Waiting };
        let mut offers: ArrayVec<Offer<'_>, WINDOW> = group.iter().map(offer).collect();
        if let Err(fault) = to.deliver(queue, body, &mut offers, self.now, self.worker) {
            // The egress guest broke its ring: it alone is disabled.
            to.close();
            self.shared.fail(to, fault.to_string());
            for offer in offers.iter_mut().filter(|o| o.outcome == Outcome::Waiting) {
                offer.outcome = Outcome::Dropped(DropReason::PortGone);
            }
        }
        let (mut frames, mut bytes) = (0, 0);
        for (slot, offer) in group.iter().zip(&offers) {
            outcomes[usize::from(*slot)] = offer.outcome;
            match offer.outcome {
                Outcome::Delivered => {
                    frames += 1;
                    bytes += u64::from(offer.frame.len);
                }
                Outcome::Dropped(reason) => to.counters().add_drops(reason, 1),
                Outcome::SourceFault => to.counters().add_drops(DropReason::MemoryFault, 1),
                Outcome::Waiting => {}
            }
        }
        if frames > 0 {
            to.counters().add_tx(frames, bytes);
        }
    }

    /// Delivers frames to every port but the one they came from. Nobody waits: a port without
    /// room misses them, so that one stalled guest can not hold back what all others get.
    fn flood(
        &self,
        from: &Port<H>,
        batch: Batch<'_, H::Peer>,
        group: &[u8],
        outcomes: &mut [Outcome; WINDOW],
    ) {
        let mut fault = None;
        for to in self.ports.iter().flatten().filter(|port| port.id() != from.id()) {
            for slot in group {
                let queue = steer(to, batch.window.frame(*slot));
                self.deliver(to, queue, batch, &[*slot], outcomes);
                match outcomes[usize::from(*slot)] {
                    Outcome::Waiting => to.counters().add_drops(DropReason::NoRoom, 1),
                    Outcome::SourceFault => fault = Some(*slot),
                    Outcome::Delivered | Outcome::Dropped(_) => {}
                }
            }
        }
        for slot in group {
            outcomes[usize::from(*slot)] = match fault {
                Some(faulty) if faulty == *slot => Outcome::SourceFault,
                _ => Outcome::Delivered,
            };
        }
    }
}

/// The queue of `port` for a frame: always the same for a flow.
#[inline]
fn steer<H: Hypervisor>(port: &Port<H>, frame: &Frame) -> usize {
    match port.queues() {
        0 | 1 => 0,
        _ => port.queue_of(frame.headers.flow_hash(frame.header(), &FLOWS)),
    }
}
