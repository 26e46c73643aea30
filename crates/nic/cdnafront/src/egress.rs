//! Frames from the switch to the card.

use std::sync::Arc;
use std::time::Duration;

use cdna::Status;
use hypervisor::{Counted, Meter, PAGE_SIZE};
use netdev::Metadata;
use offload::{Checksum, Features, Gso, MAX_HEADER, Need};
use port::{
    ALL_SEGMENTS, Body, Broken, BufferSupply, DropReason, Egress, Event, Finisher, Frame, Offer,
    Outcome, SEGMENTS_MAX, ScatterList,
};
use shm::Iovec;

use crate::Fault;
use crate::tx::{CopyError, TxRing};

/// The side of a port that sends. Each frame is copied once, into this domain's pages.
pub struct ContextEgress {
    tx: TxRing,
    /// Does the offloads that the card lacks.
    finisher: Finisher,
    interrupt: Arc<dyn Event>,
    meter: Arc<Meter>,
    /// Whether the card sends frames fast enough for others to wait. It counts pages: a frame of 64 KiB pays for as many as it has.
    supply: BufferSupply,
    /// Whether the card was down when there was no room. Then frames do not wait.
    is_down: bool,
}

impl ContextEgress {
    pub(crate) fn new(
        tx: TxRing,
        features: Features,
        interrupt: Arc<dyn Event>,
        meter: Arc<Meter>,
    ) -> Self {
        let notes = meter.clone();
        let finisher = Finisher::new(features, move |what, n| notes.note(what, n));
        Self { tx, finisher, interrupt, meter, supply: BufferSupply::default(), is_down: false }
    }

    /// Delivers a frame, or finds that there is no room for it.
    fn deliver_one(
        &mut self,
        body: Body<'_>,
        frame: &Frame,
        now: Duration,
    ) -> Result<Outcome, Fault> {
        let need = self.finisher.need(frame);
        let (descriptors, pages) = match (need, frame.gso) {
            (Need::Segment, Some(gso)) => room_of_segments(frame, gso),
            _ => (1, pages_of(frame.len as usize)),
        };
        if descriptors > SEGMENTS_MAX {
            return Ok(Outcome::Dropped(DropReason::TooLarge));
        }
        if !self.has_room(descriptors, pages)? {
            return Ok(self.without_room(now));
        }
        let sent = match need {
            Need::Nothing => self.send(body, frame),
            Need::Segment => self.segment(body, frame),
            Need::Checksum => self.complete(body, frame),
        };
        Ok(sent.map_or_else(|outcome| outcome, |()| Outcome::Delivered))
    }

    /// Whether there is room. If not, an interrupt will announce some.
    fn has_room(&mut self, descriptors: usize, pages: usize) -> Result<bool, Fault> {
        if self.tx.fits(descriptors, pages) {
            return Ok(true);
        }
        self.tx.reclaim_now()?;
        if !self.tx.fits(descriptors, pages) && self.tx.arm(1) {
            self.tx.reclaim_now()?;
        }
        Ok(self.tx.fits(descriptors, pages))
    }

    /// The outcome of a frame for which there is no room.
    fn without_room(&mut self, now: Duration) -> Outcome {
        let outcome = self.supply.without_room(self.tx.freed(), now);
        self.is_down = self.tx.ring().pages().status() != Some(Status::Up);
        if self.is_down { Outcome::Dropped(DropReason::Stalled) } else { outcome }
    }

    fn send(&mut self, body: Body<'_>, frame: &Frame) -> Result<(), Outcome> {
        let Self { tx, finisher, meter, .. } = self;
        let Frame { len, checksum, gso, .. } = *frame;
        let metadata = Metadata { len: len as usize, checksum, gso };
        if !frame.has_body() {
            return put(tx, metadata, [Iovec::Private(frame.header())]);
        }
        if let Some(list) = ScatterList::of(frame, body) {
            meter.note(Counted::DriverBytes, u64::from(len) - u64::from(frame.header_len));
            return put(tx, metadata, list.all());
        }
        let whole = finisher.whole(frame, body)?;
        put(tx, metadata, [Iovec::Private(whole)])
    }

    /// Sends a frame whose checksum the card does not complete.
    fn complete(&mut self, body: Body<'_>, frame: &Frame) -> Result<(), Outcome> {
        let whole = self.finisher.complete(frame, body)?;
        let metadata = Metadata { len: whole.len(), checksum: Checksum::Unknown, gso: None };
        put(&mut self.tx, metadata, [Iovec::Private(whole)])
    }

    /// Sends a frame that the card does not segment. If the card sums, the payload is copied once.
    fn segment(&mut self, body: Body<'_>, frame: &Frame) -> Result<(), Outcome> {
        let Self { tx, finisher, meter, .. } = self;
        let sums = finisher.sums(frame);
        let checksum = if sums { Checksum::Partial } else { Checksum::Unknown };
        let list = if sums { ScatterList::of(frame, body) } else { None };
        let Some(list) = list else {
            let put = |segment: &[u8]| {
                let metadata = Metadata { len: segment.len(), checksum, gso: None };
                put(tx, metadata, [Iovec::Private(segment)])
            };
            return finisher.contiguous_segments(frame, body, ALL_SEGMENTS, put).map(drop);
        };
        meter.note(Counted::DriverBytes, u64::from(frame.len) - u64::from(frame.header_len));
        let mut segments = finisher.headers(frame, ALL_SEGMENTS)?;
        let mut header = [0; MAX_HEADER];
        while let Some(segment) = segments.next(&mut header) {
            let len = segment.header_len + segment.payload.len();
            let header = Iovec::Private(&header[..segment.header_len]);
            let iovecs = std::iter::once(header).chain(list.range(segment.payload));
            put(tx, Metadata { len, checksum, gso: None }, iovecs)?;
        }
        Ok(())
    }
}

impl Egress for ContextEgress {
    /// Delivers frames, as many as there is room for. The card is notified once.
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        let mut has_room = false;
        for offer in offers {
            offer.outcome = self.deliver_one(body, offer.frame, now).map_err(Broken::new)?;
            match offer.outcome {
                Outcome::Waiting => break,
                // Once per call, and before a frame that finds no room.
                Outcome::Delivered if !has_room => {
                    has_room = true;
                    self.supply.delivered(self.tx.freed(), now);
                    self.is_down = false;
                }
                _ => {}
            }
        }
        self.tx.announce();
        self.tx.ring().check().map_err(Broken::new)
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.interrupt.clone())
    }

    fn is_stalled(&self) -> bool {
        self.is_down || self.supply.is_stalled()
    }
}

/// Copies a frame into the ring's pages and sends it.
fn put<'a>(
    tx: &mut TxRing,
    metadata: Metadata,
    iovecs: impl IntoIterator<Item = Iovec<'a>>,
) -> Result<(), Outcome> {
    match tx.copy(iovecs) {
        Ok(copied) if copied == metadata.len => {}
        Err(CopyError::Room) => return Err(Outcome::Dropped(DropReason::TooLarge)),
        Ok(_) | Err(CopyError::Source) => return Err(Outcome::SourceFault),
    }
    tx.submit(metadata).map_err(|_| Outcome::Dropped(DropReason::TooLarge))
}

fn pages_of(len: usize) -> usize {
    len.div_ceil(PAGE_SIZE).max(1)
}

/// Segments of a frame, and their pages. The size comes from the sending guest: a segment may be longer than a page.
fn room_of_segments(frame: &Frame, gso: Gso) -> (usize, usize) {
    let header = usize::from(frame.headers.payload_offset);
    let payload = (frame.len as usize).saturating_sub(header);
    let size = usize::from(gso.size).clamp(1, payload.max(1));
    let segments = payload.div_ceil(size).max(1);
    (segments, segments * pages_of(header + size))
}
