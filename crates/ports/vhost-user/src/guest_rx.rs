//! Frames for the guest.

use std::sync::Arc;
use std::time::Duration;

use hypervisor::Meter;
use offload::{Checksum, Gso, MAX_HEADER, Need};
use port::{
    ALL_SEGMENTS, Body, Broken, BufferSupply, DropReason, Egress, Event, FRAME_MAX, Finisher,
    Frame, Merging, Offer, Outcome, SEGMENTS_MAX, ScatterList,
};
use shm::{Iovec, Region};
use virtqueue::{Buffer, Chain, GuestMemory, Mark, Queue, Single};
use wire::headers::Headers;
use zerocopy::IntoBytes;

use crate::doorbells::{Call, Kick};
use crate::features::Negotiated;
use crate::header::{FrameHeader, HeaderForm};
use crate::singles::{self, Singles};
use crate::vring::{Continued, Vring};
use crate::writer::{NoPlace, Writer};

/// The most chains of one frame. Sixteen of the size that Linux posts hold the longest one; a guest that posts smaller
/// ones must not make its senders' workers gather thousands.
const CHAINS_MAX: usize = 64;
/// The most descriptors that are read for one frame. A chain may have many that are empty, and a frame that finds no room
/// leaves them to the next one.
const DESCRIPTORS_MAX: u16 = 1024;

/// The ring of buffers that the guest posts, as the egress side of a queue.
pub struct GuestRx {
    ring: Continued,
    regions: Arc<[Region]>,
    /// The memory, if written pages are logged.
    logged: Option<Arc<GuestMemory>>,
    kick: Arc<Kick>,
    call: Arc<Call>,
    finisher: Finisher,
    form: HeaderForm,
    is_mergeable: bool,
    supply: BufferSupply,
    singles: Singles,
    /// Bytes of the last buffer that was a chain: a longer frame is not tried with one.
    single_len: u32,
    /// Chains used since the beginning.
    used: u64,
    /// Entries of the ring.
    size: u32,
    /// The most buffers that were seen at once when segments were to be delivered.
    most: usize,
    room: Room,
    /// Whether the guest was asked to announce buffers.
    is_armed: bool,
    /// Whether the last frame of more than one buffer, or that work was done for, found no room.
    is_short: bool,
}

/// Bytes of the buffers that Linux and DPDK post at least for frames that may take several, with the header.
const BUFFER_MIN: usize = 1526;

/// A guest that had fewer buffers at once has few: iPXE has 8, in whatever ring.
const FEW: usize = 32;
/// The fewest segments of a frame that such a guest gets at once, if it has no room for all. Each part copies the frame anew.
const PART_OF_FEW: usize = 8;

/// How often a frame is tried anew for which buffers come while it is tried. A guest could post them one by one.
const ATTEMPTS: usize = 8;

/// The buffers for one frame.
#[derive(Debug, Default)]
struct Room {
    chain: Chain,
    /// All buffers, chain after chain.
    buffers: Vec<Buffer>,
    /// The number and the bytes of each chain.
    chains: Vec<(u16, u64)>,
    /// Chains of frames that are written, with the bytes written, until they can be completed: the segments of one
    /// frame are delivered together.
    written: Vec<(u16, u32)>,
}

/// Why a frame was not delivered.
enum Refused {
    /// What becomes of it.
    Outcome(Outcome),
    /// There are too few buffers at present.
    NoRoom,
    /// The ring is broken.
    Broken(Broken),
}

impl From<Outcome> for Refused {
    fn from(outcome: Outcome) -> Self {
        Self::Outcome(outcome)
    }
}

impl From<virtqueue::RingBroken> for Refused {
    fn from(error: virtqueue::RingBroken) -> Self {
        Self::Broken(Broken::new(error))
    }
}

impl From<NoPlace> for Refused {
    fn from(_: NoPlace) -> Self {
        Self::Broken(Broken::new("a receive buffer outside of the guest's memory"))
    }
}

impl GuestRx {
    /// Serves the queue of a ring until it is dropped; the ring's position then says where to continue.
    pub(crate) fn new(
        meter: Arc<Meter>,
        ring: &Vring,
        queue: Queue,
        negotiated: Negotiated,
    ) -> Self {
        let note = move |what, n| meter.note(what, n);
        Self {
            regions: queue.memory().regions().clone(),
            logged: queue.memory().is_logged().then(|| queue.memory().clone()),
            ring: Continued::new(queue, ring.position.clone()),
            kick: ring.kick.clone(),
            call: ring.call.clone(),
            finisher: Finisher::new(negotiated.receives(), note),
            form: HeaderForm::new(negotiated),
            is_mergeable: negotiated.has_mergeable_buffers(),
            supply: BufferSupply::default(),
            singles: Singles::default(),
            single_len: u32::MAX,
            used: 0,
            size: ring.size,
            most: 0,
            room: Room::default(),
            is_armed: false,
            is_short: false,
        }
    }

    fn deliver_one(&mut self, body: Body<'_>, offer: &Offer<'_>) -> Result<Outcome, Refused> {
        let frame = offer.frame;
        match (self.finisher.need(frame), frame.gso) {
            (Need::Nothing, _) => self.deliver_as_is(body, frame)?,
            (Need::Segment, Some(gso)) => return self.deliver_segments(body, offer, gso),
            _ => {
                let Self { finisher, room, ring, .. } = self;
                let guest = Guest {
                    regions: &self.regions,
                    logged: self.logged.as_deref(),
                    form: self.form,
                    is_mergeable: self.is_mergeable,
                };
                guest.find_room(&mut ring.queue, room, frame.len as usize)?;
                let whole = finisher.complete(frame, body)?;
                let metadata = Metadata::of(&frame.headers, Checksum::Unknown, None);
                guest.write(room, metadata, std::iter::once(Iovec::Private(whole)))?;
            }
        }
        Ok(Outcome::Delivered)
    }

    #[inline]
    fn deliver_as_is(&mut self, body: Body<'_>, frame: &Frame) -> Result<(), Refused> {
        let Self { finisher, room, ring, regions, logged, form, is_mergeable, .. } = self;
        let (logged, form, is_mergeable) = (logged.as_deref(), *form, *is_mergeable);
        let guest = Guest { regions, logged, form, is_mergeable };
        guest.find_room(&mut ring.queue, room, frame.len as usize)?;
        let metadata = Metadata::of(&frame.headers, frame.checksum, frame.gso);
        if !frame.has_body() {
            return guest.write(room, metadata, std::iter::once(Iovec::Private(frame.header())));
        }
        if let Some(list) = ScatterList::of(frame, body) {
            return guest.write(room, metadata, list.all());
        }
        // A platform that has no addresses for devices.
        let whole = finisher.whole(frame, body)?;
        guest.write(room, metadata, std::iter::once(Iovec::Private(whole)))
    }

    /// Delivers the segments of a frame that are left: all of them, a part that is worth a copy of the frame, or none.
    fn deliver_segments(
        &mut self,
        body: Body<'_>,
        &Offer { frame, sent, .. }: &Offer<'_>,
        gso: Gso,
    ) -> Result<Outcome, Refused> {
        let part = match self.most < FEW {
            true => PART_OF_FEW,
            false => (self.size as usize / 8).max(PART_OF_FEW),
        };
        let Self { finisher, room, ring, regions, logged, form, is_mergeable, .. } = self;
        let (logged, form, is_mergeable) = (logged.as_deref(), *form, *is_mergeable);
        let guest = Guest { regions, logged, form, is_mergeable };
        if frame.packets() as usize > SEGMENTS_MAX {
            return Err(Outcome::Dropped(DropReason::TooLarge).into());
        }
        // The copy of the whole frame is not made in vain for a guest that has been short of buffers.
        if self.is_short {
            let first = segment_lens(frame, gso, sent).take(part);
            guest.probe(&mut ring.queue, room, first)?;
        }
        let part_of_all = sent.into()..ALL_SEGMENTS.end;
        let mut segments = finisher.segments(frame, body, part_of_all)?;
        let metadata = Metadata::of(&frame.headers, Checksum::Unknown, None);
        let mut header = [0; MAX_HEADER];
        let mut done = 0;
        while let Some(segment) = segments.segmenter.next(&mut header) {
            let header = &header[..segment.header_len];
            let mark = ring.queue.mark();
            match guest.find_room(&mut ring.queue, room, header.len() + segment.payload.len()) {
                Err(Refused::NoRoom) if done >= part => {
                    ring.queue.put_back(mark);
                    // No more than SEGMENTS_MAX.
                    let done = u16::try_from(done).unwrap_or(u16::MAX);
                    return Ok(Outcome::Partial { segments: sent + done });
                }
                found => found?,
            }
            done += 1;
            let payload = &segments.whole[segment.payload];
            guest.write(room, metadata, [header, payload].into_iter().map(Iovec::Private))?;
        }
        Ok(Outcome::Delivered)
    }

    /// Takes back the chains of a frame that was not delivered.
    fn put_back(&mut self, mark: Mark) {
        self.room.written.clear();
        self.ring.queue.put_back(mark);
    }

    /// There is no room. Returns whether there is by now.
    fn arm_again(&mut self) -> Result<bool, Broken> {
        self.is_armed = true;
        self.ring.queue.arm().map_err(Broken::new)
    }

    /// Delivers a frame into as many chains as it needs. It is not part of the loop over small frames, whose values stay in registers
    /// so.
    #[inline(never)]
    fn offer(
        &mut self,
        body: Body<'_>,
        offer: &Offer<'_>,
        now: Duration,
    ) -> Result<Outcome, Broken> {
        let mark = self.ring.queue.mark();
        for _ in 0..ATTEMPTS {
            match self.deliver_one(body, offer) {
                Ok(outcome) => {
                    self.is_short = false;
                    if let [buffer] = self.room.buffers[..] {
                        self.single_len = buffer.len;
                    }
                    self.most = self.most.max(self.room.written.len());
                    self.used += self.room.written.len() as u64;
                    for (chain, written) in self.room.written.drain(..) {
                        self.ring.queue.complete(chain, written);
                    }
                    self.supply.delivered(self.used, now);
                    return Ok(outcome);
                }
                Err(Refused::Broken(broken)) => return Err(broken),
                Err(Refused::Outcome(outcome)) => {
                    self.put_back(mark);
                    return Ok(outcome);
                }
                Err(Refused::NoRoom) => {
                    self.is_short = true;
                    let gathered = self.room.taken();
                    self.most = self.most.max(gathered);
                    self.put_back(mark);
                    // All of an empty ring is not enough for it.
                    if gathered as u64 >= self.size.into() {
                        return Ok(Outcome::Dropped(DropReason::TooLarge));
                    }
                    if !self.arm_again()? {
                        return Ok(self.supply.without_room(self.used, now));
                    }
                }
            }
        }
        Ok(Outcome::Dropped(DropReason::NoRoom))
    }
}

impl GuestRx {
    /// Delivers frames until one has to wait. Returns false if one has to.
    ///
    /// Small frames, which have no body, go into chains of one buffer each, many at a time. Then a frame with a body is tried with one
    /// such chain. Whatever does not fit, or needs work, takes as many chains as it needs.
    #[inline]
    fn deliver_all(
        &mut self,
        body: Body<'_>,
        mut offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<bool, Broken> {
        loop {
            let small = self.deliver_small(offers, now)?;
            if small > 0 {
                if std::mem::take(&mut self.is_armed) {
                    self.ring.queue.disarm();
                }
                // The next ones may be small too, and the buffers that were taken ahead used up.
                offers = &mut offers[small..];
                continue;
            }
            let left = offers.len();
            let Some((offer, rest)) = offers.split_first_mut() else { return Ok(true) };
            offer.outcome = match self.deliver_single(body, offer.frame, (left, now))? {
                Some(outcome) => outcome,
                None => {
                    self.singles.put_back(&mut self.ring.queue);
                    self.offer(body, offer, now)?
                }
            };
            if offer.outcome.is_offered_again() {
                return Ok(false);
            }
            if std::mem::take(&mut self.is_armed) {
                self.ring.queue.disarm();
            }
            offers = rest;
        }
    }

    /// Whether all bytes of a frame are private and nothing is done to them.
    #[inline]
    fn is_small(&self, frame: &Frame) -> bool {
        !frame.has_body() && self.finisher.need(frame) == Need::Nothing
    }

    /// Delivers the first frames that are small and fit into one of the buffers each that were taken ahead. Returns how many.
    #[inline]
    fn deliver_small(&mut self, offers: &mut [Offer<'_>], now: Duration) -> Result<usize, Broken> {
        // 10 or 12.
        let header_len = u32::try_from(self.form.len).unwrap_or(12);
        let needed = |frame: &Frame| header_len + u32::from(frame.header_len);
        let first = offers.first().map(|offer| offer.frame);
        // A guest whose buffers are too short must not have them taken and put back for each frame.
        if !first.is_some_and(|first| self.is_small(first) && needed(first) <= self.single_len) {
            return Ok(0);
        }
        self.singles.fill(&mut self.ring.queue, &self.regions, offers.len())?;
        let buffers = self.singles.left();
        let fits = |(offer, single): &(&Offer<'_>, &Single)| {
            self.is_small(offer.frame) && needed(offer.frame) <= single.buffer.len
        };
        let count = offers.iter().zip(buffers).take_while(fits).count();
        if self.ring.queue.is_packed() {
            // On split rings this costs more than it saves: docs/notebook/virtqueues.md has the figures.
            self.ring.queue.prefetch_used(count);
            self.singles.fetch_again(&self.regions, count);
        }
        // It cannot fail: the buffers were looked up. If it did, the ring would be broken, and these chains not shown.
        self.singles.write_small(&self.regions, self.form, &offers[..count])?;
        for (offer, single) in offers[..count].iter_mut().zip(buffers) {
            let needed = needed(offer.frame);
            if let Some(memory) = &self.logged {
                mark(memory, &[single.buffer], needed.into());
            }
            self.ring.queue.complete(single.index, needed);
            offer.outcome = Outcome::Delivered;
        }
        if let Some(last) = buffers[..count].last() {
            self.single_len = last.buffer.len;
        }
        self.singles.skip(count);
        self.used += count as u64;
        self.supply.delivered(self.used, now);
        Ok(count)
    }

    /// Delivers a frame as it is into the next buffer that was taken ahead, if it needs no more than this. `left` frames of
    /// the batch are left.
    #[inline]
    fn deliver_single(
        &mut self,
        body: Body<'_>,
        frame: &Frame,
        (left, now): (usize, Duration),
    ) -> Result<Option<Outcome>, Broken> {
        let needed = self.form.len as u64 + u64::from(frame.len);
        if needed > self.single_len.into() || self.finisher.need(frame) != Need::Nothing {
            return Ok(None);
        }
        self.singles.fill(&mut self.ring.queue, &self.regions, left)?;
        let Some(Single { index, buffer }) = self.singles.next() else { return Ok(None) };
        self.single_len = buffer.len;
        if needed > buffer.len.into() {
            return Ok(None);
        }
        let header = self.form.describe(&frame.headers, frame.checksum, frame.gso, 1);
        let written = singles::write(&self.regions, &buffer, header, frame, body);
        if let Some(memory) = &self.logged {
            mark(memory, &[buffer], needed);
        }
        let Some(outcome) = written? else { return Ok(None) };
        if outcome == Outcome::Delivered {
            self.singles.take(&self.regions);
            self.ring.queue.complete(index, u32::try_from(needed).unwrap_or(u32::MAX));
            self.used += 1;
            self.supply.delivered(self.used, now);
        }
        Ok(Some(outcome))
    }
}

impl Room {
    /// Chains that were taken for the present frame.
    fn taken(&self) -> usize {
        self.written.len() + self.chains.len()
    }
}

/// The lengths of a frame's segments behind the first `sent`.
fn segment_lens(frame: &Frame, gso: Gso, sent: u16) -> impl Iterator<Item = usize> {
    let header = usize::from(frame.headers.payload_offset);
    let (payload, size) = ((frame.len as usize).saturating_sub(header), usize::from(gso.size));
    let starts = (usize::from(sent) * size..payload).step_by(size.max(1));
    starts.map(move |start| header + size.min(payload - start))
}

/// The metadata of a frame, but for the number of its chains.
#[derive(Clone, Copy)]
struct Metadata<'a> {
    headers: &'a Headers,
    checksum: Checksum,
    gso: Option<Gso>,
}

impl<'a> Metadata<'a> {
    #[inline]
    fn of(headers: &'a Headers, checksum: Checksum, gso: Option<Gso>) -> Self {
        Self { headers, checksum, gso }
    }
}

/// What the guest's buffers are.
struct Guest<'a> {
    regions: &'a [Region],
    logged: Option<&'a GuestMemory>,
    form: HeaderForm,
    is_mergeable: bool,
}

impl Guest<'_> {
    /// Takes chains for a frame of `len` bytes and its metadata.
    #[inline]
    fn find_room(&self, queue: &mut Queue, room: &mut Room, len: usize) -> Result<(), Refused> {
        let needed = (self.form.len + len) as u64;
        room.chains.clear();
        room.buffers.clear();
        let (mut found, mut descriptors) = (0, 0);
        while found < needed {
            if room.chains.len() == CHAINS_MAX || (!self.is_mergeable && found > 0) {
                return Err(Outcome::Dropped(DropReason::TooLarge).into());
            }
            if !queue.pop(&mut room.chain)? {
                return Err(Refused::NoRoom);
            }
            let chain = &room.chain;
            if let Some(fault) = chain.fault {
                return Err(Refused::Broken(Broken(format!("a receive buffer: {fault}"))));
            }
            descriptors += chain.descriptors;
            if descriptors > DESCRIPTORS_MAX {
                let why = format!("one frame's receive buffers have {descriptors} descriptors");
                return Err(Refused::Broken(Broken(why)));
            }
            if chain.writable_len < self.form.len as u64 {
                let len = chain.writable_len;
                return Err(Refused::Broken(Broken(format!("a receive buffer of {len} bytes"))));
            }
            room.chains.push((chain.index, chain.writable_len));
            room.buffers.extend_from_slice(&chain.writable);
            found += chain.writable_len;
        }
        Ok(())
    }

    /// Takes chains for frames of these lengths, and puts them back if there are enough.
    fn probe(
        &self,
        queue: &mut Queue,
        room: &mut Room,
        lens: impl Iterator<Item = usize>,
    ) -> Result<(), Refused> {
        let mark = queue.mark();
        for len in lens {
            self.find_room(queue, room, len)?;
            room.written.extend(room.chains.drain(..).map(|(chain, _)| (chain, 0)));
        }
        room.written.clear();
        queue.put_back(mark);
        Ok(())
    }

    /// Writes a frame where room was found.
    #[inline]
    fn write<'b>(
        &self,
        room: &mut Room,
        Metadata { headers, checksum, gso }: Metadata<'_>,
        iovecs: impl Iterator<Item = Iovec<'b>>,
    ) -> Result<(), Refused> {
        // At most CHAINS_MAX.
        let chains = u16::try_from(room.chains.len()).unwrap_or(u16::MAX);
        let FrameHeader { metadata, len } = self.form.describe(headers, checksum, gso, chains);
        let mut writer = Writer::new(self.regions, &room.buffers);
        writer.write(&metadata.as_bytes()[..len])?;
        let mut left = len as u64;
        let mut counted = iovecs.inspect(|iovec| {
            left += match iovec {
                Iovec::Private(bytes) => bytes.len(),
                Iovec::Shared { len, .. } => *len,
            } as u64;
        });
        let copied = writer.copy(&mut counted);
        drop(counted);
        if let Some(memory) = self.logged {
            mark(memory, &room.buffers, left);
        }
        copied??;
        for (chain, len) in &room.chains {
            let written = left.min(*len);
            left -= written;
            room.written.push((*chain, u32::try_from(written).unwrap_or(u32::MAX)));
        }
        room.chains.clear();
        Ok(())
    }
}

/// Notes that the first `len` bytes of these buffers were written.
#[cold]
fn mark(memory: &GuestMemory, buffers: &[Buffer], mut len: u64) {
    for buffer in buffers {
        let written = len.min(buffer.len.into());
        memory.mark(buffer.region, buffer.offset, written);
        len -= written;
    }
}

impl Egress for GuestRx {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        if self.ring.queue.memory().is_lost() {
            return Err(Broken::new(virtqueue::RingBroken::MemoryLost));
        }
        let count = offers.len();
        let mut result = self.deliver_all(body, offers, now);
        let shown = self.ring.queue.show();
        self.ring.note_position();
        if let Ok(true) = result {
            // Those of the next batch come to this CPU while its frames are read.
            let filled = self.singles.fill(&mut self.ring.queue, &self.regions, count);
            result = filled.map(|()| true);
        }
        // Its barrier waits for the stores to the ring. The buffers are on their way meanwhile, and a guest that polls has seen its frames;
        // one that sleeps is woken up later by the time that it takes to read as many descriptors as it got frames.
        if self.ring.queue.must_notify(shown) {
            self.call.notify();
        }
        result.map(drop)
    }

    fn merging(&self) -> Option<Merging> {
        // So that such a frame finds room while others are on their way to the guest.
        let half = (self.size / 2) as usize * BUFFER_MIN;
        let longest = if self.is_mergeable { half.min(FRAME_MAX) } else { FRAME_MAX };
        Some(Merging { features: self.finisher.features(), longest })
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.kick.clone())
    }

    fn is_stalled(&self) -> bool {
        self.supply.is_stalled()
    }
}
