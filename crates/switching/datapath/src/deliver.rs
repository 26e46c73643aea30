//! Delivers the frames of a window.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrayvec::ArrayVec;
use port::{Body, Broken, DropReason, Frame, Offer, Outcome, Outcomes, WINDOW, Window};
use switch::{Membership, PortId, TagChange};

use crate::carrier::{Carrier, Pass};
use crate::head_of_line::Waits;
use crate::held::Held;
use crate::in_flight::Deliveries;
use crate::parts::Parts;
use crate::port::Port;
use crate::probes;
use crate::route::{Route, Routes, Steer};
use crate::targets::Targets;

/// A turn that has lasted for this time ends before all its frames have been offered. The rest, also of
/// a frame that is sent in parts, are offered in the next turn.
pub(crate) const TURN: Duration = Duration::from_micros(200);
/// Copies of flooded packets, counted as on a wire, after which a turn reads the clock.
const COPIES_PER_CLOCK: u32 = 64;
/// Packets that are offered under one lock of an egress queue, counted as on a wire: a frame may have
/// to be cut into many, while others wait for the lock. An egress with more work per segment does less
/// per call ([`Outcome::Partial`]).
const LOCKED_PACKETS: u32 = 256;
/// Packets for one queue after which a turn reads the clock: as many as the longest frames of a whole Xen ring are, 14 of 45 packets. If a turn
/// ends between them, they cost more notifications and acknowledgements.
const PACKETS_PER_CLOCK: u32 = 640;

/// What a queue has in hand, and the memory that it lies in.
pub(crate) struct Batch<'a> {
    pub(crate) pass: &'a Pass<'a>,
    pub(crate) body: Body<'a>,
    /// The membership of the port that it comes from, if it has one.
    pub(crate) from_member: Option<&'a Membership>,
}

/// What becomes of the frames that a queue has in hand.
pub(crate) struct Hand<'a> {
    pub(crate) deliveries: &'a mut Deliveries,
    pub(crate) waits: &'a mut Waits,
    pub(crate) parts: &'a mut Parts,
    pub(crate) held: &'a mut Held,
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

/// What a delivery came to.
struct Done {
    /// How many of the frames need not be offered again in this turn.
    frames: usize,
    /// Bytes of those that were delivered.
    bytes: u64,
    /// When the queue must be flushed, if it must.
    flush: Option<Duration>,
    /// Whether its own turns see to that.
    is_apart: bool,
}

impl Done {
    /// What became of frames that were put into an inbox. Calls `each` with the outcome of each.
    #[cold]
    fn apart(group: &[u8], offers: &[Offer<'_>], each: &mut impl FnMut(u8, Outcome)) -> Self {
        let is_taken = |offer: &&Offer<'_>| offer.outcome == Outcome::Delivered;
        let bytes = offers.iter().filter(is_taken).map(|offer| u64::from(offer.frame.len)).sum();
        group.iter().zip(offers).for_each(|(slot, offer)| each(*slot, offer.outcome));
        Self { frames: group.len(), bytes, flush: None, is_apart: true }
    }

    /// Notes when the queue must be flushed.
    fn note(&self, held: &mut Held, to: &Arc<Port>, queue: usize) {
        if !self.is_apart {
            held.note(to, queue, self.flush);
        }
    }
}

/// The egress queue that frames of a batch are for.
struct Recipient<'a> {
    carrier: &'a Carrier,
    batch: &'a Batch<'a>,
    to: &'a Arc<Port>,
    queue: usize,
}

/// Slots of a window, in order of arrival.
type Slots = ArrayVec<u8, WINDOW>;

impl Carrier {
    /// Delivers the frames that are not decided, those with the same destination in one batch.
    pub(crate) fn deliver_all(&self, batch: &Batch<'_>, routes: &Routes<'_>, hand: &mut Hand<'_>) {
        let Pass { port: from, window, decided, .. } = *batch.pass;
        let order = window.order();
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
                        probes::switch(from.name(), to.name(), group.len());
                        let queue = queue.into();
                        Recipient { carrier: self, batch, to, queue }.unicast(&group, hand);
                    }
                }
                Route::Flood => {
                    let ports = routes.flood.unwrap_or(&self.ports.all);
                    probes::switch(from.name(), "*", group.len());
                    self.flood(Targets::all(ports), batch, &group, hand);
                }
                Route::Group(place) => {
                    if let Some(targets) = routes.groups.get(usize::from(place)) {
                        probes::switch(from.name(), "*", group.len());
                        self.flood(*targets, batch, &group, hand);
                    }
                }
                Route::FloodIn(domain) => {
                    let isolated = batch.from_member.is_some_and(|membership| membership.isolated);
                    let domain = self.ports.domains.as_ref().and_then(|all| all.get(domain));
                    if let Some(domain) = domain {
                        probes::switch(from.name(), "*", group.len());
                        let targets = Targets::all(domain.reach(isolated));
                        self.flood(targets, batch, &group, hand);
                    }
                }
                Route::Nowhere | Route::Refused => {
                    let reason = match route {
                        Route::Refused => DropReason::Vlan,
                        _ => DropReason::NotForwarded,
                    };
                    probes::switch(from.name(), "", group.len());
                    from.add_drops(reason, group.len() as u64);
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

    /// Delivers frames to every target but the port they came from, as many as that port may flood. No frame
    /// waits: a port without room misses them, so that one stalled guest cannot hold back what all others get.
    fn flood(&self, targets: Targets<'_>, batch: &Batch<'_>, group: &[u8], hand: &mut Hand<'_>) {
        let copies = u32::try_from(self.ports.list.len()).unwrap_or(u32::MAX).max(1);
        let packets = (COPIES_PER_CLOCK / copies).max(1);
        let mut rest = group;
        while !rest.is_empty() {
            if rest.len() < group.len() && hand.is_over() {
                return;
            }
            let (frames, _) = frames_of(packets, batch.pass.window, rest);
            let (part, later) = rest.split_at(frames);
            self.flood_part(targets, batch, part, hand);
            rest = later;
        }
    }

    fn flood_part(
        &self,
        targets: Targets<'_>,
        batch: &Batch<'_>,
        group: &[u8],
        hand: &mut Hand<'_>,
    ) {
        let Pass { port: from, window, .. } = *batch.pass;
        let Hand { deliveries, parts, outcomes, held, .. } = hand;
        let group = &*self.admit(targets, batch.pass, group, outcomes);
        let mut faulty = 0u64;
        for id in targets.others(from.id()) {
            let Some(to) = self.ports.get(id) else { continue };
            // One for all queues: a guest that changes it meanwhile gets no frame twice.
            let steer = Steer::to(to);
            for queue in 0..to.queues() {
                let ours = |slot: &&u8| steer.queue(window.frame(**slot)) == queue;
                let group: Slots = group.iter().filter(ours).copied().collect();
                let mut each = |slot: u8, outcome| match outcome {
                    Outcome::Waiting => to.add_drops(DropReason::NoRoom, 1),
                    Outcome::SourceFault => faulty |= 1 << slot,
                    Outcome::InFlight(ticket) => deliveries.add(slot, to, queue, ticket),
                    _ => {}
                };
                // Other workers may use the egress queue between two parts of a frame. This one goes on
                // to the end: storm control counts segments, and after each frame of many segments the
                // turn reads the clock.
                let recipient = Recipient { carrier: self, batch, to, queue };
                let mut rest = &*group;
                while !rest.is_empty() {
                    let done = recipient.deliver(rest, parts, &mut each);
                    rest = &rest[done.frames..];
                    done.note(held, to, queue);
                }
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

    /// Hands frames to a queue of a port. Returns when it must be flushed, if it must.
    #[inline]
    pub(crate) fn hand_over(
        &self,
        to: &Arc<Port>,
        queue: usize,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
    ) -> Option<Duration> {
        self.activity.deliver(to.serial());
        let delivered = to.egress(queue).deliver(body, offers, self.now, self.worker);
        self.activity.delivered();
        match delivered {
            Ok(flush) => flush,
            Err(Broken(reason)) => {
                // The egress guest broke its ring: it alone is disabled.
                to.close();
                self.shared.fail(to, reason);
                for offer in offers.iter_mut().filter(|o| o.outcome.is_offered_again()) {
                    offer.outcome = Outcome::Dropped(DropReason::PortGone);
                }
                None
            }
        }
    }
}

impl Recipient<'_> {
    /// Delivers frames of a group that has this one destination.
    fn unicast(&self, group: &[u8], hand: &mut Hand<'_>) {
        let Self { carrier, batch, to, queue } = *self;
        let window = batch.pass.window;
        let mut waiting = Slots::new();
        let mut bytes = 0;
        let mut rest = group;
        let mut offered = 0;
        while !rest.is_empty() && waiting.is_empty() {
            if offered >= PACKETS_PER_CLOCK && hand.is_over() {
                break;
            }
            let Hand { deliveries, parts, outcomes, .. } = &mut *hand;
            let (frames, packets) = frames_of(LOCKED_PACKETS, window, rest);
            let done = self.deliver(&rest[..frames], parts, |slot, outcome| {
                outcomes[usize::from(slot)] = outcome;
                match outcome {
                    Outcome::InFlight(ticket) => deliveries.add(slot, to, queue, ticket),
                    Outcome::Waiting => waiting.push(slot),
                    _ => {}
                }
            });
            // One that is sent in parts is much work.
            offered = if done.frames < frames { PACKETS_PER_CLOCK } else { offered + packets };
            bytes += done.bytes;
            rest = &rest[done.frames..];
            done.note(hand.held, to, queue);
        }
        let Hand { waits, outcomes, .. } = hand;
        waits.delivered(to.serial(), bytes, carrier.now);
        if waiting.is_empty() {
            return;
        }
        waiting.extend(rest.iter().copied());
        let admitted = waits.admit(to.serial(), &waiting, carrier.now);
        let dropped = &waiting[admitted..];
        to.add_drops(DropReason::NoRoom, dropped.len() as u64);
        for slot in dropped {
            outcomes[usize::from(*slot)] = Outcome::Dropped(DropReason::NoRoom);
        }
    }

    /// Offers the frames in `group` (slots of the window) to the queue, and calls `each` with what became of each, up to one that is
    /// sent in parts: this and those behind it must be offered again.
    fn deliver(&self, group: &[u8], parts: &mut Parts, mut each: impl FnMut(u8, Outcome)) -> Done {
        let Batch { pass: Pass { window, .. }, from_member, .. } = *self.batch;
        if let Some((from, (_, to))) = from_member.zip(self.carrier.ports.member(self.to.id()))
            && from.tagging.is_some()
        {
            return self.deliver_tagged((from, to), group, parts, each);
        }
        let offer = |slot: &u8| Offer::new(window.frame(*slot));
        let mut offers: ArrayVec<_, WINDOW> = group.iter().map(offer).collect();
        self.offer(group, &mut offers, parts, &mut each)
    }

    /// As [`deliver`](Self::deliver), to a port that may want other tags than the sender's.
    fn deliver_tagged(
        &self,
        members: (&Membership, &Membership),
        group: &[u8],
        parts: &mut Parts,
        mut each: impl FnMut(u8, Outcome),
    ) -> Done {
        let window = self.batch.pass.window;
        let mut changed = self.carrier.changed.borrow_mut();
        changed.clear();
        let change = |slot: &u8| (*slot, change_tag(members, window, *slot, &mut changed));
        let changes: ArrayVec<_, WINDOW> = group.iter().map(change).collect();
        let (mut slots, mut offers) = (Slots::new(), ArrayVec::<_, WINDOW>::new());
        for (slot, change) in &changes {
            let frame = match change {
                TagAction::Keep => window.frame(*slot),
                TagAction::Changed(place) => &changed[*place],
                TagAction::Refused(_) => continue,
            };
            slots.push(*slot);
            offers.push(Offer::new(frame));
        }
        let done = match offers.is_empty() {
            true => Done { frames: 0, bytes: 0, flush: None, is_apart: false },
            false => self.offer(&slots, &mut offers, parts, &mut each),
        };
        // Behind one that is sent in parts, refused ones come again too.
        let next = slots.get(done.frames);
        let is_next = |(slot, _): &(u8, TagAction)| Some(slot) == next;
        let frames = changes.iter().position(is_next).unwrap_or(group.len());
        for (slot, change) in &changes[..frames] {
            if let TagAction::Refused(reason) = change {
                self.to.add_drops(*reason, 1);
                each(*slot, Outcome::Dropped(*reason));
            }
        }
        Done { frames, ..done }
    }

    #[inline]
    fn offer(
        &self,
        group: &[u8],
        offers: &mut [Offer<'_>],
        parts: &mut Parts,
        each: &mut impl FnMut(u8, Outcome),
    ) -> Done {
        let Self { carrier, batch: Batch { pass, body, .. }, to, queue } = *self;
        let memory = pass.port.memory();
        if parts.are_any() {
            for (slot, offer) in group.iter().zip(&mut *offers) {
                offer.sent = parts.sent(*slot, to.serial(), queue);
                offer.is_right = parts.is_right(*slot);
            }
        }
        let memory = if memory.borrows { to.memory_of(offers, memory) } else { memory };
        let mut count = offers.len();
        let its = to.memory();
        if (memory.avoids(its) || to.is_avoided(queue))
            && let Some(inbox) = to.inbox(queue)
        {
            count = to.count_in_place(inbox, offers);
            if count == 0 {
                carrier.put(to, inbox, (*body, memory), offers);
                return Done::apart(group, offers, each);
            }
        }
        let (group, offers) = (&group[..count], &mut offers[..count]);
        // Buffers that somebody else has lent are a third port's memory.
        let is_lent = memory.borrows && memory.can_sleep();
        let flush = match memory.is_left_for(its) || pass.port.is_suspect() || is_lent {
            false => carrier.hand_over(to, queue, *body, offers),
            true => carrier.deliver_copies(to, queue, *body, offers),
        };
        let mut done = Done { frames: group.len(), bytes: 0, flush, is_apart: false };
        let (mut frames, mut in_flight) = (0, 0);
        for (n, (slot, offer)) in group.iter().zip(&*offers).enumerate() {
            match offer.outcome {
                Outcome::Delivered => {
                    frames += 1;
                    done.bytes += u64::from(offer.frame.len);
                }
                Outcome::Dropped(reason) => to.add_drops(reason, 1),
                Outcome::SourceFault => to.add_drops(DropReason::MemoryFault, 1),
                Outcome::Partial { segments } => {
                    parts.note(*slot, to.serial(), queue, segments);
                    done.frames = n;
                    break;
                }
                Outcome::InFlight(_) => in_flight += 1,
                Outcome::Waiting => {
                    if let Some(is_right) = offer.is_right {
                        parts.note_sum(*slot, is_right);
                    }
                }
            }
            each(*slot, offer.outcome);
        }
        if frames > 0 {
            to.counters().add_egress(carrier.worker, frames, done.bytes);
        }
        let accepted = frames + in_flight;
        if let Some(batches) = to.batches_of(carrier.worker).filter(|_| accepted > 0) {
            batches.delivered(accepted);
        }
        probes::egress(to.name(), queue, offers.len(), accepted, done.bytes);
        done
    }
}

/// What happens to a frame before it leaves by a port.
#[derive(Clone, Copy)]
enum TagAction {
    /// It leaves as it is.
    Keep,
    /// This one of the changed frames leaves in its place.
    Changed(usize),
    /// It must not leave.
    Refused(DropReason),
}

/// Changes the tag of a frame that came from `from` and leaves by `to`. A frame that is changed is added to `changed`: its header, and
/// where its body lies; the body itself is not copied.
fn change_tag(
    (from, to): (&Membership, &Membership),
    window: &Window,
    slot: u8,
    changed: &mut Vec<Frame>,
) -> TagAction {
    let frame = window.frame(slot);
    // It was routed, so its port may send it.
    let Some(domain) = from.domain_of(frame) else { return TagAction::Refused(DropReason::Vlan) };
    let frame = match to.change(domain, frame) {
        TagChange::Keep => return TagAction::Keep,
        TagChange::Refuse => return TagAction::Refused(DropReason::Vlan),
        TagChange::Pop => frame.without_tag(),
        TagChange::Push => match frame.with_tag(domain) {
            Some(frame) => frame,
            None => return TagAction::Refused(DropReason::TooLarge),
        },
    };
    changed.push(frame);
    TagAction::Changed(changed.len() - 1)
}

/// How many of the frames, at least one, become this many packets, counted as on a wire; and how many packets these become.
#[inline]
fn frames_of(most: u32, window: &Window, group: &[u8]) -> (usize, u32) {
    let (mut frames, mut packets) = (0, 0);
    while packets < most && frames < group.len() {
        packets += window.frame(group[frames]).packets();
        frames += 1;
    }
    (frames, packets)
}
