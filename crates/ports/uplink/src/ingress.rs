//! Frames from the tap.

use std::io;
use std::sync::Arc;

use frame::{Body, FRAME_MAX, Frame, HEADER_MAX, Outcome, Piece, WINDOW, Window};
use hypervisor::{Counted, GrantRef, Hypervisor};
use wire::headers::Headers;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::FromBytes;

use crate::buffers::Buffers;
use crate::tap::{TapQueue, VNET_HEADER_LEN};
use crate::vnet;

/// Frames read in one go, so that other queues get their turn.
const BURST: usize = 32;

/// A queue of the tap, read.
pub struct Ingress<H> {
    hypervisor: H,
    tap: Arc<TapQueue>,
    window: Window,
    /// The bodies of the frames in hand, by slot of the window.
    buffers: Buffers,
    malformed: u64,
}

impl<H: Hypervisor> Ingress<H> {
    /// Frames from `tap`, read into `buffers`. A frame that they have no room for is dropped.
    pub fn new(hypervisor: H, tap: Arc<TapQueue>, buffers: Buffers) -> Self {
        Self { hypervisor, tap, window: Window::new(), buffers, malformed: 0 }
    }

    /// The device.
    pub fn tap(&self) -> &Arc<TapQueue> {
        &self.tap
    }

    /// The frames in hand.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Where their bodies lie.
    pub fn body(&self) -> Body<'_, H::Peer> {
        Body::Mapped(self.buffers.region())
    }

    /// Frames dropped since the last call because no port could carry them.
    pub fn take_malformed(&mut self) -> u64 {
        std::mem::take(&mut self.malformed)
    }

    /// Reads frames until there are none, the window is full, or the burst is. Answers how many
    /// are new.
    pub fn receive(&mut self) -> io::Result<usize> {
        let mut fresh = 0;
        while fresh < BURST {
            let Some((slot, frame)) = self.window.push() else { break };
            let zeroed = self.buffers.prepare(slot);
            if zeroed > 0 {
                self.hypervisor.note(Counted::PagesZeroed, zeroed);
            }
            match read(&self.tap, &mut self.buffers, slot, frame) {
                Ok(true) => fresh += 1,
                Ok(false) => {
                    self.window.unpush();
                    self.malformed += 1;
                }
                Err(error) => {
                    self.window.unpush();
                    if error.kind() == io::ErrorKind::WouldBlock {
                        break;
                    }
                    return Err(error);
                }
            }
        }
        Ok(fresh)
    }

    /// Releases the frames that are settled, by what became of each (by slot).
    pub fn finish(&mut self, outcomes: &[Outcome; WINDOW]) {
        self.window.retain(|slot, _| outcomes[usize::from(slot)] == Outcome::Waiting);
    }
}

/// Reads one frame; answers whether it is one that can be carried.
fn read(tap: &TapQueue, buffers: &mut Buffers, slot: usize, frame: &mut Frame) -> io::Result<bool> {
    let mut head = [0; VNET_HEADER_LEN + HEADER_MAX];
    let places = buffers.places(slot).map(|(offset, len)| (buffers.region(), offset, len));
    let bytes = shm::read_pieces(tap, &mut head, places)?;
    let Ok((header, rest)) = VirtioNetHdr::read_from_prefix(&head) else { return Ok(false) };
    let len = bytes.saturating_sub(VNET_HEADER_LEN);
    let header_len = len.min(HEADER_MAX);
    buffers.fill(slot, len - header_len);
    frame.bytes.copy_from_slice(rest);
    frame.header_len = u8::try_from(header_len).unwrap_or(u8::MAX);
    frame.len = u32::try_from(len).unwrap_or(u32::MAX);
    if !place(frame, len - header_len, buffers.places(slot)) {
        return Ok(false);
    }
    let Ok(headers) = Headers::parse(frame.header()) else { return Ok(false) };
    frame.headers = headers;
    let Ok((checksum, gso)) = vnet::decode(&header, &headers) else { return Ok(false) };
    frame.checksum = checksum;
    frame.gso = gso;
    Ok(len <= FRAME_MAX)
}

/// Says in which places a body of `left` bytes lies; answers whether there was room to spare. A
/// tap cuts off what does not fit and does not tell.
fn place(frame: &mut Frame, mut left: usize, places: impl Iterator<Item = (usize, usize)>) -> bool {
    frame.pieces.clear();
    for (offset, room) in places {
        let taken = left.min(room);
        let (Ok(len), Ok(offset)) = (u16::try_from(taken), u32::try_from(offset)) else {
            return false;
        };
        if len > 0 {
            frame.pieces.push(Piece { gref: GrantRef(0), offset, len, place: Piece::NOWHERE });
        }
        left -= taken;
        if taken < room {
            return true;
        }
    }
    false
}
