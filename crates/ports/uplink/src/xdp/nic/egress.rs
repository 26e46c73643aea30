//! Frames for the wire of a NIC that is taken over.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::{Counted, Meter, PAGE_SIZE};
use offload::{Features, Gso, Need};
use port::{
    ALL_SEGMENTS, Body, Broken, BufferSupply, Doorbell, DropReason, Egress, Event, Finisher, Frame,
    Linear, Offer, Outcome, SEGMENTS_MAX, ScatterList,
};
use rustix::io::Errno;
use rustix::net::SendFlags;
use shm::{Piece, Region};

use super::{BEYOND_MTU, RX_BUFFERS, TX_BUFFERS, XdpNicSocket};
use crate::xdp::ring::{CompletionRing, Descriptor, TxRing};

/// Bytes of the shortest Ethernet frame, without its checksum. Not every driver pads what it finds in a buffer.
const SHORTEST: usize = 60;
/// Frames that wait are offered again after this, and after twice as long each time that no buffer has come back.
const LOOK: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(50)];
const TOO_LARGE: Outcome = Outcome::Dropped(DropReason::TooLarge);

/// The write side of a queue. The NIC has no offloads for AF_XDP, so all frames are finished here.
pub struct XdpNicEgress {
    wire: Wire,
    finisher: Finisher,
    /// Frames whose bodies have no addresses here.
    linear: Linear,
    /// Whether a batch of this call could not be copied: trying again with each frame behind it would copy most of them many times.
    copies_singly: bool,
    supply: BufferSupply,
    /// Announces buffers after a frame was left waiting.
    room: Arc<Doorbell>,
    waits: bool,
    /// The time between two looks at a queue that is full.
    look: Duration,
    meter: Arc<Meter>,
}

/// The buffers and rings of frames that go out.
struct Wire {
    socket: Arc<XdpNicSocket>,
    /// One region.
    memory: Arc<[Region]>,
    tx: TxRing,
    completion: CompletionRing,
    /// Buffers that hold no frame. The last one is used next: it is in the cache.
    free: Vec<u64>,
    /// Buffers that came back since the beginning.
    sent: u64,
}

impl XdpNicEgress {
    pub(super) fn new(
        socket: Arc<XdpNicSocket>,
        memory: Arc<[Region]>,
        tx: TxRing,
        completion: CompletionRing,
        meter: &Arc<Meter>,
    ) -> std::io::Result<Self> {
        let first = u64::from(RX_BUFFERS);
        let buffers = first..first + u64::from(TX_BUFFERS);
        let free = buffers.map(|n| n * PAGE_SIZE as u64).collect();
        let note = meter.clone();
        Ok(Self {
            wire: Wire { socket, memory, tx, completion, free, sent: 0 },
            finisher: Finisher::new(Features::NONE, move |what, n| note.note(what, n)),
            linear: Linear::default(),
            copies_singly: false,
            supply: BufferSupply::default(),
            room: Arc::new(Doorbell::new()?),
            waits: false,
            look: LOOK[0],
            meter: meter.clone(),
        })
    }

    /// Sends the first of these frames, or has it wait.
    fn offer(&mut self, body: Body<'_>, offers: &[Offer<'_>], now: Duration) -> Outcome {
        let frame = offers[0].frame;
        let need = self.finisher.need(frame);
        let buffers = if need == Need::Segment { frame.packets() as usize } else { 1 };
        // A frame of more segments is refused.
        if !self.wire.has_room(buffers.min(SEGMENTS_MAX)) {
            return self.supply.without_room(self.wire.sent, now);
        }
        self.send(body, offers, need).map_or_else(|outcome| outcome, |()| Outcome::Delivered)
    }

    fn send(&mut self, body: Body<'_>, offers: &[Offer<'_>], need: Need) -> Result<(), Outcome> {
        let frame = offers[0].frame;
        let beyond = frame.headers.l3_offset.into();
        match (need, frame.gso) {
            (Need::Segment, Some(gso)) => self.segment(body, frame, gso),
            _ if self.wire.is_too_long(frame.len as usize, beyond) => Err(TOO_LARGE),
            (Need::Nothing, _) => self.copy(body, offers),
            _ => self.wire.push(self.finisher.complete(frame, body)?),
        }
    }

    /// Sends the first of these frames as it is.
    fn copy(&mut self, body: Body<'_>, offers: &[Offer<'_>]) -> Result<(), Outcome> {
        let frame = offers[0].frame;
        if self.linear.is_empty() {
            if let Some(list) = ScatterList::of(frame, body) {
                self.meter.note(Counted::DriverBytes, frame.len.into());
                return self.wire.gather(list.all());
            }
            if !self.copies_singly {
                self.copy_run(body, offers);
                self.copies_singly = self.linear.is_empty();
            }
        }
        match self.linear.take() {
            Some(whole) => self.wire.push(whole),
            None => self.wire.push(self.finisher.whole(frame, body)?),
        }
    }

    /// Copies the frames at the beginning that are sent as they are, in one batch.
    fn copy_run(&mut self, body: Body<'_>, offers: &[Offer<'_>]) {
        let Self { finisher, linear, meter, wire, .. } = self;
        let is_sent_so = |frame: &&Frame| {
            let beyond = frame.headers.l3_offset.into();
            finisher.need(frame) == Need::Nothing && !wire.is_too_long(frame.len as usize, beyond)
        };
        let frames = offers.iter().map(|offer| offer.frame).take_while(is_sent_so);
        meter.note(Counted::DriverBytes, linear.fill(frames, body));
    }

    /// Sends all segments of a frame. There are buffers for them.
    fn segment(&mut self, body: Body<'_>, frame: &Frame, gso: Gso) -> Result<(), Outcome> {
        let Self { wire, finisher, .. } = self;
        let beyond = frame.headers.l3_offset.into();
        let send = |bytes: &[u8]| match wire.is_too_long(bytes.len(), beyond) {
            true => Err(TOO_LARGE),
            false => wire.push(bytes),
        };
        finisher.contiguous_segments(frame, gso, body, false, ALL_SEGMENTS, send).map(drop)
    }
}

impl Egress for XdpNicEgress {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        self.linear.clear();
        self.copies_singly = false;
        // Not each time: the kernel's lines of the ring would have to come here for a few buffers.
        if self.wire.free.len() < TX_BUFFERS as usize / 2 {
            self.wire.reclaim();
        }
        self.supply.delivered(self.wire.sent, TX_BUFFERS.into());
        for n in 0..offers.len() {
            let outcome = self.offer(body, &offers[n..], now);
            offers[n].outcome = outcome;
            if outcome.is_offered_again() {
                self.waits = true;
                break;
            }
        }
        self.wire.publish();
        Ok(())
    }

    fn coalesces(&self) -> bool {
        true
    }

    /// Looks after a queue that is full: the kernel announces neither buffers that come back nor that it takes frames again.
    fn flush(&mut self, now: Duration, _: bool) -> Option<Duration> {
        if !self.waits && !self.wire.tx.needs_wakeup() {
            return None;
        }
        let before = self.wire.sent;
        self.wire.kick();
        self.wire.reclaim();
        self.look = match self.wire.sent == before {
            true => (self.look * 2).min(LOOK[1]),
            false => LOOK[0],
        };
        if self.waits && self.wire.free.len() >= SEGMENTS_MAX {
            self.waits = false;
            self.room.ring();
        }
        let is_done = !self.waits && !self.wire.tx.needs_wakeup();
        (!is_done).then(|| now + self.look)
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.room.clone())
    }

    fn is_stalled(&self) -> bool {
        self.supply.is_stalled()
    }
}

impl Wire {
    /// Whether a packet is longer than the NIC takes: `len` bytes, of which so many are in front of it.
    fn is_too_long(&self, len: usize, beyond: usize) -> bool {
        let beyond = beyond.min(BEYOND_MTU as usize);
        len > PAGE_SIZE || len.saturating_sub(beyond) > self.socket.mtu() as usize
    }

    /// Whether there are so many buffers.
    fn has_room(&mut self, buffers: usize) -> bool {
        if self.free.len() < buffers {
            // Where the kernel copies, these come back at once.
            self.publish();
            self.reclaim();
        }
        self.free.len() >= buffers
    }

    /// Takes the buffers of frames that were sent.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion.take() {
            // The kernel returns what it was given.
            self.free.push(address & !(PAGE_SIZE as u64 - 1));
            self.sent += 1;
        }
    }

    /// Sends private bytes.
    fn push(&mut self, bytes: &[u8]) -> Result<(), Outcome> {
        self.gather([Piece::Private(bytes)])
    }

    /// Copies a frame, of a page at most, into a buffer, which the kernel gets with the next [`publish`](Self::publish).
    fn gather<'a>(&mut self, pieces: impl IntoIterator<Item = Piece<'a>>) -> Result<(), Outcome> {
        let Some(buffer) = self.free.last().copied() else {
            return Err(Outcome::Dropped(DropReason::NoRoom));
        };
        let memory = &self.memory[0];
        // An offset in memory that is mapped here.
        let start = usize::try_from(buffer).unwrap_or(usize::MAX);
        let mut len = 0;
        for piece in pieces {
            let at = start.saturating_add(len);
            len += match piece {
                Piece::Private(bytes) => bytes.len(),
                Piece::Shared { len, .. } => len,
            };
            if len > PAGE_SIZE {
                return Err(TOO_LARGE);
            }
            let copied = match piece {
                Piece::Private(bytes) => memory.copy_in(at, bytes),
                Piece::Shared { region, offset, len } => {
                    Region::copy_between(region, offset, memory, at, len)
                }
            };
            copied.map_err(|_| Outcome::SourceFault)?;
        }
        if len < SHORTEST {
            // Else bytes of an earlier frame would go out.
            memory.zero(start + len, SHORTEST - len).map_err(|_| Outcome::SourceFault)?;
            len = SHORTEST;
        }
        self.free.pop();
        // At most a page.
        self.tx.push(Descriptor::new(buffer, u32::try_from(len).unwrap_or(u32::MAX)));
        Ok(())
    }

    /// The kernel sends what was pushed.
    fn publish(&mut self) {
        self.tx.publish();
        self.kick();
    }

    /// Tells the kernel of frames, if it wants to be told. Where it copies, it sends 32 for each call.
    fn kick(&self) {
        while self.tx.needs_wakeup() {
            let before = self.tx.position();
            let sent = rustix::net::send(&*self.socket, &[], SendFlags::DONTWAIT);
            if sent != Err(Errno::AGAIN) || self.tx.position() == before {
                // It looks by itself, or is told again later.
                return;
            }
        }
    }
}
