//! Delivers the frames of a window.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use port::{Body, Broken, DropReason, Offer, Outcome, Outcomes, WINDOW, Window};
use switch::{PortId, PortSet};

use crate::carrier::Carrier;
use crate::head_of_line::Waits;
use crate::in_flight::Deliveries;
use crate::port::Port;
use crate::route::{Route, Routes, steer};
use crate::storm;

/// A turn that has lasted for so long ends before all its frames have been offered. The rest are
/// offered in the next turn.
pub(crate) const TURN: Duration = Duration::from_micros(200);
/// Copies of flooded frames after which a turn looks at the time.
const COPIES_PER_LOOK: usize = 64;
/// Packets that are delivered under one lock of an egress queue, counted as on a wire: a frame may
/// have to be cut into many, one system call each, while others wait for the lock.
const LOCKED_PACKETS: u32 = 192;

/// What a queue has in hand, and the memory that it lies in.
#[derive(Clone, Copy)]
pub(crate) struct Batch<'a> {
    pub(crate) window: &'a Window,
    pub(crate) body: Body<'a>,
}

/// What becomes of the frames that a queue has in hand.
pub(crate) struct Hand<'a> {
    pub(crate) deliveries: &'a mut Deliveries,
    pub(crate) waits: &'a mut Waits,
    pub(crate) outcomes: &'a mut Outcomes,
    /// When the turn ends. Frames that have not been offered by then are offered in the next one.
    pub(crate) end: Instant,
    /// Whether the turn ended before every frame was offered.
    pub(crate) cut: bool,
}

impl Hand<'_> {
    /// Whether the turn has ended. The caller still has frames to offer.
    fn is_over(&mut self) -> bool {
        self.cut = Instant::now() >= self.end;
        self.cut
    }
}

/// Slots of a window, in order of arrival.
type Slots = ArrayVec<u8, WINDOW>;

impl Carrier {
    /// Delivers the frames that are not decided, those with the same destination in one batch.
    pub(crate) fn deliver_all(
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
        let mut waiting = Slots::new();
        let mut bytes = 0;
        let mut rest = group;
        while !rest.is_empty() && waiting.is_empty() {
            if rest.len() < group.len() && hand.is_over() {
                break;
            }
            let Hand { deliveries, outcomes, .. } = &mut *hand;
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
        let Hand { waits, outcomes, .. } = hand;
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
        let part = (COPIES_PER_LOOK / self.ports.list.len().max(1)).max(1);
        for (n, group) in group.chunks(part).enumerate() {
            if n > 0 && hand.is_over() {
                return;
            }
            self.flood_part(from, ports, batch, group, hand);
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
