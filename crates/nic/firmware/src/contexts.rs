//! All contexts, and the way of a frame to them.

use cdna::context::Enable;
use cdna::message::Assignment;
use cdna::vectors::Vector;
use cdna::{ContextId, Direction, DropReason, Fault, Mailbox, Statistics, Status};
use offload::{Checksum, MAX_HEADER};
use wire::ethernet::MacAddr;

use crate::bus::{Bus, ContextPages, Metadata, VectorPage};
use crate::context::{Context, Parts};
use crate::fetch::Violation;
use crate::finish::{Form, finish};
use crate::interrupts::{EventVectors, Interrupts};
use crate::stations::Stations;

/// What the card keeps of a context.
#[derive(Debug, Default)]
enum Slot<P> {
    /// It is not assigned.
    #[default]
    Free,
    Serving(Box<Context<P>>),
    /// A fault stopped it. Nothing of its memory is here any more.
    Stopped(Statistics),
}

/// The contexts of a card.
pub(crate) struct Contexts<B: Bus> {
    pub(crate) bus: B,
    slots: Box<[Slot<B::Pages>]>,
    /// Those that are served.
    serving: Vec<ContextId>,
    events: EventVectors,
    stations: Stations,
    /// Those that receive broadcast frames.
    broadcast: Vector,
    /// Those that receive multicast frames.
    multicast: Vector,
    /// Those that receive frames for unknown stations.
    promiscuous: Vector,
    /// Those with completions that are not published.
    updated: Vector,
    /// Those with completions that may have to be announced.
    announcing: Vector,
    /// Faults that were not reported, with the assignment's generation.
    pub(crate) faults: Vec<(u32, Fault)>,
}

/// Where a frame goes within the card.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Route {
    /// To the context that has its address.
    One(ContextId),
    /// To a group, and beyond the card.
    Group(Vector),
    /// Beyond the card only.
    Beyond,
    /// No bridge forwards it.
    Nowhere,
}

/// The frame contradicts its metadata.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BadOffload;

impl<B: Bus> Contexts<B> {
    pub(crate) fn new(bus: B, count: usize) -> Self {
        Self {
            bus,
            slots: (0..count).map(|_| Slot::Free).collect(),
            serving: Vec::with_capacity(count),
            events: EventVectors::new(),
            stations: Stations::new(),
            broadcast: Vector::EMPTY,
            multicast: Vector::EMPTY,
            promiscuous: Vector::EMPTY,
            updated: Vector::EMPTY,
            announcing: Vector::EMPTY,
            faults: Vec::new(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.slots.len()
    }

    /// Begins to serve a context, which is not served. The guest may have written mailboxes already; their events are
    /// in the event word.
    pub(crate) fn assign(&mut self, assignment: Assignment, pages: B::Pages) {
        let id = assignment.context;
        let Some(slot) = self.slots.get_mut(id.index()) else { return };
        *slot = Slot::Serving(Box::new(Context::new(assignment, pages)));
        self.serving.push(id);
        self.update_stations();
    }

    /// Stops serving a context and gives up its memory.
    pub(crate) fn release(
        &mut self,
        id: ContextId,
        status: Status,
    ) -> Option<Box<Context<B::Pages>>> {
        let slot = self.slots.get_mut(id.index())?;
        let Slot::Serving(context) = std::mem::take(slot) else { return None };
        context.pages.set_status(status);
        self.bus.release(id);
        self.serving.retain(|other| *other != id);
        self.events.clear(id);
        for set in [
            &mut self.broadcast,
            &mut self.multicast,
            &mut self.promiscuous,
            &mut self.updated,
            &mut self.announcing,
        ] {
            set.remove(id);
        }
        self.update_stations();
        Some(context)
    }

    /// Stops a context because of a fault.
    #[cold]
    pub(crate) fn stop(&mut self, id: ContextId, direction: Direction, violation: Violation) {
        if let Some(mut context) = self.release(id, Status::Faulted) {
            context.statistics.faults += 1;
            self.faults.push((context.assignment.generation, violation.of(id, direction)));
            self.slots[id.index()] = Slot::Stopped(context.statistics);
        }
    }

    /// Forgets a context that is not served.
    pub(crate) fn forget(&mut self, id: ContextId) {
        if let Some(slot) = self.slots.get_mut(id.index()) {
            *slot = Slot::Free;
        }
    }

    pub(crate) fn statistics(&self, id: ContextId) -> Statistics {
        match self.slots.get(id.index()) {
            Some(Slot::Serving(context)) => context.statistics,
            Some(Slot::Stopped(statistics)) => *statistics,
            Some(Slot::Free) | None => Statistics::default(),
        }
    }

    /// A context that is served, and the bus.
    #[inline]
    pub(crate) fn get(&mut self, id: ContextId) -> Option<(&mut Context<B::Pages>, &mut B)> {
        match self.slots.get_mut(id.index()) {
            Some(Slot::Serving(context)) => Some((context, &mut self.bus)),
            _ => None,
        }
    }

    fn update_stations(&mut self) {
        let serving = self.slots.iter().filter_map(|slot| match slot {
            Slot::Serving(context) => Some((context.assignment.mac, context.id())),
            _ => None,
        });
        self.stations.fill(serving);
    }

    fn update_groups(&mut self, id: ContextId) {
        let Some(Slot::Serving(context)) = self.slots.get(id.index()) else { return };
        let is_promiscuous = context.is_promiscuous();
        let receives = |flag| is_promiscuous || context.enable.contains(Enable::RX | flag);
        let memberships = [
            (&mut self.broadcast, receives(Enable::BROADCAST)),
            (&mut self.multicast, receives(Enable::MULTICAST)),
            (&mut self.promiscuous, is_promiscuous),
        ];
        for (set, is_member) in memberships {
            if is_member { set.insert(id) } else { set.remove(id) }
        }
    }

    /// Handles all events. Calls `produced` for contexts that may have frames to send.
    pub(crate) fn handle_events(&mut self, now: u64, mut produced: impl FnMut(ContextId)) {
        for id in &self.serving {
            if let Some(Slot::Serving(context)) = self.slots.get(id.index()) {
                self.events.scan(*id, &context.pages);
            }
        }
        while let Some((id, events)) = self.events.take() {
            let Some((context, _)) = self.get(id) else { continue };
            if let Err((direction, violation)) = context.handle(events, now) {
                self.stop(id, direction, violation);
                continue;
            }
            if context.enable.contains(Enable::TX) && context.tx.has_more() {
                produced(id);
            }
            if events.contains(Mailbox::Enable) {
                self.update_groups(id);
            }
            // Armed, or enabled: there may be something to announce.
            self.announcing.insert(id);
        }
    }

    /// Whether a context that is served has an event.
    pub(crate) fn has_events(&self) -> bool {
        self.pages().any(|pages| pages.events() != 0)
    }

    /// The pages of all contexts that are served.
    pub(crate) fn pages(&self) -> impl Iterator<Item = &B::Pages> {
        self.serving.iter().filter_map(|id| match &self.slots[id.index()] {
            Slot::Serving(context) => Some(&context.pages),
            _ => None,
        })
    }

    /// Where a frame goes that comes from a context, or from the wire.
    #[inline]
    pub(crate) fn route(&self, destination: MacAddr, from: Option<ContextId>) -> Route {
        let group = if !destination.is_multicast() {
            match self.stations.find(destination) {
                Some(context) => return Route::One(context),
                None => &self.promiscuous,
            }
        } else if destination.is_broadcast() {
            &self.broadcast
        } else if destination.is_link_local_group() {
            return Route::Nowhere;
        } else {
            &self.multicast
        };
        if group.is_empty() {
            return Route::Beyond;
        }
        let mut group = *group;
        if let Some(from) = from {
            group.remove(from);
        }
        Route::Group(group)
    }

    /// Delivers a frame along a route. Returns to how many contexts it was offered.
    #[inline]
    pub(crate) fn deliver(
        &mut self,
        route: Route,
        frame: &mut [u8],
        metadata: &mut Metadata,
        now: u64,
    ) -> Result<u32, BadOffload> {
        match route {
            Route::One(id) => self.deliver_to(id, frame, metadata, now).map(|()| 1),
            Route::Beyond | Route::Nowhere => Ok(0),
            Route::Group(group) => {
                let mut count = 0;
                for id in group.contexts() {
                    self.deliver_to(id, frame, metadata, now)?;
                    count += 1;
                }
                Ok(count)
            }
        }
    }

    /// Delivers a frame to one context.
    #[inline]
    fn deliver_to(
        &mut self,
        id: ContextId,
        frame: &mut [u8],
        metadata: &mut Metadata,
        now: u64,
    ) -> Result<(), BadOffload> {
        let Some(Slot::Serving(context)) = self.slots.get_mut(id.index()) else { return Ok(()) };
        if !context.enable.contains(Enable::RX) {
            context.drop_frame(DropReason::NoDescriptors);
            return Ok(());
        }
        let bus = &mut self.bus;
        let form = finish(frame, metadata, context.features()).map_err(|_| BadOffload)?;
        let delivered = match form {
            Form::Whole => context.deliver(bus, Parts { head: frame, body: &[] }, *metadata, now),
            Form::Segments(mut segmenter, frame) => {
                let metadata = Metadata { checksum: Checksum::Validated, gso: None };
                let mut header = [0; MAX_HEADER];
                let mut delivered = Ok(());
                while let (Ok(()), Some(segment)) = (delivered, segmenter.next(&mut header)) {
                    let head = &header[..segment.header_len];
                    let parts = Parts { head, body: &frame[segment.payload] };
                    delivered = context.deliver(bus, parts, metadata, now);
                }
                delivered
            }
        };
        match delivered {
            Ok(()) => self.updated.insert(id),
            Err(violation) => self.stop(id, Direction::Rx, violation),
        }
        Ok(())
    }

    /// A context's frame was sent.
    #[inline]
    pub(crate) fn note_sent(&mut self, id: ContextId) {
        self.updated.insert(id);
    }

    /// Publishes completions, and announces those that are due. Returns when the next ones become due.
    pub(crate) fn write_back(
        &mut self,
        now: u64,
        interrupts: &mut Interrupts<impl VectorPage>,
    ) -> Option<u64> {
        let updated = std::mem::take(&mut self.updated);
        for id in updated.contexts() {
            if let Some((context, _)) = self.get(id) {
                context.publish();
            }
        }
        self.announcing.merge(&updated);
        let mut next: Option<u64> = None;
        for id in self.announcing.contexts() {
            match self.announce(id, now) {
                Announce::Now => interrupts.add(id),
                Announce::At(at) => next = Some(next.map_or(at, |next| next.min(at))),
                Announce::Waiting => {}
                Announce::Nothing => self.announcing.remove(id),
            }
        }
        next
    }

    fn announce(&mut self, id: ContextId, now: u64) -> Announce {
        let Some((context, _)) = self.get(id) else { return Announce::Nothing };
        let directions = [&mut context.tx_interrupts, &mut context.rx_interrupts];
        if !context.enable.contains(Enable::INTERRUPTS) {
            return Announce::Nothing;
        }
        if directions.iter().any(|direction| direction.is_due(now)) {
            // The guest checks both rings.
            directions.into_iter().for_each(|direction| direction.announced(now));
            context.statistics.interrupts += 1;
            return Announce::Now;
        }
        let deadlines = directions.iter().filter_map(|direction| direction.deadline());
        match deadlines.min() {
            Some(at) => Announce::At(at),
            None if directions.iter().any(|direction| direction.is_pending()) => Announce::Waiting,
            None => Announce::Nothing,
        }
    }
}

/// When a context's completions must be announced.
enum Announce {
    Now,
    /// Later, unless more frames are completed before.
    At(u64),
    /// When more frames are completed.
    Waiting,
    Nothing,
}
