//! The receive side of a queue: frames to the guest.

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths and counts here are bounded by a page, a frame or a batch"
)]

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use frame::pieces_of;
use hypervisor::flip::PageTransfer;
use hypervisor::{Counted, EventChannel, Hypervisor, PAGE_SIZE, Source};
use offload::{Features, Gso, Need};
use port::{
    Body, Bounce, Broken, DropReason, Egress, Event, Finisher, Frame, Gather, Memory, Offer,
    Outcome, SEGMENTS_MAX, Segments,
};

use crate::persistent::{Buffers, Destination};
use crate::request::Fault;
use plan::{CopyPlan, PacketShape, RxRing, is_short};
use supply::BufferSupply;

mod flip;
mod plan;
mod supply;

/// Segments made by software in one batch: their headers lie on the stack meanwhile.
const SEGMENTS: usize = 16;
/// Most frames of one batch of copies.
const FRAMES_MAX: usize = 64;

/// An RX ring.
pub struct RxQueue<H: Hypervisor> {
    /// Where the pages come from, if frames are delivered in pages that change hands.
    flips: Option<Arc<dyn PageTransfer<H::Peer>>>,
    hypervisor: H,
    to: Arc<Destination<H>>,
    ring: RxRing<H>,
    event: Arc<H::Event>,
    supply: BufferSupply,
    /// Does what the frontend lacks.
    finisher: Finisher,
    /// Where frames are copied through that come from another platform, once there is one.
    bounce: Option<Bounce>,
}

impl<H: Hypervisor> Egress for RxQueue<H> {
    /// Delivers frames, as many as there are buffers for. The frontend is notified once.
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        self.deliver_frames(body, offers, now).map_err(Broken::new)
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.event.clone())
    }

    fn is_stalled(&self) -> bool {
        self.supply.is_stalled()
    }
}

impl<H: Hypervisor> RxQueue<H> {
    pub(crate) fn new(
        hypervisor: H,
        to: Destination<H>,
        ring: RxRing<H>,
        event: Arc<H::Event>,
        features: Features,
        flips: Option<Arc<dyn PageTransfer<H::Peer>>>,
    ) -> Self {
        let meter = hypervisor.clone();
        let finisher = Finisher::new(features, move |what, n| meter.note(what, n));
        let (supply, to) = (BufferSupply::Enough, Arc::new(to));
        Self { flips, hypervisor, to, ring, event, supply, finisher, bounce: None }
    }

    /// What the frontend takes.
    pub fn features(&self) -> Features {
        self.finisher.features()
    }

    /// Wakes the frontend.
    pub(crate) fn notify(&self) {
        // A frontend that is gone cannot be notified; its domain's end detaches the vif.
        let _ = self.event.notify();
    }

    fn deliver_frames(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Fault> {
        let to = self.to.clone();
        let pages = to.pages();
        let buffers = to.buffers(pages.as_ref());
        let memory = body.local::<H>();
        let mut done = 0;
        while done < offers.len() {
            let rest = &mut offers[done..];
            let delivered = match (self.finisher.need(rest[0].frame), &memory) {
                (Need::Nothing, Some(memory)) => self.deliver_as_is(memory, &buffers, rest, now)?,
                (Need::Nothing, None) => self.deliver_bounced(body, &buffers, &mut rest[0], now)?,
                (need, _) => self.deliver_in_software(body, &buffers, &mut rest[0], need, now)?,
            };
            // The first of them waits for room.
            if delivered == 0 {
                break;
            }
            done += delivered;
        }
        buffers.note(&self.hypervisor);
        self.publish();
        Ok(())
    }

    fn publish(&mut self) {
        if !self.ring.has_unpublished() {
            return;
        }
        if self.ring.publish() {
            self.notify();
        } else {
            self.hypervisor.note(Counted::Suppressed, 1);
        }
    }

    /// Whether `slots` buffers are there. Asks for an event if not.
    fn has_room(&mut self, slots: u32, now: Duration) -> Result<bool, Fault> {
        self.supply.has(&mut self.ring, slots, now)
    }

    /// Delivers frames that need no software, up to the first that does, or that does not fit the
    /// batch. Returns how many have an outcome.
    fn deliver_as_is(
        &mut self,
        memory: &Memory<'_, H::Peer>,
        buffers: &Buffers<'_, H>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<usize, Fault> {
        match self.flips {
            Some(_) => self.deliver_flipped(memory, &mut offers[0], now),
            None => self.deliver_copied(memory, buffers, offers, now),
        }
    }

    /// Delivers a frame of another platform, whose grants this one cannot copy from.
    fn deliver_bounced(
        &mut self,
        body: Body<'_>,
        buffers: &Buffers<'_, H>,
        offer: &mut Offer<'_>,
        now: Duration,
    ) -> Result<usize, Fault> {
        if !self.has_room(PacketShape::of(offer.frame).slots(), now)? {
            offer.outcome = self.supply.without_room();
            return Ok(usize::from(offer.outcome != Outcome::Waiting));
        }
        let mut bounce = self.bounce.take().unwrap_or_default();
        let delivered = match bounce.copy(offer.frame, body) {
            Ok((frame, memory)) => {
                let mut offers = [Offer::new(frame)];
                let delivered = self.deliver_as_is(&memory, buffers, &mut offers, now);
                offer.outcome = offers[0].outcome;
                delivered
            }
            Err(fault) => {
                offer.outcome = fault;
                Ok(1)
            }
        };
        self.bounce = Some(bounce);
        delivered
    }

    /// Delivers one frame in pages that change hands. Returns how many have an outcome.
    fn deliver_flipped(
        &mut self,
        memory: &Memory<'_, H::Peer>,
        offer: &mut Offer<'_>,
        now: Duration,
    ) -> Result<usize, Fault> {
        let frame = offer.frame;
        let packet = PacketShape::of(frame);
        let slots = packet.slots();
        offer.outcome = if slots > 1 && !self.features().sg {
            Outcome::Dropped(DropReason::TooLarge)
        } else if self.has_room(slots, now)? {
            let mut gather = Gather::new(frame, memory);
            self.flip(packet, |max| gather.next(max))
        } else {
            self.supply.without_room()
        };
        Ok(usize::from(offer.outcome != Outcome::Waiting))
    }

    /// Delivers frames by one batch of copies. Returns how many have an outcome.
    fn deliver_copied(
        &mut self,
        memory: &Memory<'_, H::Peer>,
        buffers: &Buffers<'_, H>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<usize, Fault> {
        let mut plan = CopyPlan::<H>::new();
        // How many slots each frame took.
        let mut planned = ArrayVec::<u8, FRAMES_MAX>::new();
        let mut known = self.ring.unconsumed()?;
        for offer in offers.iter_mut() {
            let frame = offer.frame;
            if planned.is_full() {
                break;
            }
            if is_short(frame) && known > 0 {
                if !plan.fits_short() {
                    break;
                }
                if !self.supply.is_enough() {
                    self.supply.judge(&mut self.ring, true, now)?;
                }
                plan.add_short(&mut self.ring, buffers, frame, memory);
                known -= 1;
                offer.outcome = Outcome::Delivered;
                planned.push(1);
                continue;
            }
            if self.finisher.need(frame) != Need::Nothing {
                break;
            }
            let packet = PacketShape::of(frame);
            let slots = packet.slots();
            if slots > 1 && !self.features().sg {
                offer.outcome = Outcome::Dropped(DropReason::TooLarge);
            } else {
                if !plan.fits(pieces_of(frame, PAGE_SIZE as u32), slots) {
                    break;
                }
                if self.has_room(slots, now)? {
                    let mut gather = Gather::new(frame, memory);
                    plan.add(&mut self.ring, buffers, packet, |max| gather.next(max));
                    offer.outcome = Outcome::Delivered;
                } else {
                    offer.outcome = self.supply.without_room();
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

    /// Delivers one frame whose offloads the frontend lacks: copied to private memory, finished
    /// there, then delivered.
    fn deliver_in_software(
        &mut self,
        body: Body<'_>,
        buffers: &Buffers<'_, H>,
        offer: &mut Offer<'_>,
        need: Need,
        now: Duration,
    ) -> Result<usize, Fault> {
        let frame = offer.frame;
        let (slots, longest) = match (need, frame.gso) {
            (Need::Segment, Some(gso)) => slots_of_segments(frame, gso),
            _ => (PacketShape::finished(frame.len).slots(), frame.len),
        };
        let scattered = longest > PAGE_SIZE as u32 && !self.features().sg;
        if slots as usize > SEGMENTS_MAX || scattered {
            offer.outcome = Outcome::Dropped(DropReason::TooLarge);
            return Ok(1);
        }
        if !self.has_room(slots, now)? {
            offer.outcome = self.supply.without_room();
            return Ok(usize::from(offer.outcome != Outcome::Waiting));
        }
        // Taken out while it lends the finished frame.
        let placeholder = Finisher::new(self.features(), |_, _| ());
        let mut finisher = std::mem::replace(&mut self.finisher, placeholder);
        let delivered = match (need, frame.gso) {
            (Need::Segment, Some(gso)) => {
                self.deliver_segments(&mut finisher, body, buffers, frame, gso)
            }
            _ => finisher.complete(frame, body).map(|whole| self.deliver_finished(buffers, whole)),
        };
        self.finisher = finisher;
        offer.outcome = delivered.unwrap_or_else(|fault| fault);
        Ok(1)
    }

    /// Delivers a whole frame from private memory.
    fn deliver_finished(&mut self, buffers: &Buffers<'_, H>, whole: &[u8]) -> Outcome {
        let packet = PacketShape::finished(whole.len() as u32);
        let mut rest = whole;
        let next = |max| take(&mut rest, max);
        if self.flips.is_some() {
            return self.flip(packet, next);
        }
        let mut plan = CopyPlan::<H>::new();
        plan.add(&mut self.ring, buffers, packet, next);
        self.perform(&mut plan)
    }

    /// Cuts a frame into segments and delivers them.
    fn deliver_segments(
        &mut self,
        finisher: &mut Finisher,
        body: Body<'_>,
        buffers: &Buffers<'_, H>,
        frame: &Frame,
        gso: Gso,
    ) -> Result<Outcome, Outcome> {
        let Segments { mut segmenter, whole } = finisher.segments(frame, gso, body)?;
        let mut headers = [[0; offload::MAX_HEADER]; SEGMENTS];
        let mut outcome = Outcome::Delivered;
        loop {
            let made: ArrayVec<_, SEGMENTS> =
                headers.iter_mut().map_while(|header| segmenter.next(header)).collect();
            if made.is_empty() {
                return Ok(outcome);
            }
            let mut plan = CopyPlan::<H>::new();
            for (segment, header) in made.iter().zip(&headers) {
                let mut head = &header[..segment.header_len];
                let mut payload = &whole[segment.payload.clone()];
                let packet = PacketShape::finished((head.len() + payload.len()) as u32);
                let next = |max| take(&mut head, max).or_else(|| take(&mut payload, max));
                if self.flips.is_some() {
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

fn take<'a, P>(rest: &mut &'a [u8], max: u16) -> Option<(Source<'a, P>, u16)> {
    let len = rest.len().min(max.into());
    let (run, after) = rest.split_at(len);
    *rest = after;
    // At most `max`.
    (len > 0).then_some((Source::Private(run), len as u16))
}

/// Slots that all segments of a frame take, and the bytes of the longest of them. The size comes
/// from the sending guest: a segment may be longer than a page and take several slots.
fn slots_of_segments(frame: &Frame, gso: Gso) -> (u32, u32) {
    let slots_of = |len| PacketShape::finished(len).slots();
    let header = u32::from(frame.headers.payload_offset);
    let payload = frame.len - header;
    let size = u32::from(gso.size).clamp(1, payload.max(1));
    let (full, rest) = (payload / size, payload % size);
    let last = if rest > 0 || full == 0 { slots_of(header + rest) } else { 0 };
    (full * slots_of(header + size) + last, header + size.min(payload))
}
