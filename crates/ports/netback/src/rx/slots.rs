//! The slots of an RX ring, which hold the guest's buffers, and delivering into them.

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths and counts here are bounded by a page, a frame or a batch"
)]

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use frame::runs_in_places;
use hypervisor::{Counted, EventChannel, GrantRef, Hypervisor, PAGE_SIZE, Source};
use offload::{Features, Need};
use port::{BufferSupply, DropReason, Frame, Gather, Memory, Offer, Outcome, Segments, Steering};

use crate::buffers::{Buffers, Destination};
use crate::request::Fault;

use super::mode::RxMode;
use super::moderation::Moderation;
use super::plan::{Asked, CopyPlan, Layout, PacketShape, Placement, RxRing, is_short, layout_of};

/// Segments made by software in one batch: their headers lie on the stack meanwhile.
const SEGMENTS: usize = 16;
/// Most frames of one batch of copies.
const FRAMES_MAX: usize = 64;

/// An RX ring, and what delivers into it.
pub(super) struct Slots<H: Hypervisor> {
    pub(super) mode: RxMode<H>,
    pub(super) placement: Placement,
    pub(super) hypervisor: H,
    pub(super) to: Arc<Destination<H>>,
    pub(super) ring: RxRing<H>,
    /// The most buffers that were seen on the ring at once.
    pub(super) most: u32,
    pub(super) event: Arc<H::Event>,
    pub(super) supply: BufferSupply,
    pub(super) moderation: Moderation,
    /// What the frontend takes.
    pub(super) features: Features,
    /// How the guest wants its flows spread, if it has asked for their hashes: for one batch.
    pub(super) steering: Option<Arc<Steering>>,
    /// Bytes that the guest wants before each frame.
    pub(super) headroom: u16,
}

impl<H: Hypervisor> Slots<H> {
    /// Wakes the frontend.
    pub(super) fn notify(&self) {
        // A frontend that is gone cannot be notified; its domain's end detaches the vif.
        let _ = self.event.notify();
    }

    /// The shape of an unchanged frame.
    #[inline]
    pub(super) fn shape_of(&self, frame: &Frame) -> PacketShape {
        PacketShape::of(frame, self.steering.as_deref(), self.headroom)
    }

    /// Publishes the responses, among them those for what was delivered of `offers`.
    pub(super) fn publish(&mut self, offers: &[Offer<'_>], now: Duration) {
        if !self.ring.has_unpublished() {
            return;
        }
        let asked = self.ring.publish();
        let counts_merged = self.moderation.counts_merged();
        let delivered = || {
            let delivered = offers.iter().filter(|offer| offer.outcome == Outcome::Delivered);
            delivered.fold((0, 0), |(frames, bytes), offer| {
                let count = if counts_merged { offer.frame.merged_from() } else { 1 };
                (frames + count, bytes + u64::from(offer.frame.len))
            })
        };
        if self.moderation.published(asked, delivered, now) {
            self.notify();
        } else if !asked {
            self.hypervisor.note(Counted::Suppressed, 1);
        }
    }

    /// The buffers that these frames will take, as far as they are posted and fit one batch. The
    /// frontend can still change them.
    pub(super) fn next_buffers(
        &mut self,
        offers: &[Offer<'_>],
    ) -> Result<impl Iterator<Item = GrantRef>, Fault> {
        let wanted: u32 = offers.iter().map(|offer| self.shape_of(offer.frame).slots()).sum();
        let count = wanted.min(self.ring.unconsumed()?).min(FRAMES_MAX as u32);
        let ring = &self.ring;
        Ok((0..count).map(|n| GrantRef(ring.peek(n).gref)))
    }

    /// Publishes responses that no frame needs.
    pub(super) fn publish_at_once(&mut self) {
        if self.ring.has_unpublished() && self.ring.publish() {
            self.notify();
        }
    }

    /// See [`Egress::flush`](port::Egress::flush).
    pub(super) fn flush(&mut self, now: Duration, is_idle: bool) -> Option<Duration> {
        if self.moderation.flush(now, is_idle) {
            self.notify();
        }
        self.moderation.due()
    }

    /// Whether `slots` buffers are there. Asks for an event if not.
    pub(super) fn has_room(&mut self, slots: u32) -> Result<bool, Fault> {
        let ring = &mut self.ring;
        Ok(ring.unconsumed()? >= slots || ring.refresh()? >= slots || ring.arm_for(slots)?)
    }

    /// The outcome of a frame for which there are too few buffers.
    pub(super) fn without_room(&mut self, now: Duration) -> Outcome {
        self.supply.without_room(self.ring.posted(), now)
    }

    /// Delivers frames that need no software, up to the first that does, or that does not fit the
    /// batch. Returns how many have an outcome.
    pub(super) fn deliver_as_is(
        &mut self,
        memory: &Memory<'_, H::Peer>,
        buffers: &Buffers<'_, H>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<usize, Fault> {
        match self.mode.flips() {
            Some(_) => self.deliver_flipped(memory, &mut offers[0], now),
            None => self.deliver_copied(memory, buffers, offers, now),
        }
    }

    /// Delivers one frame in pages that change hands. Returns how many have an outcome.
    fn deliver_flipped(
        &mut self,
        memory: &Memory<'_, H::Peer>,
        offer: &mut Offer<'_>,
        now: Duration,
    ) -> Result<usize, Fault> {
        let frame = offer.frame;
        let packet = self.shape_of(frame);
        let slots = packet.slots();
        offer.outcome = if packet.is_scattered() && !self.features.sg {
            Outcome::Dropped(DropReason::TooLarge)
        } else if self.has_room(slots)? {
            let mut gather = Gather::new(frame, memory);
            self.flip(packet, |max| gather.next(max))
        } else {
            self.without_room(now)
        };
        Ok(usize::from(offer.outcome != Outcome::Waiting))
    }

    /// Delivers frames by one batch of copies. Returns how many have an outcome.
    pub(super) fn deliver_copied(
        &mut self,
        memory: &Memory<'_, H::Peer>,
        buffers: &Buffers<'_, H>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<usize, Fault> {
        let mut plan = CopyPlan::<H>::new(self.placement);
        // How many slots each frame took.
        let mut planned = ArrayVec::<u8, FRAMES_MAX>::new();
        let mut known = self.ring.unconsumed()?;
        let has_extras = self.steering.is_some() || self.headroom > 0;
        for offer in offers.iter_mut() {
            let frame = offer.frame;
            if planned.is_full() {
                break;
            }
            if is_short(frame) && known > 0 && !has_extras {
                if !plan.fits_short() {
                    break;
                }
                plan.add_short(&mut self.ring, buffers, frame, memory);
                known -= 1;
                offer.outcome = Outcome::Delivered;
                planned.push(1);
                continue;
            }
            if frame.need(self.features) != Need::Nothing {
                break;
            }
            let packet = self.shape_of(frame);
            let mut slots = packet.slots();
            if packet.is_scattered() && !self.features.sg {
                offer.outcome = Outcome::Dropped(DropReason::TooLarge);
            } else {
                let layout = if self.headroom > 0 { Layout::new() } else { layout_of(frame) };
                let in_layout = layout.len() as u32 + packet.extra_slots();
                // A guest may have just enough buffers for full slots.
                let layout = match &*layout {
                    [] => &[],
                    layout if self.ring.unconsumed()? < in_layout => &layout[..0],
                    layout => {
                        slots = in_layout;
                        layout
                    }
                };
                if !plan.fits(runs_in_places(frame, PAGE_SIZE as u32), slots) {
                    break;
                }
                if self.has_room(slots)? {
                    let mut gather = Gather::new(frame, memory);
                    let next = |max| gather.next(max);
                    match layout {
                        [] => plan.add(&mut self.ring, buffers, packet, next),
                        _ => plan.add_in::<true>(&mut self.ring, buffers, packet, layout, next),
                    }
                    offer.outcome = Outcome::Delivered;
                } else {
                    offer.outcome = self.without_room(now);
                    if offer.outcome == Outcome::Waiting {
                        break;
                    }
                }
            }
            known = self.ring.unconsumed()?;
            planned.push(if offer.outcome == Outcome::Delivered { slots as u8 } else { 0 });
        }
        // Slot after slot: the frame it belongs to, and how many more slots that frame has.
        let (mut frame, mut left) = (0, 0);
        plan.perform(&self.hypervisor, &mut self.ring, |fault| {
            while left == 0 {
                left = planned[frame];
                frame += 1;
            }
            left -= 1;
            if let Some(fault) = fault {
                offers[frame - 1].outcome = fault;
            }
        });
        Ok(planned.len())
    }

    /// Delivers a whole frame from private memory.
    pub(super) fn deliver_finished(
        &mut self,
        buffers: &Buffers<'_, H>,
        whole: &[u8],
        asked: Asked,
    ) -> Outcome {
        let packet = PacketShape::finished(whole.len() as u32, asked);
        let mut rest = whole;
        let next = |max| take(&mut rest, max);
        if self.mode.flips().is_some() {
            return self.flip(packet, next);
        }
        let mut plan = CopyPlan::<H>::new(self.placement);
        plan.add(&mut self.ring, buffers, packet, next);
        self.perform(&mut plan)
    }

    /// Delivers the segments of a frame, which all have its hash.
    pub(super) fn deliver_segments(
        &mut self,
        buffers: &Buffers<'_, H>,
        segments: Segments<'_>,
        asked: Asked,
    ) -> Outcome {
        let Segments { mut segmenter, whole } = segments;
        let mut headers = [[0; offload::MAX_HEADER]; SEGMENTS];
        let mut outcome = Outcome::Delivered;
        loop {
            let made: ArrayVec<_, SEGMENTS> =
                headers.iter_mut().map_while(|header| segmenter.next(header)).collect();
            if made.is_empty() {
                return outcome;
            }
            let mut plan = CopyPlan::<H>::new(self.placement);
            for (segment, header) in made.iter().zip(&headers) {
                let mut head = &header[..segment.header_len];
                let mut payload = &whole[segment.payload.clone()];
                let packet = PacketShape::finished((head.len() + payload.len()) as u32, asked);
                let next = |max| take(&mut head, max).or_else(|| take(&mut payload, max));
                if self.mode.flips().is_some() {
                    outcome = worse(outcome, self.flip(packet, next));
                } else {
                    plan.add(&mut self.ring, buffers, packet, next);
                }
            }
            if !plan.is_empty() {
                outcome = worse(outcome, self.perform(&mut plan));
            }
        }
    }

    /// Performs a plan. Returns what became of its packets.
    fn perform(&mut self, plan: &mut CopyPlan<'_, H>) -> Outcome {
        let mut outcome = Outcome::Delivered;
        plan.perform(&self.hypervisor, &mut self.ring, |fault| {
            outcome = fault.unwrap_or(outcome);
        });
        outcome
    }
}

/// What became of a frame of which one part after the other was delivered.
fn worse(before: Outcome, part: Outcome) -> Outcome {
    if part == Outcome::Delivered { before } else { part }
}

/// Takes the next run of at most `max` private bytes.
fn take<'a, P>(rest: &mut &'a [u8], max: u16) -> Option<(Source<'a, P>, u16)> {
    let len = rest.len().min(max.into());
    let (run, after) = rest.split_at(len);
    *rest = after;
    // At most `max`.
    (len > 0).then_some((Source::Private(run), len as u16))
}
