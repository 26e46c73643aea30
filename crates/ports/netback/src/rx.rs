//! The receive side of a queue: frames to the guest.

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths and counts here are bounded by a page, a frame or a batch"
)]

use std::sync::Arc;
use std::time::Duration;

use arrayvec::ArrayVec;
use frame::{
    Body, DropReason, FRAME_MAX, Frame, Gather, Offer, Outcome, PIECES_MAX, linearise, pieces_of,
};
use hypervisor::flip::PageTransfer;
use hypervisor::{
    CopyStatus, Counted, EventChannel, GrantCopy, GrantRef, Hypervisor, PAGE_SIZE, Source,
};
use offload::{Checksum, Features, Gso, Need, Segmenter};
use ring::netif::Rx;
use ring::{BackRing, RegionPage, SharedPage, Slots};
use wire::netif::extra::{Extra, ExtraInfo};
use wire::netif::{RxResponse, rx_flags, status};

use crate::persistent::{Buffers, Destination};
use crate::request::Fault;

mod flip;

/// Most copies in one batch.
const OPS: usize = 128;
/// Most copies a frame of one slot needs.
const RUNS_MAX: usize = 1 + PIECES_MAX;
/// Most ring slots filled by one batch of copies.
const SLOTS: usize = 64;
/// Segments made by software in one batch: their headers lie on the stack meanwhile.
const SEGMENTS: usize = 16;
/// A frame that needs more slots than this when cut in software is dropped.
const SEGMENTS_MAX: usize = 192;
/// Frames in hand hold back their sender's ring, and all that is behind them on it. So they wait
/// only for a frontend that gives [`PACE`] buffers in this time: XSA-392 is what became of a
/// detector that one buffer now and then kept quiet.
const STALL: Duration = Duration::from_millis(200);
/// Buffers that end a lack, or a stall: a whole ring.
const PACE: u32 = Rx::COUNT;
/// Buffers are pages, and frames at the start of every page would share a handful of cache
/// sets. Small frames are spread over the page by this step instead.
const COLOUR_STEP: u16 = 64;
/// Longest frame that is spread: up to half a page before it still fits.
const COLOUR_MAX: u32 = PAGE_SIZE as u32 / 2;

type Copies<'a, H> = ArrayVec<GrantCopy<'a, <H as Hypervisor>::Peer>, OPS>;
type Plan = ArrayVec<Planned, SLOTS>;

/// One response to be written once the copies are done.
enum Planned {
    Data { id: u16, offset: u16, len: u16, flags: u16, copies: u8 },
    Extra(ExtraInfo),
}

/// An RX ring.
pub struct RxQueue<H: Hypervisor> {
    /// Where the pages come from, if frames are delivered in pages that change hands.
    flips: Option<Arc<dyn PageTransfer<H::Peer>>>,
    hypervisor: H,
    to: Arc<Destination<H>>,
    ring: BackRing<Rx, RegionPage<H::Mapping>>,
    event: Arc<H::Event>,
    features: Features,
    room: Room,
    /// Where a frame is made whole when the frontend lacks an offload.
    scratch: Option<Box<[u8]>>,
}

/// Whether the frontend gives buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Enough,
    /// Too few since then, when request `at` was the next.
    Wanted {
        since: Duration,
        at: u32,
    },
    /// Too few for too long, as was noticed when request `at` was the next.
    Stalled {
        at: u32,
    },
}

impl<H: Hypervisor> RxQueue<H> {
    pub(crate) fn new(
        hypervisor: H,
        to: Destination<H>,
        ring: BackRing<Rx, RegionPage<H::Mapping>>,
        event: Arc<H::Event>,
        features: Features,
        flips: Option<Arc<dyn PageTransfer<H::Peer>>>,
    ) -> Self {
        let room = Room::Enough;
        Self { flips, hypervisor, to: Arc::new(to), ring, event, features, room, scratch: None }
    }

    /// What the frontend takes.
    pub fn features(&self) -> Features {
        self.features
    }

    /// The doorbell the frontend rings when it gives buffers to a queue that wants some.
    pub fn event(&self) -> &Arc<H::Event> {
        &self.event
    }

    /// Whether the frontend gave buffers so slowly that frames it has none for are dropped.
    pub fn is_stalled(&self) -> bool {
        matches!(self.room, Room::Stalled { .. })
    }

    /// Delivers frames in order, as many as there are buffers for, and sets what became of
    /// each. `now` is any clock that never goes back. The frontend is notified once.
    ///
    /// When frames are left waiting, the frontend has been asked for an event at its next
    /// buffer.
    pub fn deliver<'a>(
        &mut self,
        body: Body<'a, H::Peer>,
        offers: &mut [Offer<'a>],
        now: Duration,
    ) -> Result<(), Fault> {
        let to = self.to.clone();
        let pages = to.pages();
        let buffers = to.buffers(pages.as_ref());
        let mut done = 0;
        while done < offers.len() {
            let rest = &mut offers[done..];
            let settled = match need_of(rest[0].frame, self.features) {
                Need::Nothing if self.flips.is_some() => {
                    self.deliver_flipped(body, &mut rest[0], now)?
                }
                Need::Nothing => self.deliver_whole(body, &buffers, rest, now)?,
                need => self.deliver_in_software(body, &buffers, &mut rest[0], need, now)?,
            };
            // The first of them waits for room.
            if settled == 0 {
                break;
            }
            done += settled;
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
            // A frontend that is gone can not be told; its domain's end detaches the vif.
            let _ = self.event.notify();
        } else {
            self.hypervisor.note(Counted::Suppressed, 1);
        }
    }

    /// Whether `slots` buffers are there. Asks for an event if not.
    fn has_room(&mut self, slots: u32, now: Duration) -> Result<bool, Fault> {
        let known = self.ring.unconsumed()?;
        let enough = known >= slots || self.ring.refresh()? >= slots || self.ring.arm_for(slots)?;
        if !enough || self.room != Room::Enough {
            self.judge_pace(enough, now)?;
        }
        Ok(enough)
    }

    /// Decides whether frames may wait for this frontend, which has, or has not, `enough` buffers
    /// for the next one.
    fn judge_pace(&mut self, enough: bool, now: Duration) -> Result<(), Fault> {
        let next = self.ring.consumed();
        let end = next.wrapping_add(self.ring.refresh()?);
        self.room = match self.room {
            Room::Wanted { at, .. } | Room::Stalled { at } if end.wrapping_sub(at) >= PACE => {
                if enough {
                    Room::Enough
                } else {
                    Room::Wanted { since: now, at: next }
                }
            }
            other if enough => other,
            Room::Enough => Room::Wanted { since: now, at: next },
            Room::Wanted { since, .. } if now.saturating_sub(since) > STALL => {
                Room::Stalled { at: next }
            }
            other => other,
        };
        Ok(())
    }

    /// What to do with a frame there is no room for.
    fn without_room(&self) -> Outcome {
        match self.room {
            Room::Stalled { .. } => Outcome::Dropped(DropReason::Stalled),
            _ => Outcome::Waiting,
        }
    }

    /// Delivers one frame that needs no software in pages that change hands. Answers how many
    /// were settled.
    fn deliver_flipped<'a>(
        &mut self,
        body: Body<'a, H::Peer>,
        offer: &mut Offer<'a>,
        now: Duration,
    ) -> Result<usize, Fault> {
        let frame = offer.frame;
        let slots = slots_of(frame.len, frame.gso);
        offer.outcome = if slots > 1 && !self.features.sg {
            Outcome::Dropped(DropReason::TooLarge)
        } else if self.has_room(slots, now)? {
            let mut gather = Gather::new(frame, body);
            let flags = flags_of(frame.checksum);
            self.flip(frame.len, flags, frame.gso, |max| gather.next(max))
        } else {
            self.without_room()
        };
        Ok(usize::from(offer.outcome != Outcome::Waiting))
    }

    /// Delivers frames that need no software, up to the first that does, one batch of copies.
    /// Answers how many were settled.
    fn deliver_whole<'a>(
        &mut self,
        body: Body<'a, H::Peer>,
        buffers: &Buffers<'_, H>,
        offers: &mut [Offer<'a>],
        now: Duration,
    ) -> Result<usize, Fault> {
        let mut copies = Copies::<H>::new();
        let mut plan = Plan::new();
        let mut planned = ArrayVec::<u8, SLOTS>::new();
        let mut taken = 0;
        let mut known = self.ring.unconsumed()?;
        for offer in offers.iter_mut() {
            let frame = offer.frame;
            if is_short(frame) && known > 0 {
                if copies.remaining_capacity() < RUNS_MAX || plan.is_full() {
                    break;
                }
                if self.room != Room::Enough {
                    self.judge_pace(true, now)?;
                }
                self.plan_short(buffers, frame, body, &mut copies, &mut plan);
                known -= 1;
                offer.outcome = Outcome::Delivered;
                planned.push(1);
                taken += 1;
                continue;
            }
            if need_of(frame, self.features) != Need::Nothing {
                break;
            }
            let slots = slots_of(frame.len, frame.gso);
            if slots > 1 && !self.features.sg {
                offer.outcome = Outcome::Dropped(DropReason::TooLarge);
            } else {
                let full = copies.remaining_capacity() < pieces_of(frame, PAGE_SIZE as u32)
                    || plan.remaining_capacity() < slots as usize;
                if full {
                    break;
                }
                if self.has_room(slots, now)? {
                    let mut gather = Gather::new(frame, body);
                    let flags = flags_of(frame.checksum);
                    let next = |max| gather.next(max);
                    self.plan(buffers, frame.len, flags, frame.gso, next, &mut copies, &mut plan);
                    offer.outcome = Outcome::Delivered;
                } else {
                    offer.outcome = self.without_room();
                    if offer.outcome == Outcome::Waiting {
                        break;
                    }
                }
            }
            known = self.ring.unconsumed()?;
            planned.push(if offer.outcome == Outcome::Delivered { slots as u8 } else { 0 });
            taken += 1;
        }
        self.hypervisor.copy(&mut copies);
        let mut copies = copies.iter();
        let mut plan = plan.iter();
        for (offer, slots) in offers.iter_mut().zip(planned) {
            for slot in plan.by_ref().take(slots.into()) {
                if let Some(fault) = respond(&mut self.ring, slot, &mut copies) {
                    offer.outcome = fault;
                }
            }
        }
        Ok(taken)
    }

    /// [`plan`](Self::plan) for a frame that [is short](is_short): no slots to split it over.
    #[inline]
    fn plan_short<'a>(
        &mut self,
        buffers: &'a Buffers<'_, H>,
        frame: &'a Frame,
        body: Body<'a, H::Peer>,
        copies: &mut Copies<'a, H>,
        plan: &mut Plan,
    ) {
        let request = self.ring.peek(0);
        let offset = colour(self.ring.consumed(), frame.len);
        self.ring.consume(1);
        let buffer = buffers.find(GrantRef(request.gref));
        let header = Source::Private(frame.header());
        copies.push(GrantCopy::new(header, buffer.from(offset), frame.header_len.into()));
        let mut filled = u16::from(frame.header_len);
        for piece in &frame.pieces {
            let dest = buffer.from(offset + filled);
            copies.push(GrantCopy::new(body.source(*piece, 0), dest, piece.len));
            filled += piece.len;
        }
        plan.push(Planned::Data {
            id: request.id,
            offset,
            len: filled,
            flags: flags_of(frame.checksum),
            copies: frame.pieces.len() as u8 + 1,
        });
    }

    /// Reserves the slots of one packet of `len` bytes and notes the copies that fill them.
    /// The caller has checked that there is room for all of it.
    #[expect(clippy::too_many_arguments, reason = "one packet, and the two lists it goes to")]
    #[inline]
    fn plan<'a>(
        &mut self,
        buffers: &'a Buffers<'_, H>,
        len: u32,
        flags: u16,
        gso: Option<Gso>,
        mut next: impl FnMut(u16) -> Option<(Source<'a, H::Peer>, u16)>,
        copies: &mut Copies<'a, H>,
        plan: &mut Plan,
    ) {
        let mut left = len;
        let mut first = true;
        while left > 0 {
            let request = self.ring.peek(0);
            let index = self.ring.consumed();
            self.ring.consume(1);
            let offset = if first { colour(index, len) } else { 0 };
            // At most a page.
            let size = left.min(PAGE_SIZE as u32 - u32::from(offset)) as u16;
            left -= u32::from(size);
            let buffer = buffers.find(GrantRef(request.gref));
            let before = copies.len();
            let mut filled = 0;
            while filled < size {
                let Some((source, run)) = next(size - filled) else { break };
                copies.push(GrantCopy::new(source, buffer.from(offset + filled), run));
                filled += run;
            }
            let more = if left > 0 { rx_flags::MORE_DATA } else { 0 };
            let extra = gso.filter(|_| first);
            let announced = if extra.is_some() { rx_flags::EXTRA_INFO } else { 0 };
            plan.push(Planned::Data {
                id: request.id,
                offset,
                len: size,
                flags: if first { flags } else { 0 } | more | announced,
                copies: (copies.len() - before) as u8,
            });
            if let Some(info) = extra.and_then(gso_extra) {
                // The extra overlays a response, so a request is spent on it.
                self.ring.consume(1);
                plan.push(Planned::Extra(info));
            }
            first = false;
        }
    }

    /// Delivers one frame whose offloads the frontend lacks: made whole in private memory,
    /// then finished there.
    fn deliver_in_software<'a>(
        &mut self,
        body: Body<'a, H::Peer>,
        buffers: &Buffers<'_, H>,
        offer: &mut Offer<'a>,
        need: Need,
        now: Duration,
    ) -> Result<usize, Fault> {
        let frame = offer.frame;
        let (slots, longest) = match (need, frame.gso) {
            (Need::Segment, Some(gso)) => slots_of_segments(frame, gso),
            _ => (slots_of(frame.len, None), frame.len),
        };
        let scattered = longest > PAGE_SIZE as u32 && !self.features.sg;
        if slots as usize > SEGMENTS_MAX || scattered {
            offer.outcome = Outcome::Dropped(DropReason::TooLarge);
            return Ok(1);
        }
        if !self.has_room(slots, now)? {
            offer.outcome = self.without_room();
            return Ok(usize::from(offer.outcome != Outcome::Waiting));
        }
        let mut scratch = self.scratch.take().unwrap_or_else(|| vec![0; FRAME_MAX].into());
        let whole = &mut scratch[..frame.len as usize];
        offer.outcome = match linearise(&self.hypervisor, frame, body, whole) {
            Err(fault) => fault,
            Ok(()) => match (need, frame.gso) {
                (Need::Segment, Some(gso)) => self.deliver_segments(buffers, frame, whole, gso),
                _ => self.deliver_finished(buffers, frame, whole),
            },
        };
        self.scratch = Some(scratch);
        Ok(1)
    }

    /// Completes the checksum of a whole frame and delivers it.
    fn deliver_finished(
        &mut self,
        buffers: &Buffers<'_, H>,
        frame: &Frame,
        whole: &mut [u8],
    ) -> Outcome {
        if offload::complete_checksum(whole, &frame.headers).is_err() {
            return Outcome::Dropped(DropReason::Malformed);
        }
        let mut rest = &*whole;
        let next = |max| take(&mut rest, max);
        if self.flips.is_some() {
            return self.flip(frame.len, 0, None, next);
        }
        let mut copies = Copies::<H>::new();
        let mut plan = Plan::new();
        self.plan(buffers, frame.len, 0, None, next, &mut copies, &mut plan);
        self.perform(&mut copies, &plan)
    }

    /// Cuts a whole frame into segments and delivers them.
    fn deliver_segments(
        &mut self,
        buffers: &Buffers<'_, H>,
        frame: &Frame,
        whole: &[u8],
        gso: Gso,
    ) -> Outcome {
        let Ok(mut segments) = Segmenter::new(whole, &frame.headers, gso) else {
            return Outcome::Dropped(DropReason::Malformed);
        };
        let mut headers = [[0; offload::MAX_HEADER]; SEGMENTS];
        let mut outcome = Outcome::Delivered;
        loop {
            let made: ArrayVec<_, SEGMENTS> =
                headers.iter_mut().map_while(|header| segments.next(header)).collect();
            let mut copies = Copies::<H>::new();
            let mut plan = Plan::new();
            for (segment, header) in made.iter().zip(&headers) {
                let mut head = &header[..segment.header_len];
                let mut payload = &whole[segment.payload.clone()];
                let len = (head.len() + payload.len()) as u32;
                let next = |max| take(&mut head, max).or_else(|| take(&mut payload, max));
                if self.flips.is_some() {
                    outcome = worse(outcome, self.flip(len, 0, None, next));
                } else {
                    self.plan(buffers, len, 0, None, next, &mut copies, &mut plan);
                }
            }
            if made.is_empty() {
                return outcome;
            }
            self.hypervisor.note(Counted::Segments, made.len() as u64);
            if !plan.is_empty() {
                outcome = worse(outcome, self.perform(&mut copies, &plan));
            }
        }
    }

    fn perform(&mut self, copies: &mut [GrantCopy<'_, H::Peer>], plan: &Plan) -> Outcome {
        self.hypervisor.copy(copies);
        let mut copies = copies.iter();
        let mut outcome = Outcome::Delivered;
        for slot in plan {
            if let Some(fault) = respond(&mut self.ring, slot, &mut copies) {
                outcome = fault;
            }
        }
        outcome
    }
}

/// What became of a frame of which one part after the other was delivered.
fn worse(before: Outcome, part: Outcome) -> Outcome {
    if part == Outcome::Delivered { before } else { part }
}

/// Writes one response; answers what went wrong with its copies, if anything did.
#[inline]
fn respond<'a, 'c: 'a, P: 'a + 'c>(
    ring: &mut BackRing<Rx, impl SharedPage>,
    slot: &Planned,
    copies: &mut impl Iterator<Item = &'a GrantCopy<'c, P>>,
) -> Option<Outcome> {
    match slot {
        Planned::Extra(info) => {
            ring.respond(zerocopy::transmute!(*info));
            None
        }
        Planned::Data { id, offset, len, flags, copies: count } => {
            let mut fault = None;
            for copy in copies.take((*count).into()) {
                fault = match copy.status {
                    CopyStatus::Okay => fault,
                    CopyStatus::BadSource => Some(Outcome::SourceFault),
                    CopyStatus::BadDest => Some(Outcome::Dropped(DropReason::MemoryFault)),
                };
            }
            // A page's length fits the status.
            let status = if fault.is_none() { *len as i16 } else { status::ERROR };
            ring.respond(RxResponse { id: *id, offset: *offset, flags: *flags, status });
            fault
        }
    }
}

fn take<'a, P>(rest: &mut &'a [u8], max: u16) -> Option<(Source<'a, P>, u16)> {
    let len = rest.len().min(max.into());
    let (run, after) = rest.split_at(len);
    *rest = after;
    // At most `max`.
    (len > 0).then_some((Source::Private(run), len as u16))
}

/// Whether a frame fits one buffer and needs nothing done to it, as most do.
#[inline]
fn is_short(frame: &Frame) -> bool {
    frame.gso.is_none() && frame.checksum != Checksum::Partial && frame.len <= COLOUR_MAX
}

#[inline]
fn need_of(frame: &Frame, features: Features) -> Need {
    offload::need(&frame.headers, frame.checksum, frame.gso, features)
}

/// Slots a packet takes: its pages, and one for the GSO extra.
#[inline]
fn slots_of(len: u32, gso: Option<Gso>) -> u32 {
    len.div_ceil(PAGE_SIZE as u32) + u32::from(gso.is_some())
}

/// Slots that all segments of a frame take, and the bytes of the longest of them. The size is
/// the sending guest's word: a segment may be longer than a page and take several slots.
fn slots_of_segments(frame: &Frame, gso: Gso) -> (u32, u32) {
    let header = u32::from(frame.headers.payload_offset);
    let payload = frame.len - header;
    let size = u32::from(gso.size).clamp(1, payload.max(1));
    let (full, rest) = (payload / size, payload % size);
    let last = if rest > 0 || full == 0 { slots_of(header + rest, None) } else { 0 };
    (full * slots_of(header + size, None) + last, header + size.min(payload))
}

#[inline]
fn colour(index: u32, len: u32) -> u16 {
    if len > COLOUR_MAX { 0 } else { (index % 32) as u16 * COLOUR_STEP }
}

#[inline]
fn flags_of(checksum: Checksum) -> u16 {
    match checksum {
        Checksum::Partial => rx_flags::CSUM_BLANK | rx_flags::DATA_VALIDATED,
        Checksum::Validated => rx_flags::DATA_VALIDATED,
        Checksum::Unknown => 0,
    }
}

fn gso_extra(gso: Gso) -> Option<ExtraInfo> {
    let extra = Extra::Gso { size: gso.size.try_into().ok()?, kind: gso.kind, features: 0 };
    extra.encode(false).ok()
}
