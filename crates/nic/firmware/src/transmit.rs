//! From the contexts' TX rings to the wire, and to other contexts.

use cdna::context::Enable;
use cdna::descriptor::FRAME_MAX;
use cdna::message::Permissions;
use cdna::{ContextId, Direction, DropReason, Flags};
use offload::{Checksum, Gso, MAX_HEADER};
use wire::ethernet::MacAddr;

use crate::bus::{Bus, Metadata, Sent, Wire};
use crate::contexts::{Contexts, Route};
use crate::finish::{Form, finish};
use crate::gather::Chain;
use crate::line_rate::{LineRate, WIRE_OVERHEAD};
use crate::schedule::Schedule;

/// Most frames that are sent per step.
const BUDGET: u32 = 128;

/// The transmitting half of the card.
#[derive(Debug)]
pub(crate) struct Transmitter {
    schedule: Schedule,
    line: LineRate,
    segments: bool,
    buffer: Box<[u8; FRAME_MAX]>,
    /// The buffer holds a frame that the wire has not taken.
    staged: Option<Staged>,
    pub(crate) wire_frames: u64,
}

/// A frame in the buffer, on its way to the wire.
#[derive(Clone, Copy, Debug)]
struct Staged {
    context: ContextId,
    len: usize,
    metadata: Metadata,
    /// What a copy of it costs its context.
    cost: i64,
    /// This many of its segments were sent.
    sent: usize,
}

/// Why no more can be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// The line rate is used up until this time.
    Until(u64),
    /// The wire is busy.
    Wire,
}

/// What a run did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) frames: u32,
    pub(crate) blocked: Option<Blocked>,
}

impl Transmitter {
    /// With a line rate in Mbit/s, 0 for none, and perhaps segmentation.
    pub(crate) fn new(rate_mbps: u32, segments: bool) -> Self {
        Self {
            schedule: Schedule::new(),
            line: LineRate::new(rate_mbps),
            segments,
            buffer: Box::new([0; FRAME_MAX]),
            staged: None,
            wire_frames: 0,
        }
    }

    /// A context may have frames to send.
    pub(crate) fn activate(&mut self, context: ContextId) {
        self.schedule.activate(context);
    }

    /// A context is not served any more: its frame in the buffer is dropped, also if a part of it was sent.
    pub(crate) fn release(&mut self, context: ContextId) {
        self.schedule.reset(context);
        self.staged.take_if(|staged| staged.context == context);
    }

    /// Whether there may be frames to send.
    pub(crate) fn has_work(&self) -> bool {
        self.staged.is_some() || !self.schedule.is_empty()
    }

    /// Sends frames within a budget.
    pub(crate) fn run<B: Bus>(
        &mut self,
        contexts: &mut Contexts<B>,
        wire: &mut impl Wire,
        now: u64,
    ) -> Progress {
        let mut frames = 0;
        // A context that was stopped sends nothing more.
        self.staged.take_if(|staged| contexts.get(staged.context).is_none());
        if let Some(mut staged) = self.staged.take() {
            let blocked = self.send(&mut staged, contexts, wire, now);
            if blocked.is_some() {
                self.staged = Some(staged);
                return Progress { frames, blocked };
            }
        }
        while frames < BUDGET {
            let Some(context) = self.schedule.turn() else { break };
            match self.next_frame(context, contexts, now) {
                Next::Frame(mut staged) => {
                    frames += 1;
                    let blocked = self.forward(&mut staged, contexts, wire, now);
                    if blocked.is_some() {
                        self.staged = Some(staged);
                        return Progress { frames, blocked };
                    }
                }
                Next::LaterTurn => self.schedule.end_turn(),
                Next::Nothing => self.schedule.deactivate(context),
            }
        }
        Progress { frames, blocked: None }
    }

    /// Takes the next frame of a context into the buffer, if its deficit covers the frame.
    #[inline]
    fn next_frame<B: Bus>(&mut self, id: ContextId, contexts: &mut Contexts<B>, now: u64) -> Next {
        let Some((context, bus)) = contexts.get(id) else { return Next::Nothing };
        if !context.enable.contains(Enable::TX) {
            return Next::Nothing;
        }
        let chain = match Chain::next(&mut context.tx, &context.pages) {
            Ok(Some(chain)) => chain,
            Ok(None) => return Next::Nothing,
            Err(violation) => {
                contexts.stop(id, Direction::Tx, violation);
                return Next::Nothing;
            }
        };
        let cost = cost_of(&chain);
        if !self.schedule.admits(id, cost) {
            return Next::LaterTurn;
        }
        let frame = &mut self.buffer[..chain.len];
        if let Err(violation) = chain.gather(&mut context.tx, bus, id, frame) {
            contexts.stop(id, Direction::Tx, violation);
            return Next::Nothing;
        }
        self.schedule.charge(id, cost);
        context.tx_interrupts.note(1, context.tx.next(), now);
        context.statistics.tx_frames += 1;
        context.statistics.tx_bytes += chain.len as u64;
        contexts.note_sent(id);
        let metadata = metadata_of(&chain);
        Next::Frame(Staged { context: id, len: chain.len, metadata, cost, sent: 0 })
    }

    /// Delivers the frame in the buffer within the card and sends it, as its destination says.
    #[inline]
    fn forward<B: Bus>(
        &mut self,
        staged: &mut Staged,
        contexts: &mut Contexts<B>,
        wire: &mut impl Wire,
        now: u64,
    ) -> Option<Blocked> {
        let id = staged.context;
        let frame = &mut self.buffer[..staged.len];
        let [destination, source] = addresses(frame);
        let (context, _) = contexts.get(id)?;
        let assignment = &context.assignment;
        if source != assignment.mac && !assignment.permissions.contains(Permissions::ANY_SOURCE) {
            context.drop_frame(DropReason::FalseSource);
            return None;
        }
        if staged.metadata.gso.is_some() && !self.segments {
            context.drop_frame(DropReason::Offload);
            return None;
        }
        let route = contexts.route(destination, Some(id));
        let is_forwarded = match route {
            // A station does not send to itself.
            Route::One(to) => to != id,
            Route::Group(_) | Route::Beyond => true,
            Route::Nowhere => false,
        };
        if !is_forwarded {
            contexts.get(id)?.0.drop_frame(DropReason::NotForwarded);
            return None;
        }
        let copies = contexts.deliver(route, frame, &mut staged.metadata, now);
        match (route, copies) {
            (_, Err(_)) => {
                contexts.get(id)?.0.drop_frame(DropReason::Offload);
                None
            }
            (Route::One(_) | Route::Nowhere, Ok(_)) => None,
            (Route::Group(_) | Route::Beyond, Ok(copies)) => {
                // A flooded frame costs what all of its copies cost.
                if copies > 0 {
                    self.schedule.charge(id, i64::from(copies) * staged.cost);
                }
                self.send(staged, contexts, wire, now)
            }
        }
    }

    /// Sends the frame in the buffer, or what is left of it.
    #[inline]
    fn send<B: Bus>(
        &mut self,
        staged: &mut Staged,
        contexts: &mut Contexts<B>,
        wire: &mut impl Wire,
        now: u64,
    ) -> Option<Blocked> {
        if !self.line.is_ready(now) {
            return Some(Blocked::Until(self.line.retry_at()));
        }
        let frame = &mut self.buffer[..staged.len];
        let form = match finish(frame, &mut staged.metadata, wire.features()) {
            Ok(form) => form,
            Err(_) => {
                contexts.get(staged.context)?.0.drop_frame(DropReason::Offload);
                return None;
            }
        };
        let sent = match form {
            Form::Whole => {
                let sent = wire.send(frame, &[], staged.metadata);
                if sent == Sent::Sent {
                    self.line.take(staged.len + WIRE_OVERHEAD, now);
                    self.wire_frames += 1;
                }
                sent
            }
            Form::Segments(mut segmenter, frame) => {
                let metadata = Metadata { checksum: Checksum::Validated, gso: None };
                let mut header = [0; MAX_HEADER];
                let (mut sent, mut number) = (Sent::Sent, 0);
                while let Some(segment) = segmenter.next(&mut header) {
                    number += 1;
                    if number <= staged.sent {
                        continue;
                    }
                    let (head, body) = (&header[..segment.header_len], &frame[segment.payload]);
                    sent = wire.send(head, body, metadata);
                    if sent != Sent::Sent {
                        break;
                    }
                    staged.sent = number;
                    self.line.take(head.len() + body.len() + WIRE_OVERHEAD, now);
                    self.wire_frames += 1;
                }
                sent
            }
        };
        match sent {
            Sent::Sent => None,
            Sent::Busy => Some(Blocked::Wire),
            Sent::Refused => {
                contexts.get(staged.context)?.0.drop_frame(DropReason::Wire);
                None
            }
        }
    }
}

/// What a context has to send.
enum Next {
    /// A frame, which is in the buffer.
    Frame(Staged),
    /// A frame that its deficit does not cover.
    LaterTurn,
    Nothing,
}

/// What a frame costs its sender: bytes on the wire.
#[inline]
fn cost_of(chain: &Chain) -> i64 {
    let segments =
        chain.offload.map_or(1, |offload| chain.len / usize::from(offload.size.get()) + 1);
    // A frame of 64 KiB in segments of one byte is refused, but counts as what it asks for: below 2 MiB.
    i64::try_from(chain.len + segments * WIRE_OVERHEAD).unwrap_or(i64::MAX)
}

#[inline]
fn metadata_of(chain: &Chain) -> Metadata {
    let gso =
        chain.offload.map(|offload| Gso { kind: offload.kind.into(), size: offload.size.get() });
    // The checksums of segments are unknown before there are segments.
    let is_blank = gso.is_some() || chain.flags.contains(Flags::CSUM_BLANK);
    let checksum = if is_blank { Checksum::Partial } else { Checksum::Unknown };
    Metadata { checksum, gso }
}

/// The destination and source of a frame, which holds an Ethernet header.
#[inline]
pub(crate) fn addresses(frame: &[u8]) -> [MacAddr; 2] {
    let address = |at| frame.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or_default();
    [MacAddr(address(0)), MacAddr(address(6))]
}
