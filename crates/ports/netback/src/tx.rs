//! The transmit side of a queue: frames from the guest.

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths and counts here are bounded by a page, a frame or a batch"
)]

use std::sync::Arc;

use arrayvec::ArrayVec;
use frame::{Body, Frame, HEADER_MAX, Outcome, PIECES_MAX, Piece, WINDOW, Window};
use hypervisor::{Counted, EventChannel, GrantRef, Hypervisor, PAGE_SIZE};
use offload::{Checksum, Gso, GsoKind};
use ring::netif::Tx;
use ring::{BackRing, RegionPage, SharedPage};
use wire::headers::{Headers, Network, Transport};
use wire::netif::{TxRequest, TxResponse, status, tx_flags};

use crate::channel::Channel;
use crate::request::{FRAME_MIN, Fault, Packet};

/// A TX ring and the frames taken off it that are not yet answered.
pub struct TxQueue<H: Hypervisor> {
    hypervisor: H,
    peer: H::Peer,
    ring: BackRing<Tx, RegionPage<H::Mapping>>,
    event: Arc<H::Event>,
    channel: Channel<H>,
    window: Window,
    /// What is owed to the frontend for the frame in each slot of the window.
    owed: Box<[Owed]>,
    packet: Packet,
    refused: u64,
}

/// The requests that made up a frame.
#[derive(Clone, Debug, Default)]
struct Owed {
    /// Where on the ring the first of them lies.
    index: u32,
    ids: ArrayVec<u16, PIECES_MAX>,
    extras: u8,
}

impl<H: Hypervisor> TxQueue<H> {
    pub(crate) fn new(
        hypervisor: H,
        peer: H::Peer,
        ring: BackRing<Tx, RegionPage<H::Mapping>>,
        event: Arc<H::Event>,
        channel: Channel<H>,
    ) -> Self {
        let owed = vec![Owed::default(); WINDOW].into();
        let packet = Packet::default();
        let window = Window::new();
        Self { hypervisor, peer, ring, event, channel, window, owed, packet, refused: 0 }
    }

    /// The frames in hand.
    #[inline]
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Does `work`, the delivery of a batch, with the memory that their bodies lie in. What the
    /// frontend has kept mapped stays so until it is done.
    #[inline]
    pub fn with_body<R>(&self, work: impl FnOnce(Body<'_, H::Peer>) -> R) -> R {
        self.channel.with_body(&self.peer, work)
    }

    /// Whether headers come beside the ring.
    pub(crate) fn takes_headers(&self) -> bool {
        self.channel.is_supplied()
    }

    /// The doorbell the frontend rings for this queue.
    pub fn event(&self) -> &Arc<H::Event> {
        &self.event
    }

    /// Packets answered with an error since the last call: malformed, or their memory could
    /// not be read.
    pub fn take_refused(&mut self) -> u64 {
        std::mem::take(&mut self.refused)
    }

    /// Takes packets off the ring until it is empty or the window is full, and fetches their
    /// headers in one batch. Answers how many frames are new.
    ///
    /// A ring at most: of packets that are refused the frontend learns when it is told of their
    /// answers, so it can not go on putting more behind them with the worker in the loop.
    pub fn receive(&mut self) -> Result<usize, Fault> {
        let mut fresh = 0u64;
        self.channel.prefetch(self.ring.consumed(), self.ring.unconsumed()?);
        while !self.window.is_full() {
            let present = self.ring.unconsumed()?;
            if present == 0 {
                break;
            }
            let first = self.ring.peek(0);
            let header = first.size.min(self.channel.supplied_max());
            let slot = match is_whole(first, header) {
                true => self.take_whole(first, header),
                false => self.take_chain(first, present)?,
            };
            fresh |= slot.map_or(0, |slot| 1 << slot);
        }
        if fresh == 0 {
            return Ok(0);
        }
        let Self { hypervisor, peer, channel, window, .. } = self;
        let unreadable = channel.fetch(hypervisor, peer, window, fresh);
        Ok(self.check(fresh, unreadable))
    }

    /// Takes a packet of one slot. Answers its place in the window.
    #[inline]
    fn take_whole(&mut self, request: TxRequest, header: u16) -> Option<usize> {
        let (slot, frame) = self.window.push()?;
        let index = self.ring.consumed();
        describe(frame, request.size, request.flags, None);
        self.channel.take_supplied(index, frame);
        self.ring.consume(1);
        let body = TxRequest { size: request.size - header, ..request };
        if body.size > 0 {
            frame.pieces.push(piece(body));
        }
        let owed = &mut self.owed[slot];
        owed.index = index;
        owed.ids.clear();
        owed.ids.push(request.id);
        owed.extras = 0;
        Some(slot)
    }

    /// Takes a packet of any shape, whose first slot has been read already. Answers its place
    /// in the window unless it was refused.
    fn take_chain(&mut self, first: TxRequest, present: u32) -> Result<Option<usize>, Fault> {
        let ring = &self.ring;
        let index = ring.consumed();
        let supplied = self.channel.supplied_max();
        self.packet.parse(present, supplied, |n| if n == 0 { first } else { ring.peek(n) })?;
        self.ring.consume(self.packet.slots);
        if self.packet.refused {
            self.refuse(index);
            return Ok(None);
        }
        let Some((slot, frame)) = self.window.push() else { return Ok(None) };
        let Packet { fragments, extras, len, gso, .. } = &self.packet;
        describe(frame, *len, fragments[0].flags, *gso);
        self.channel.take_supplied(index, frame);
        frame.pieces.extend(fragments.iter().copied().filter(|f| f.size > 0).map(piece));
        let owed = &mut self.owed[slot];
        owed.index = index;
        owed.ids.clear();
        owed.ids.extend(fragments.iter().map(|f| f.id));
        owed.extras = *extras;
        Ok(Some(slot))
    }

    /// Answers a packet that never becomes a frame, whose first request is `index`.
    fn refuse(&mut self, index: u32) {
        let ids = self.packet.fragments.iter().map(|f| f.id);
        answer(&mut self.ring, index, ids, self.packet.extras, status::ERROR);
        self.refused += 1;
    }

    /// Parses the fresh frames' headers; those that are unsound are answered and released.
    fn check(&mut self, fresh: u64, unreadable: u64) -> usize {
        let mut bad = unreadable;
        for (slot, frame) in self.window.slots_mut().iter_mut().enumerate() {
            if fresh & (1 << slot) != 0 && !settle(frame) {
                bad |= 1 << slot;
            }
        }
        if bad != 0 {
            let Self { hypervisor, channel, window, ring, owed, .. } = self;
            window.retain(|slot, frame| {
                let is_bad = bad & (1 << slot) != 0;
                if is_bad {
                    channel.release(hypervisor, slot, frame);
                    owed[usize::from(slot)].answer(ring, status::ERROR);
                }
                !is_bad
            });
            self.refused += u64::from(bad.count_ones());
        }
        (fresh & !bad).count_ones() as usize
    }

    /// Answers the frames that are settled, by what became of each (by slot), and keeps those
    /// that wait. The frontend is notified once, if it asked.
    pub fn finish(&mut self, outcomes: &[Outcome; WINDOW]) {
        let Self { hypervisor, channel, window, ring, owed, .. } = self;
        window.retain(|slot, frame| {
            let status = match outcomes[usize::from(slot)] {
                Outcome::Waiting => return true,
                Outcome::Delivered => status::OKAY,
                Outcome::Dropped(_) => status::DROPPED,
                Outcome::SourceFault => status::ERROR,
            };
            // Before the answer: then the guest may take its pages back.
            channel.release(hypervisor, slot, frame);
            owed[usize::from(slot)].answer(ring, status);
            false
        });
        self.publish();
    }

    /// Publishes what was answered.
    pub fn publish(&mut self) {
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

    /// Asks for an event at the next request; answers whether there is work already.
    pub fn arm(&mut self) -> Result<bool, Fault> {
        if self.window.is_full() {
            // No request can be taken before a frame in hand is settled.
            return Ok(false);
        }
        Ok(self.ring.arm()?)
    }
}

/// Whether a request is a sound packet by itself, as nearly every one is. `header` of its bytes
/// are not in its page.
#[inline]
fn is_whole(request: TxRequest, header: u16) -> bool {
    let chained = request.flags & (tx_flags::MORE_DATA | tx_flags::EXTRA_INFO) != 0;
    let end = usize::from(request.offset) + usize::from(request.size - header);
    !chained && request.size >= FRAME_MIN && end <= PAGE_SIZE
}

#[inline]
fn piece(request: TxRequest) -> Piece {
    Piece {
        gref: GrantRef(request.gref),
        offset: request.offset.into(),
        len: request.size,
        place: Piece::NOWHERE,
    }
}

/// Fills in what the requests say but the pieces.
#[inline]
fn describe(frame: &mut Frame, len: u16, flags: u16, gso: Option<Gso>) {
    frame.len = len.into();
    frame.header_len = u8::try_from(len).map_or(HEADER_LEN, |len| len.min(HEADER_LEN));
    frame.gso = gso;
    frame.checksum = checksum(flags);
    frame.pieces.clear();
}

const HEADER_LEN: u8 = HEADER_MAX as u8;

#[inline]
fn checksum(flags: u16) -> Checksum {
    if flags & tx_flags::CSUM_BLANK != 0 {
        Checksum::Partial
    } else if flags & tx_flags::DATA_VALIDATED != 0 {
        Checksum::Validated
    } else {
        Checksum::Unknown
    }
}

/// Parses the private header and checks it against what the frontend asked for. From here on
/// every frame is one that offloads and ports can rely on.
#[inline]
fn settle(frame: &mut Frame) -> bool {
    let Ok(headers) = Headers::parse(frame.header()) else { return false };
    frame.headers = headers;
    match (frame.checksum, frame.gso) {
        (Checksum::Partial, Some(gso)) => gso_fits(&headers, gso),
        // Segments need checksums; a sender that leaves the work to us must say where.
        (_, Some(_)) => false,
        (Checksum::Partial, None) => headers.checksum_location().is_some(),
        (_, None) => true,
    }
}

fn gso_fits(headers: &Headers, gso: Gso) -> bool {
    let network = match gso.kind {
        GsoKind::TcpV4 => Network::Ipv4,
        GsoKind::TcpV6 => Network::Ipv6,
    };
    headers.network == network && headers.transport == Transport::Tcp
}

impl Owed {
    #[inline]
    fn answer<P: SharedPage>(&self, ring: &mut BackRing<Tx, P>, status: i16) {
        answer(ring, self.index, self.ids.iter().copied(), self.extras, status);
    }
}

/// One response a request, from `index` on: the status for each fragment, NULL for each extra.
/// All of a packet's in one go: a backend that is killed leaves no packet half answered.
#[inline]
fn answer<P: SharedPage>(
    ring: &mut BackRing<Tx, P>,
    index: u32,
    ids: impl Iterator<Item = u16>,
    extras: u8,
    status: i16,
) {
    let (mut index, mut extras) = (index, extras);
    let mut respond = |id, status| {
        ring.answer(index, TxResponse { id, status });
        index = index.wrapping_add(1);
    };
    for id in ids {
        respond(id, status);
        // Right after the first, as Linux's netback does.
        for _ in 0..std::mem::take(&mut extras) {
            respond(0, status::NULL);
        }
    }
}
