//! Frames for the wire of a NIC that is taken over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hypervisor::{Counted, Meter, PAGE_SIZE};
use offload::{Features, Need};
use port::{
    Body, Broken, BufferSupply, Doorbell, DropReason, Egress, Event, Finisher, Frame, Linear,
    Offer, Outcome, ScatterList,
};
use rustix::io::Errno;
use rustix::net::SendFlags;
use shm::{Iovec, Region};

use super::watch::Checks;
use super::{BEYOND_MTU, RX_BUFFERS, TX_BUFFERS, XdpNicSocket};
use crate::xdp::ring::{CompletionRing, Descriptor, TxRing};

/// Bytes of the shortest Ethernet frame, without its checksum. Not every driver pads what it finds in a buffer.
const SHORTEST: usize = 60;
/// Segments of one [`deliver`](Egress::deliver): others wait for the queue's lock, and for the worker, until it returns. A frame of 64 KiB
/// in segments of the usual MTU needs a third of them.
const SEGMENTS: u16 = 128;
const _: () = assert!(TX_BUFFERS > SEGMENTS as u32, "else a frame would wait for ever");
/// Frames that the kernel sends for one call, where it copies (`TX_BATCH_SIZE`).
const KERNELS_BATCH: u32 = 32;
const TOO_LARGE: Outcome = Outcome::Dropped(DropReason::TooLarge);

/// A write side of a queue. The NIC has no offloads for AF_XDP, so all frames are finished here.
pub struct XdpNicEgress {
    wire: Wire,
    finisher: Finisher,
    /// Frames whose bodies have no addresses here.
    linear: Linear,
    /// Whether a batch of this call could not be copied: trying again with each frame behind it would copy most of them many times.
    copies_singly: bool,
    supply: BufferSupply,
    /// Whether a frame was left waiting.
    waits: bool,
    /// At the queue while it is full: the kernel announces neither buffers that come back nor that it takes frames again.
    checks: Checks,
    /// Segments that were made in this call.
    cut: usize,
}

/// The rings of frames that go out. They are locked for moments only, never while a frame is copied: a worker may sleep then in the memory of a
/// guest, and another handle serves the queue.
struct Rings {
    tx: TxRing,
    completion: CompletionRing,
    /// Buffers that hold no frame. The last one is used next: it is in the cache.
    free: Vec<u64>,
    /// Buffers that came back since the beginning.
    sent: u64,
}

/// Makes write sides of a queue.
#[derive(Clone)]
pub struct XdpNicSender {
    socket: Arc<XdpNicSocket>,
    memory: Arc<[Region]>,
    rings: Arc<Mutex<Rings>>,
    room: Arc<Doorbell>,
    meter: Arc<Meter>,
}

/// What one write side has of the queue's buffers in a call.
struct Wire {
    queue: XdpNicSender,
    /// Taken from the free ones. The last one is used next.
    taken: Vec<u64>,
    /// Frames that are to be sent.
    filled: Vec<Descriptor>,
    /// The MTU in this call, in bytes.
    mtu: usize,
    /// Buffers that had come back when that was last checked.
    sent: u64,
}

impl XdpNicSender {
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
        let rings = Arc::new(Mutex::new(Rings { tx, completion, free, sent: 0 }));
        Ok(Self { socket, memory, rings, room: Arc::new(Doorbell::new()?), meter: meter.clone() })
    }

    /// The write side in use, except one in which a worker sleeps.
    #[must_use]
    pub fn egress(&self) -> XdpNicEgress {
        let (meter, sent) = (self.meter.clone(), self.rings().sent);
        let (taken, filled) = (Vec::new(), Vec::new());
        XdpNicEgress {
            wire: Wire { queue: self.clone(), taken, filled, mtu: 0, sent },
            finisher: Finisher::new(Features::NONE, move |what, n| meter.note(what, n)),
            linear: Linear::default(),
            copies_singly: false,
            supply: BufferSupply::default(),
            waits: false,
            checks: Checks::new(),
            cut: 0,
        }
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl XdpNicEgress {
    /// The state in the middle of a call with `frames` frames, in which a worker falls asleep.
    #[cfg(test)]
    pub(crate) fn fall_asleep(&mut self, frames: usize) {
        self.wire.begin(frames);
    }

    /// Buffers that hold no frame, and that nobody has taken.
    #[cfg(test)]
    pub(crate) fn free(&self) -> usize {
        self.wire.queue.rings().free.len()
    }

    /// The end of that call.
    #[cfg(test)]
    pub(crate) fn wake_up(&mut self) {
        self.wire.end();
    }

    /// Sends the first of these frames, or has it wait.
    fn offer(&mut self, body: Body<'_>, offers: &[Offer<'_>], now: Duration) -> Outcome {
        let frame = offers[0].frame;
        let need = self.finisher.need(frame);
        if need == Need::Segment {
            return self.offer_segments(body, &offers[0], now);
        }
        if !self.has_room(1, now) {
            return self.supply.without_room(self.wire.sent, now);
        }
        self.send(body, offers, need).map_or_else(|outcome| outcome, |()| Outcome::Delivered)
    }

    fn send(&mut self, body: Body<'_>, offers: &[Offer<'_>], need: Need) -> Result<(), Outcome> {
        let frame = offers[0].frame;
        let beyond = frame.headers.l3_offset.into();
        match need {
            _ if self.wire.is_too_long(frame.len as usize, beyond) => Err(TOO_LARGE),
            Need::Nothing => self.copy(body, offers),
            _ => self.wire.push(self.finisher.complete(frame, body)?),
        }
    }

    /// Whether there are `buffers` buffers. Checks for them if that is due.
    fn has_room(&mut self, buffers: usize, now: Duration) -> bool {
        self.wire.take(buffers) || self.finds_room(buffers, now)
    }

    #[cold]
    fn finds_room(&mut self, buffers: usize, now: Duration) -> bool {
        if !self.checks.are_due(now) {
            return false;
        }
        self.check(now);
        let has_room = self.wire.take(buffers);
        if has_room {
            self.checks.renew();
        }
        has_room
    }

    /// Has the kernel send, and takes the buffers that come back. Where it copies, these may be there at once.
    fn check(&mut self, now: Duration) {
        let before = self.wire.sent;
        self.wire.publish();
        self.reclaim(now);
        self.checks.checked(self.wire.sent != before, now);
    }

    /// Takes the buffers of frames that were sent, and notices the end of a shortage.
    fn reclaim(&mut self, now: Duration) {
        self.wire.reclaim();
        self.supply.delivered(self.wire.sent, now);
    }

    /// Sends the first of these frames as it is.
    fn copy(&mut self, body: Body<'_>, offers: &[Offer<'_>]) -> Result<(), Outcome> {
        let frame = offers[0].frame;
        if self.linear.is_empty() {
            if let Some(list) = ScatterList::of(frame, body) {
                self.wire.queue.meter.note(Counted::DriverBytes, frame.len.into());
                return self.wire.gather(list.all());
            }
            if !self.copies_singly {
                self.copy_run(body, offers);
                self.copies_singly = self.linear.is_empty();
            }
        }
        match self.linear.take() {
            Some(whole) => self.wire.gather([whole]),
            None => self.wire.push(self.finisher.whole(frame, body)?),
        }
    }

    /// Copies the frames at the beginning that are sent as they are, in one batch.
    fn copy_run(&mut self, body: Body<'_>, offers: &[Offer<'_>]) {
        let Self { finisher, linear, wire, .. } = self;
        let is_sent_so = |frame: &&Frame| {
            let beyond = frame.headers.l3_offset.into();
            finisher.need(frame) == Need::Nothing && !wire.is_too_long(frame.len as usize, beyond)
        };
        let frames = offers.iter().map(|offer| offer.frame).take_while(is_sent_so);
        wire.queue.meter.note(Counted::DriverBytes, linear.fill(frames, body));
    }

    /// Sends the next segments of a frame, as many as this call may, or has it wait.
    #[inline(never)]
    fn offer_segments(&mut self, body: Body<'_>, offer: &Offer<'_>, now: Duration) -> Outcome {
        let left = offer.frame.packets().saturating_sub(offer.sent.into()).max(1) as usize;
        // A frame that fits in one call is not divided among two: that costs another copy.
        if self.cut > 0 && self.cut + left > SEGMENTS.into() {
            return Outcome::Partial { segments: offer.sent };
        }
        let next = left.min(SEGMENTS.into());
        if !self.has_room(next, now) {
            return self.supply.without_room(self.wire.sent, now);
        }
        self.cut += next;
        self.segment(body, offer).unwrap_or_else(|outcome| outcome)
    }

    /// Sends the next segments of a frame. There are buffers for them.
    fn segment(&mut self, body: Body<'_>, offer: &Offer<'_>) -> Result<Outcome, Outcome> {
        let Self { wire, finisher, .. } = self;
        let frame = offer.frame;
        let sent = offer.sent.saturating_add(SEGMENTS);
        let part = usize::from(offer.sent)..usize::from(sent);
        let beyond = frame.headers.l3_offset.into();
        let send = |bytes: &[u8]| match wire.is_too_long(bytes.len(), beyond) {
            true => Err(TOO_LARGE),
            false => wire.push(bytes),
        };
        let behind = finisher.contiguous_segments(frame, body, part, send)?;
        Ok(if behind == 0 { Outcome::Delivered } else { Outcome::Partial { segments: sent } })
    }

    /// Whether something is to be done that nothing announces.
    fn is_held_up(&self) -> bool {
        self.waits || self.supply.is_stalled() || self.wire.queue.rings().tx.needs_wakeup()
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
        self.cut = 0;
        // All frames of the call go by the same one.
        self.wire.mtu = self.wire.queue.socket.mtu() as usize;
        if self.wire.begin(offers.len()) {
            self.supply.delivered(self.wire.sent, now);
        }
        for n in 0..offers.len() {
            let outcome = self.offer(body, &offers[n..], now);
            offers[n].outcome = outcome;
            if outcome.is_offered_again() {
                self.waits |= outcome == Outcome::Waiting;
                break;
            }
        }
        self.wire.end();
        Ok(())
    }

    fn coalesces(&self) -> bool {
        true
    }

    /// Checks a queue that is full, when that is due: that a worker is idle empties no queue.
    fn flush(&mut self, now: Duration, _: bool) -> Option<Duration> {
        if !self.is_held_up() {
            return None;
        }
        if self.checks.are_due(now) {
            self.check(now);
        }
        if self.waits && self.wire.queue.rings().free.len() >= SEGMENTS.into() {
            self.waits = false;
            self.wire.queue.room.ring();
        }
        self.is_held_up().then(|| self.checks.due())
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.wire.queue.room.clone())
    }

    fn is_stalled(&self) -> bool {
        self.supply.is_stalled()
    }
}

impl Wire {
    /// Whether a packet is longer than the NIC takes: `len` bytes, of which `beyond` are in front of it.
    fn is_too_long(&self, len: usize, beyond: usize) -> bool {
        let beyond = beyond.min(BEYOND_MTU as usize);
        len > PAGE_SIZE || len.saturating_sub(beyond) > self.mtu
    }

    /// A call with `frames` frames begins. Returns whether it has checked for buffers that came back.
    fn begin(&mut self, frames: usize) -> bool {
        let rings = &mut *self.queue.rings();
        // Not each time: the kernel's lines of the ring would have to come here for a few buffers.
        let reclaims = rings.free.len() < TX_BUFFERS as usize / 2;
        if reclaims {
            rings.reclaim();
            self.sent = rings.sent;
        }
        rings.give(frames, &mut self.taken);
        reclaims
    }

    /// The call ends: its frames are sent, and buffers that it did not need go back.
    fn end(&mut self) {
        // Those that were dropped are no reason for a system call.
        if !self.filled.is_empty() {
            self.publish();
        }
        self.queue.rings().free.append(&mut self.taken);
    }

    /// Whether it has `buffers` buffers, or gets them.
    fn take(&mut self, buffers: usize) -> bool {
        if self.taken.len() < buffers {
            self.queue.rings().give(buffers, &mut self.taken);
        }
        self.taken.len() >= buffers
    }

    /// Takes the buffers of frames that were sent.
    fn reclaim(&mut self) {
        let mut rings = self.queue.rings();
        rings.reclaim();
        self.sent = rings.sent;
    }

    /// Sends private bytes.
    fn push(&mut self, bytes: &[u8]) -> Result<(), Outcome> {
        self.gather([Iovec::Private(bytes)])
    }

    /// Copies a frame, of a page at most, into a buffer, which the kernel gets with the next [`publish`](Self::publish).
    fn gather<'a>(&mut self, iovecs: impl IntoIterator<Item = Iovec<'a>>) -> Result<(), Outcome> {
        let Some(buffer) = self.taken.last().copied() else {
            return Err(Outcome::Dropped(DropReason::NoRoom));
        };
        let memory = &self.queue.memory[0];
        // An offset in memory that is mapped here.
        let start = usize::try_from(buffer).unwrap_or(usize::MAX);
        let mut len = 0;
        for iovec in iovecs {
            let at = start.saturating_add(len);
            len += match iovec {
                Iovec::Private(bytes) => bytes.len(),
                Iovec::Shared { len, .. } => len,
            };
            if len > PAGE_SIZE {
                return Err(TOO_LARGE);
            }
            let copied = match iovec {
                Iovec::Private(bytes) => memory.copy_in(at, bytes),
                Iovec::Shared { region, offset, len } => {
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
        self.taken.pop();
        // At most a page.
        self.filled.push(Descriptor::new(buffer, u32::try_from(len).unwrap_or(u32::MAX)));
        Ok(())
    }

    /// The kernel sends what was pushed.
    fn publish(&mut self) {
        let Self { queue, filled, .. } = self;
        let mut rings = queue.rings();
        filled.drain(..).for_each(|frame| rings.tx.push(frame));
        rings.tx.publish();
        rings.kick(&queue.socket);
    }
}

impl Rings {
    /// Takes the buffers of frames that were sent.
    fn reclaim(&mut self) {
        while let Some(address) = self.completion.take() {
            // The kernel returns what it was given.
            self.free.push(address & !(PAGE_SIZE as u64 - 1));
            self.sent += 1;
        }
    }

    /// Gives buffers, as far as there are some, until `taken` has `buffers` of them.
    fn give(&mut self, buffers: usize, taken: &mut Vec<u64>) {
        let missing = buffers.saturating_sub(taken.len()).min(self.free.len());
        taken.extend(self.free.drain(self.free.len() - missing..));
    }

    /// Tells the kernel of frames, if it wants to be notified: where it copies, once for each batch of its own.
    fn kick(&self, socket: &XdpNicSocket) {
        for _ in 0..TX_BUFFERS / KERNELS_BATCH {
            if !self.tx.needs_wakeup() {
                return;
            }
            let before = self.tx.position();
            let sent = rustix::net::send(socket, &[], SendFlags::DONTWAIT);
            if sent != Err(Errno::AGAIN) || self.tx.position() == before {
                // The kernel looks at the ring by itself, or is notified again later.
                return;
            }
        }
    }
}
