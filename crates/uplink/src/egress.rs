//! Frames to the tap.

use std::io;
use std::sync::Arc;

use frame::{Body, DropReason, FRAME_MAX, Frame, Offer, Outcome, linearise};
use hypervisor::Hypervisor;
use offload::{Checksum, Features, Gso, Need, Segmenter};
use shm::Piece;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::IntoBytes;

use crate::tap::TapQueue;
use crate::vnet;

/// A queue of the tap, written.
pub struct Egress<H> {
    hypervisor: H,
    tap: Arc<TapQueue>,
    features: Features,
    /// Where a frame is made whole: a granted body has no address to write from.
    whole: Box<[u8]>,
}

impl<H: Hypervisor> Egress<H> {
    /// Frames to `tap`, which is trusted with no more than `features`.
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
        let whole = &mut self.whole[..frame.len as usize];
        linearise(&self.hypervisor, frame, body, whole)?;
        let Frame { headers, checksum, gso, .. } = frame;
        match (offload::need(headers, *checksum, *gso, self.features), gso) {
            (Need::Nothing, _) => {
                write(&self.tap, vnet::encode(headers, *checksum, *gso), whole, &[])
            }
            (Need::Segment, Some(gso)) => segment(&self.tap, frame, whole, *gso),
            _ => {
                offload::complete_checksum(whole, headers).map_err(|_| MALFORMED)?;
                write(&self.tap, vnet::encode(headers, Checksum::Unknown, None), whole, &[])
            }
        }
    }
}

/// A frame that would become more segments than this is dropped: one system call each is work
/// that a guest could order by the thousand.
const SEGMENTS_MAX: usize = 192;
const MALFORMED: Outcome = Outcome::Dropped(DropReason::Malformed);

fn segment(tap: &TapQueue, frame: &Frame, whole: &[u8], gso: Gso) -> Result<Outcome, Outcome> {
    let mut segments = Segmenter::new(whole, &frame.headers, gso).map_err(|_| MALFORMED)?;
    if segments.segments() > SEGMENTS_MAX {
        return Err(Outcome::Dropped(DropReason::TooLarge));
    }
    let mut header = [0; offload::MAX_HEADER];
    while let Some(segment) = segments.next(&mut header) {
        let metadata = vnet::encode(&frame.headers, Checksum::Unknown, None);
        write(tap, metadata, &header[..segment.header_len], &whole[segment.payload])?;
    }
    Ok(Outcome::Delivered)
}

/// One frame, one system call.
fn write(
    tap: &TapQueue,
    metadata: VirtioNetHdr,
    head: &[u8],
    payload: &[u8],
) -> Result<Outcome, Outcome> {
    let pieces = [metadata.as_bytes(), head, payload].map(Piece::Private);
    match shm::write_pieces(tap, pieces) {
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
