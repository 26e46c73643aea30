//! The receive side of a queue: frames to the guest.

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths and counts here are bounded by a page, a frame or a batch"
)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use hypervisor::{GuestCopies, Hypervisor, PAGE_SIZE};
use loans::Loans;
use moderation::Moderation;
use offload::{Features, Gso, Need};
use plan::{Asked, PacketShape, Placement, RxRing};
use port::{
    Body, Bounce, Broken, BufferSupply, Coalescing, DropReason, Egress, Event, FRAME_MAX, Finisher,
    LentBuffer, LentMemory, Merging, Offer, Outcome, SEGMENTS_MAX, SteeringCell, Wanted,
};
use ring::netif::Rx;
use segment_slots::SegmentSlots;
use slots::Slots;

use crate::buffers::{Buffers, Destination};
use crate::grant_cache::GrantCache;
use crate::multicast::{MulticastList, WantedGroups};
use crate::request::Fault;
use crate::{EventRing, GrantUse};

mod flip;
mod guest_copy;
mod lend;
mod loans;
mod mode;
mod moderation;
mod plan;
mod pool;
mod posted;
mod segment_slots;
mod slots;

pub(crate) use mode::RxMode;

/// The side of a queue that delivers to the guest.
pub struct RxQueue<H: Hypervisor> {
    slots: Slots<H>,
    /// Does what the frontend lacks.
    finisher: Finisher,
    /// Where frames are copied through that come from another platform, once there is one.
    bounce: Option<Bounce>,
    /// What it lends, if it does.
    loans: Option<Loans>,
    /// The buffers that stay mapped on demand, if some may.
    cache: Option<GrantCache<H>>,
    /// How the guest wants its flows spread over its queues, if it can say so.
    steering: Option<Arc<SteeringCell>>,
    /// The groups that the frontend wants, if it may say so.
    groups: Option<WantedGroups>,
    /// What the frontend has said that it takes.
    agreed: Features,
    /// Bytes that the frontend wants before each frame by now.
    headroom: Arc<AtomicU16>,
}

/// What a frontend wants of its queues.
pub(crate) struct RxOptions<H: Hypervisor> {
    /// What it takes.
    pub(crate) features: Features,
    /// When it is notified.
    pub(crate) coalescing: Option<Coalescing>,
    /// How it wants its flows spread over its queues, if it can say so.
    pub(crate) steering: Option<Arc<SteeringCell>>,
    /// Whether frames may begin anywhere in its buffers.
    pub(crate) offsets: bool,
    /// Bytes that it wants before each frame, which it may change.
    pub(crate) headroom: Arc<AtomicU16>,
    /// How its frames get into its memory.
    pub(crate) mode: RxMode<H>,
}

/// A delivery to the frontend: where the frames' bodies and the buffers for them lie, and when it is.
struct Delivery<'a, H: Hypervisor> {
    body: Body<'a>,
    buffers: &'a Buffers<'a, H>,
    now: Duration,
}

impl<H: Hypervisor> Egress for RxQueue<H> {
    /// Delivers frames, as many as there are buffers for. The frontend is notified once.
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        match self.groups.take_if(WantedGroups::refresh) {
            None => self.deliver_frames(body, offers, now).map_err(Broken::new),
            Some(groups) => {
                let delivered = self.deliver_wanted(&groups, body, offers, now);
                self.groups = Some(groups);
                delivered.map_err(Broken::new)
            }
        }
    }

    fn merging(&self) -> Option<Merging> {
        let merging = Merging { features: self.slots.features, longest: FRAME_MAX };
        self.slots.mode.copies_merged().then_some(merging)
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.slots.event.clone())
    }

    fn is_stalled(&self) -> bool {
        self.slots.supply.is_stalled()
    }

    fn steering(&self) -> Option<Arc<SteeringCell>> {
        self.steering.clone()
    }

    fn lent_memory(&self) -> Option<LentMemory> {
        let loans = self.loans.as_ref()?;
        let region = loans.region(&self.slots)?;
        Some(LentMemory { lender: loans.id(), region, features: self.slots.features })
    }

    fn lend(&mut self, wanted: Wanted, lent: &mut Vec<LentBuffer>) -> Result<(), Broken> {
        let Some(loans) = &mut self.loans else { return Ok(()) };
        loans.lend(&mut self.slots, wanted, lent).map_err(Broken::new)
    }

    fn take_back(&mut self, tokens: &[u32]) {
        if let Some(loans) = &mut self.loans {
            loans.take_back(&mut self.slots, tokens);
        }
    }

    fn coalesces(&self) -> bool {
        self.slots.moderation.holds()
    }

    fn set_coalescing(&mut self, coalescing: Option<Coalescing>) {
        self.slots.moderation.set(coalescing);
    }

    fn flush(&mut self, now: Duration, is_idle: bool) -> Option<Duration> {
        self.slots.flush(now, is_idle)
    }
}

impl<H: Hypervisor> RxQueue<H> {
    pub(crate) fn new(
        hypervisor: H,
        to: Destination<H>,
        EventRing { ring, event }: EventRing<Rx, H>,
        options: RxOptions<H>,
        cache: Option<GrantCache<H>>,
    ) -> Self {
        let RxOptions { features, coalescing, steering, offsets, headroom, mode } = options;
        // Frontends of our own, which take frames in other ways, run no XDP programs.
        let headroom = if mode.copies_all() { headroom } else { Arc::default() };
        let meter = hypervisor.clone();
        let finisher = Finisher::new(features, move |what, n| meter.note(what, n));
        let (supply, to) = (BufferSupply::default(), Arc::new(to));
        let loans = match &mode {
            RxMode::Lend => hypervisor.dma_region(to.peer()).map(Loans::buffers),
            RxMode::Pool { copies, resumes } => {
                Loans::pool(copies, resumes.then(|| ring.consumed()))
            }
            _ => None,
        };
        // The frontend posts buffers before it connects.
        let most = ring.posted().wrapping_sub(ring.consumed());
        let ring = RxRing::<H>::new(ring, matches!(loans, Some(Loans::Buffers(_))));
        let moderation = Moderation::new(coalescing);
        let slots = Slots {
            mode,
            placement: Placement::new(offsets),
            hypervisor,
            to,
            ring,
            most,
            event,
            supply,
            moderation,
            features,
            steering: None,
            headroom: 0,
        };
        let (groups, agreed) = (None, features);
        Self { slots, finisher, bounce: None, loans, cache, steering, groups, agreed, headroom }
    }

    /// Delivers the frames of groups in this list only, while it counts.
    pub(crate) fn keep_list(&mut self, list: Arc<MulticastList>) {
        self.groups = Some(WantedGroups::new(list));
    }

    /// What the frontend takes.
    pub fn features(&self) -> Features {
        self.slots.features
    }

    /// What the guest copies from, if it copies an uplink's frames.
    pub fn guest_copies(&self) -> Option<&Arc<dyn GuestCopies>> {
        let mode = &self.slots.mode;
        mode.guest_copies().or_else(|| mode.lent_pool())
    }

    /// What there was too little of for the guest to copy.
    pub(crate) fn out_of(&self) -> Option<&'static str> {
        match self.slots.mode {
            RxMode::OutOf(what) => Some(what),
            _ => None,
        }
    }

    /// How buffers that stay mapped are used, if some may.
    pub(crate) fn usage(&self) -> Option<&Arc<GrantUse>> {
        self.cache.as_ref().map(GrantCache::usage).or_else(|| self.slots.to.usage())
    }

    /// Wakes the frontend.
    pub(crate) fn notify(&self) {
        self.slots.notify();
    }

    /// Delivers the frames of groups that the frontend wants, and drops those of others.
    fn deliver_wanted(
        &mut self,
        groups: &WantedGroups,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Fault> {
        let mut rest = offers;
        while !rest.is_empty() {
            let is_wanted = |offer: &&Offer<'_>| groups.has(offer.frame.destination());
            let wanted = rest.iter().take_while(is_wanted).count();
            let (run, beyond) = rest.split_at_mut(wanted);
            if !run.is_empty() {
                self.deliver_frames(body, run, now)?;
            }
            if run.iter().any(|offer| offer.outcome.is_offered_again()) {
                // Those behind are offered again too: the order is kept.
                return Ok(());
            }
            let unwanted = beyond.iter().take_while(|offer| !is_wanted(offer)).count();
            let (unwanted, later) = beyond.split_at_mut(unwanted);
            for offer in unwanted {
                offer.outcome = Outcome::Dropped(DropReason::NotWanted);
            }
            rest = later;
        }
        Ok(())
    }

    /// Leaves `headroom` bytes before each frame from now on. They are for an XDP program, which sees one page and no metadata: frames
    /// come in segments and with their checksums.
    #[cold]
    fn change_headroom(&mut self, headroom: u16) {
        let features = if headroom > 0 { Features::NONE } else { self.agreed };
        self.finisher.set_features(features);
        (self.slots.headroom, self.slots.features) = (headroom, features);
    }

    fn deliver_frames(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Fault> {
        let headroom = self.headroom.load(Ordering::Relaxed);
        if headroom != self.slots.headroom {
            self.change_headroom(headroom);
        }
        // An extra cannot name its request, so a frontend that takes responses in any order gets no hashes.
        if let Some(steering) = self.steering.as_ref().filter(|_| !self.slots.ring.lends()) {
            self.slots.steering = steering.load().steering().cloned();
        }
        let to = self.slots.to.clone();
        let pages = to.pages();
        let mut cache = self.cache.take();
        if let Some(cache) = &mut cache {
            cache.prepare(self.slots.next_buffers(offers)?);
        }
        let buffers = to.buffers(pages.as_ref(), cache.as_ref());
        let delivered = self.deliver_into(&Delivery { body, buffers: &buffers, now }, offers);
        buffers.note(&self.slots.hypervisor);
        self.cache = cache;
        delivered?;
        self.slots.supply.delivered(self.slots.ring.posted(), now);
        self.slots.publish(offers, now);
        Ok(())
    }

    fn deliver_into(
        &mut self,
        delivery: &Delivery<'_, H>,
        offers: &mut [Offer<'_>],
    ) -> Result<(), Fault> {
        let Delivery { body, buffers, now } = *delivery;
        let memory = body.local::<H>();
        let mut done = 0;
        // Usually nothing is lent, and no frame needs a check.
        let lends = self.loans.as_ref().is_some_and(|loans| loans.is_any(&self.slots));
        while done < offers.len() {
            let mut rest = &mut offers[done..];
            if lends {
                let Some(loans) = &mut self.loans else { break };
                let (run, are_lent) = loans.run(&self.slots, rest);
                rest = &mut rest[..run];
                if are_lent {
                    for offer in rest {
                        loans.deliver(&mut self.slots, offer, now)?;
                        if offer.outcome == Outcome::Waiting {
                            return Ok(());
                        }
                    }
                    done += run;
                    continue;
                }
            }
            let delivered = match (self.finisher.need(rest[0].frame), &memory) {
                (Need::Nothing, Some(memory)) if self.slots.mode.guest_copies().is_none() => {
                    self.slots.deliver_as_is(memory, buffers, rest, now)?
                }
                (Need::Nothing, Some(memory)) => {
                    self.slots.deliver_to_copier(delivery, memory, rest)?
                }
                (Need::Nothing, None) => self.deliver_bounced(delivery, &mut rest[0])?,
                (need, _) => self.deliver_in_software(delivery, &mut rest[0], need)?,
            };
            // The first of them waits for room.
            if delivered == 0 {
                break;
            }
            done += delivered;
        }
        Ok(())
    }

    /// Delivers a frame of another platform, whose grants this one cannot copy from.
    fn deliver_bounced(
        &mut self,
        &Delivery { body, buffers, now }: &Delivery<'_, H>,
        offer: &mut Offer<'_>,
    ) -> Result<usize, Fault> {
        let slots = &mut self.slots;
        if !slots.has_room(slots.shape_of(offer.frame).slots())? {
            offer.outcome = slots.without_room(now);
            return Ok(usize::from(offer.outcome != Outcome::Waiting));
        }
        match self.bounce.get_or_insert_default().copy(offer.frame, body) {
            Ok((frame, memory)) => {
                let mut offers = [Offer::new(frame)];
                let delivered = slots.deliver_as_is(&memory, buffers, &mut offers, now);
                offer.outcome = offers[0].outcome;
                delivered
            }
            Err(fault) => {
                offer.outcome = fault;
                Ok(1)
            }
        }
    }

    /// Delivers one frame whose offloads the frontend lacks: copied to private memory, finished
    /// there, then delivered. Returns how many have an outcome that is final.
    fn deliver_in_software(
        &mut self,
        delivery: &Delivery<'_, H>,
        offer: &mut Offer<'_>,
        need: Need,
    ) -> Result<usize, Fault> {
        let frame = offer.frame;
        let needs = |asked| match (need, frame.gso) {
            (Need::Segment, Some(gso)) => {
                let segments = SegmentSlots::of(frame, gso, asked);
                (segments.left(0), segments.longest())
            }
            _ => (PacketShape::finished(frame.len, asked).slots(), frame.len),
        };
        // Rather no hashes than no frame.
        let mut asked = self.slots.shape_of(frame).asked;
        if needs(asked).0 as usize > SEGMENTS_MAX {
            asked.hash = None;
        }
        let (needed, longest) = needs(asked);
        // The slots of what is said about room do not count: such frames come in parts, if they must.
        let counted = needs(Asked { headroom: 0, ..asked }).0;
        let longest = longest + u32::from(asked.headroom);
        let scattered = longest > PAGE_SIZE as u32 && !self.slots.features.sg;
        offer.outcome = if counted as usize > SEGMENTS_MAX || scattered {
            Outcome::Dropped(DropReason::TooLarge)
        } else if let (Need::Segment, Some(gso)) = (need, frame.gso) {
            self.deliver_segments(delivery, offer, gso, asked)?
        } else if self.slots.has_room(needed)? {
            let whole = self.finisher.complete(frame, delivery.body);
            let buffers = delivery.buffers;
            let delivered = whole.map(|whole| self.slots.deliver_finished(buffers, whole, asked));
            delivered.unwrap_or_else(|fault| fault)
        } else {
            self.slots.without_room(delivery.now)
        };
        Ok(usize::from(offer.outcome.is_final()))
    }

    /// Delivers a frame's remaining segments: all at once, unless lent buffers leave never enough room for all.
    fn deliver_segments(
        &mut self,
        &Delivery { body, buffers, now }: &Delivery<'_, H>,
        offer: &Offer<'_>,
        gso: Gso,
        asked: Asked,
    ) -> Result<Outcome, Fault> {
        let Self { slots, finisher, .. } = self;
        let Offer { frame, sent, .. } = *offer;
        let segments = SegmentSlots::of(frame, gso, asked);
        slots.most = slots.most.max(slots.ring.refresh()?);
        if !slots.has_room(segments.next_part(sent, slots.ring.unlent(), slots.most))? {
            return Ok(slots.without_room(now));
        }
        let end = segments.end_of_part(sent, slots.ring.unconsumed()?);
        let cut = match finisher.segments(frame, body, sent.into()..end.into()) {
            Ok(cut) => cut,
            Err(fault) => return Ok(fault),
        };
        let is_last = cut.segmenter.behind() == 0;
        Ok(match slots.deliver_segments(buffers, cut, asked) {
            Outcome::Delivered if !is_last => Outcome::Partial { segments: end },
            outcome => outcome,
        })
    }
}
