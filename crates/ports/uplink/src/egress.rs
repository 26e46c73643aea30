//! Frames to the tap.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hypervisor::{Counted, Meter};
use offload::{Checksum, Features, Gso, MAX_HEADER, Need, vnet};
use port::{
    Body, Broken, DropReason, Egress, FRAME_MAX, Finisher, Frame, Linear, Merging, Offer, Outcome,
    PIECES_MAX, ScatterList, TAIL_MAX,
};
use shm::Piece;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::IntoBytes;

use crate::tap::TapQueue;

/// A frame's metadata, its header and all of its runs are written by one call.
const _: () = assert!(2 + PIECES_MAX + TAIL_MAX <= shm::MAX_PIECES);

/// System calls of one [`deliver`](Egress::deliver), in each of which the network stack behind the
/// tap may do a packet's whole work. Others wait for the queue's lock, and for the worker, until it
/// returns. A batch of unsegmented frames and a frame of 64 KiB in segments of the usual MTU need no
/// more.
const CALLS: u16 = 64;

/// The write side of a tap queue.
pub struct TapEgress {
    tap: Arc<TapQueue>,
    /// Does the offloads that the device lacks.
    finisher: Finisher,
    /// Frames that the device cannot gather.
    linear: Linear,
    /// Whether a batch of this call could not be copied: trying again with each frame behind it would copy most of them many times.
    copies_singly: bool,
    meter: Arc<Meter>,
}

impl Egress for TapEgress {
    /// Writes frames in order, as many as 64 system calls can. A tap never makes frames wait for
    /// room.
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        _: Duration,
    ) -> Result<(), Broken> {
        let mut calls = 0;
        self.linear.clear();
        self.copies_singly = false;
        for n in 0..offers.len() {
            let offer = &mut offers[n];
            let need = self.finisher.need(offer.frame);
            let needed = if need == Need::Segment { segments_left(offer) } else { 1 };
            // A frame that fits in one call is not divided among two: that costs another copy.
            if calls > 0 && calls + needed > CALLS.into() {
                offer.outcome = Outcome::Partial { segments: offer.sent };
                break;
            }
            calls += needed;
            let outcome = self.deliver_first(body, &offers[n..], need);
            let outcome = outcome.unwrap_or_else(|fault| fault);
            offers[n].outcome = outcome;
            if outcome.is_offered_again() {
                break;
            }
        }
        Ok(())
    }

    fn merging(&self) -> Option<Merging> {
        Some(Merging { features: self.finisher.features(), longest: FRAME_MAX })
    }
}

impl TapEgress {
    /// Writes frames to `tap`. `features` are what its device can do on transmit, as a NIC. Other
    /// offloads are done here, as late as possible. UDP is segmented here unless the tap says that it
    /// [takes it whole](TapQueue::segments_udp).
    ///
    /// With `sg` the device gathers a frame's pieces in place. Without it, each frame is copied to
    /// one piece of memory.
    pub fn new(meter: Arc<Meter>, tap: Arc<TapQueue>, mut features: Features) -> Self {
        features.uso_v4 &= tap.segments_udp();
        features.uso_v6 &= tap.segments_udp();
        let note = meter.clone();
        let finisher = Finisher::new(features, move |what, n| note.note(what, n));
        Self { tap, finisher, linear: Linear::default(), copies_singly: false, meter }
    }

    /// Sends the first of these frames.
    fn deliver_first(
        &mut self,
        body: Body<'_>,
        offers: &[Offer<'_>],
        need: Need,
    ) -> Result<Outcome, Outcome> {
        let offer = &offers[0];
        let frame = offer.frame;
        match (need, frame.gso) {
            (Need::Nothing, _) => self.send(body, offers)?,
            (Need::Segment, Some(gso)) => return self.segment(body, offer, gso),
            _ => self.complete(body, frame)?,
        }
        Ok(Outcome::Delivered)
    }

    /// Sends the first of these frames as it is.
    fn send(&mut self, body: Body<'_>, offers: &[Offer<'_>]) -> Result<(), Outcome> {
        let frame = offers[0].frame;
        let metadata = vnet::encode(&frame.headers, frame.checksum, frame.gso);
        if !frame.has_body() {
            return write(&self.tap, &metadata, [Piece::Private(frame.header())]);
        }
        if self.linear.is_empty() {
            if let Some(list) = self.scatter(body, frame) {
                return write(&self.tap, &metadata, list.all());
            }
            if !self.copies_singly {
                self.copy_run(body, offers);
                self.copies_singly = self.linear.is_empty();
            }
        }
        match self.linear.take() {
            Some(whole) => write(&self.tap, &metadata, [Piece::Private(whole)]),
            None => {
                let whole = self.finisher.whole(frame, body)?;
                write(&self.tap, &metadata, [Piece::Private(whole)])
            }
        }
    }

    /// Copies the frames at the beginning that are sent as they are, in one batch.
    fn copy_run(&mut self, body: Body<'_>, offers: &[Offer<'_>]) {
        let Self { finisher, linear, meter, .. } = self;
        let frames = offers.iter().map(|offer| offer.frame);
        let is_sent_so = |frame: &&Frame| frame.has_body() && finisher.need(frame) == Need::Nothing;
        let copied = linear.fill(frames.take_while(is_sent_so), body);
        meter.note(Counted::DriverBytes, copied);
    }

    /// Sends a frame whose checksum the device does not finish.
    fn complete(&mut self, body: Body<'_>, frame: &Frame) -> Result<(), Outcome> {
        let metadata = vnet::encode(&frame.headers, Checksum::Unknown, None);
        let whole = self.finisher.complete(frame, body)?;
        write(&self.tap, &metadata, [Piece::Private(whole)])
    }

    /// Sends the next [`CALLS`] segments of a frame that the device does not segment. If the device
    /// sums and gathers, the payload is not touched here.
    fn segment(&mut self, body: Body<'_>, offer: &Offer<'_>, gso: Gso) -> Result<Outcome, Outcome> {
        let Self { tap, finisher, .. } = self;
        let frame = offer.frame;
        let sent = offer.sent.saturating_add(CALLS);
        let part = usize::from(offer.sent)..usize::from(sent);
        let features = finisher.features();
        let sums =
            offload::need(&frame.headers, Checksum::Partial, None, features) == Need::Nothing;
        let checksum = if sums { Checksum::Partial } else { Checksum::Unknown };
        let metadata = vnet::encode(&frame.headers, checksum, None);
        let list = if sums && features.sg { ScatterList::of(frame, body) } else { None };
        let left = if let Some(list) = list {
            let mut segments = finisher.headers(frame, gso, part)?;
            let mut header = [0; MAX_HEADER];
            while let Some(segment) = segments.next(&mut header) {
                let header = Piece::Private(&header[..segment.header_len]);
                write(tap, &metadata, std::iter::once(header).chain(list.range(segment.payload)))?;
            }
            segments.behind()
        } else {
            finisher.contiguous_segments(frame, gso, body, sums, part, |segment| {
                write(tap, &metadata, [Piece::Private(segment)])
            })?
        };
        Ok(if left == 0 { Outcome::Delivered } else { Outcome::Partial { segments: sent } })
    }

    /// Where the device finds the frame, if it can gather it.
    fn scatter<'a>(&self, body: Body<'a>, frame: &'a Frame) -> Option<ScatterList<'a>> {
        if self.finisher.features().sg { ScatterList::of(frame, body) } else { None }
    }
}

/// Segments of a frame that have not been sent, at least one.
fn segments_left(offer: &Offer<'_>) -> u32 {
    offer.frame.packets().saturating_sub(offer.sent.into()).max(1)
}

/// One frame, one system call.
fn write<'a>(
    tap: &TapQueue,
    metadata: &'a VirtioNetHdr,
    frame: impl IntoIterator<Item = Piece<'a>>,
) -> Result<(), Outcome> {
    let metadata = std::iter::once(Piece::Private(metadata.as_bytes()));
    match shm::write_pieces(tap, metadata.chain(frame)) {
        Ok(_) => Ok(()),
        // The stack behind the tap is short of memory or queue space: this frame is lost, as on
        // any wire. It must not disable the port.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(Outcome::Dropped(DropReason::NoRoom))
        }
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
            Err(Outcome::Dropped(DropReason::NoRoom))
        }
        // A packet socket takes no frame beyond the interface's MTU.
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::MSGSIZE.raw_os_error()) => {
            Err(Outcome::Dropped(DropReason::TooLarge))
        }
        // EINVAL: the kernel found the metadata contradictory. EIO: the interface is down.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            Err(Outcome::Dropped(DropReason::Malformed))
        }
        Err(_) => Err(Outcome::Dropped(DropReason::PortGone)),
    }
}
