//! Frames to the tap.

use std::io;
use std::sync::Arc;

use frame::{Body, DropReason, FRAME_MAX, Frame, Offer, Outcome, linearise};
use hypervisor::{Counted, Hypervisor};
use offload::{Checksum, Features, Gso, MAX_HEADER, Need, Segmenter};
use shm::Piece;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::IntoBytes;

use crate::scatter::ScatterList;
use crate::tap::TapQueue;
use crate::vnet;

/// A queue of the tap, written.
pub struct Egress<H> {
    hypervisor: H,
    tap: Arc<TapQueue>,
    features: Features,
    /// Where a frame is made contiguous.
    whole: Box<[u8]>,
}

impl<H: Hypervisor> Egress<H> {
    /// Frames to `tap`, which is trusted with no more than `features`: what a NIC can do on
    /// transmit. The rest is done here, as late as possible.
    ///
    /// With `sg` the device gathers a frame from where it lies; without, each is one contiguous
    /// piece of memory.
    pub fn new(hypervisor: H, tap: Arc<TapQueue>, features: Features) -> Self {
        Self { hypervisor, tap, features, whole: vec![0; FRAME_MAX].into() }
    }

    /// Writes frames in order and sets what became of each. A tap never makes frames wait.
    pub fn deliver(&mut self, body: Body<'_, H::Peer>, offers: &mut [Offer<'_>]) {
        for offer in offers {
            offer.outcome = self.deliver_one(body, offer.frame).unwrap_or_else(|fault| fault);
        }
    }

    fn deliver_one(&mut self, body: Body<'_, H::Peer>, frame: &Frame) -> Result<Outcome, Outcome> {
        match (self.need(frame, frame.checksum, frame.gso), frame.gso) {
            (Need::Nothing, _) => self.send(body, frame),
            (Need::Segment, Some(gso)) => self.segment(body, frame, gso),
            _ => self.complete(body, frame),
        }
    }

    fn need(&self, frame: &Frame, checksum: Checksum, gso: Option<Gso>) -> Need {
        offload::need(&frame.headers, checksum, gso, self.features)
    }

    /// Sends a frame as it is.
    fn send(&mut self, body: Body<'_, H::Peer>, frame: &Frame) -> Result<Outcome, Outcome> {
        let metadata = vnet::encode(&frame.headers, frame.checksum, frame.gso);
        if frame.pieces.is_empty() {
            return write(&self.tap, &metadata, [Piece::Private(frame.header())]);
        }
        if let Some(list) = self.scatter(body, frame) {
            return write(&self.tap, &metadata, list.all());
        }
        self.gather(body, frame)?;
        write(&self.tap, &metadata, [Piece::Private(&self.whole[..frame.len as usize])])
    }

    /// Sends a frame whose checksum the device does not finish.
    fn complete(&mut self, body: Body<'_, H::Peer>, frame: &Frame) -> Result<Outcome, Outcome> {
        self.gather(body, frame)?;
        let whole = &mut self.whole[..frame.len as usize];
        offload::complete_checksum(whole, &frame.headers).map_err(|_| MALFORMED)?;
        let metadata = vnet::encode(&frame.headers, Checksum::Unknown, None);
        write(&self.tap, &metadata, [Piece::Private(whole)])
    }

    /// Sends a frame that the device does not segment. If it sums and gathers, no byte of payload
    /// is touched here.
    fn segment(
        &mut self,
        body: Body<'_, H::Peer>,
        frame: &Frame,
        gso: Gso,
    ) -> Result<Outcome, Outcome> {
        let (header, len) = (frame.header(), frame.len as usize);
        let segments = Segmenter::of_header(header, len, &frame.headers, gso);
        let segments = segments.map_err(|_| MALFORMED)?;
        let count = segments.segments();
        if count > SEGMENTS_MAX {
            return Err(Outcome::Dropped(DropReason::TooLarge));
        }
        self.hypervisor.note(Counted::Segments, count as u64);
        let sums = self.need(frame, Checksum::Partial, None) == Need::Nothing;
        match if sums { self.scatter(body, frame) } else { None } {
            Some(list) => scatter_segments(&self.tap, frame, segments, &list),
            None => {
                self.gather(body, frame)?;
                contiguous_segments(&self.tap, frame, segments, &mut self.whole, sums)
            }
        }
    }

    /// Where the device finds the frame, if it can gather it.
    fn scatter<'a>(&self, body: Body<'a, H::Peer>, frame: &'a Frame) -> Option<ScatterList<'a>> {
        if !self.features.sg {
            return None;
        }
        ScatterList::of(&self.hypervisor, frame, body)
    }

    /// Makes the frame contiguous in `whole`, from its start.
    fn gather(&mut self, body: Body<'_, H::Peer>, frame: &Frame) -> Result<(), Outcome> {
        let whole = &mut self.whole[..frame.len as usize];
        linearise(&self.hypervisor, frame, body, whole)
    }
}

/// A frame that would become more segments than this is dropped: one system call each is work
/// that a guest could order by the thousand.
const SEGMENTS_MAX: usize = 192;
const MALFORMED: Outcome = Outcome::Dropped(DropReason::Malformed);

/// Segments of a header each and of payload where it lies.
fn scatter_segments(
    tap: &TapQueue,
    frame: &Frame,
    mut segments: Segmenter<'_>,
    list: &ScatterList<'_>,
) -> Result<Outcome, Outcome> {
    let metadata = vnet::encode(&frame.headers, Checksum::Partial, None);
    let mut header = [0; MAX_HEADER];
    while let Some(segment) = segments.next(&mut header) {
        let header = Piece::Private(&header[..segment.header_len]);
        write(tap, &metadata, std::iter::once(header).chain(list.range(segment.payload)))?;
    }
    Ok(Outcome::Delivered)
}

/// Segments each in one piece: its header is put right before its payload, where the payload of
/// the segment before it was.
fn contiguous_segments(
    tap: &TapQueue,
    frame: &Frame,
    mut segments: Segmenter<'_>,
    whole: &mut [u8],
    sums: bool,
) -> Result<Outcome, Outcome> {
    let checksum = if sums { Checksum::Partial } else { Checksum::Unknown };
    let metadata = vnet::encode(&frame.headers, checksum, None);
    let mut header = [0; MAX_HEADER];
    while let Some(segment) = segments.next(&mut header) {
        let start = segment.payload.start - segment.header_len;
        let bytes = &mut whole[start..segment.payload.end];
        bytes[..segment.header_len].copy_from_slice(&header[..segment.header_len]);
        if !sums {
            offload::complete_checksum(bytes, &frame.headers).map_err(|_| MALFORMED)?;
        }
        write(tap, &metadata, [Piece::Private(bytes)])?;
    }
    Ok(Outcome::Delivered)
}

/// One frame, one system call.
fn write<'a>(
    tap: &TapQueue,
    metadata: &'a VirtioNetHdr,
    frame: impl IntoIterator<Item = Piece<'a>>,
) -> Result<Outcome, Outcome> {
    let metadata = std::iter::once(Piece::Private(metadata.as_bytes()));
    match shm::write_pieces(tap, metadata.chain(frame)) {
        Ok(_) => Ok(Outcome::Delivered),
        // The stack behind the tap is short of memory or queue: this frame is lost, as on any
        // wire. Taking it for the end of the port has killed networks elsewhere.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(Outcome::Dropped(DropReason::NoRoom))
        }
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
            Err(Outcome::Dropped(DropReason::NoRoom))
        }
        // EINVAL: the kernel found the metadata contradictory. EIO: the interface is down.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Err(MALFORMED),
        Err(_) => Err(Outcome::Dropped(DropReason::PortGone)),
    }
}
