//! Frames from the tap.

use std::io;
use std::sync::Arc;

use frame::{Body, FRAME_MAX, Frame, HEADER_MAX, Outcome, Piece, WINDOW, Window};
use hypervisor::GrantRef;
use shm::Region;
use wire::headers::Headers;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::FromBytes;

use crate::tap::{TapQueue, VNET_HEADER_LEN};
use crate::vnet;

/// Bytes kept for the body of each frame in hand. They cost memory once touched.
const BODY: usize = FRAME_MAX.next_multiple_of(4096);
/// Frames read in one go, so that other queues get their turn.
const BURST: usize = 32;

/// A queue of the tap, read.
pub struct Ingress {
    tap: Arc<TapQueue>,
    window: Window,
    /// The bodies of the frames in hand, by slot of the window.
    bodies: Region,
    malformed: u64,
}

impl Ingress {
    /// Frames from `tap`.
    pub fn new(tap: Arc<TapQueue>) -> io::Result<Self> {
        let bodies = Region::anonymous(WINDOW * BODY)?;
        Ok(Self { tap, window: Window::new(), bodies, malformed: 0 })
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
    pub fn body<P>(&self) -> Body<'_, P> {
        Body::Mapped(&self.bodies)
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
            match read(&self.tap, &self.bodies, slot * BODY, frame) {
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
fn read(tap: &TapQueue, bodies: &Region, start: usize, frame: &mut Frame) -> io::Result<bool> {
    let mut head = [0; VNET_HEADER_LEN + HEADER_MAX];
    let body = [(bodies, start, BODY)];
    let bytes = shm::read_pieces(tap, &mut head, body)?;
    let Ok((header, rest)) = VirtioNetHdr::read_from_prefix(&head) else { return Ok(false) };
    let len = bytes.saturating_sub(VNET_HEADER_LEN);
    let header_len = len.min(HEADER_MAX);
    frame.bytes.copy_from_slice(rest);
    frame.header_len = u8::try_from(header_len).unwrap_or(u8::MAX);
    frame.len = u32::try_from(len).unwrap_or(u32::MAX);
    frame.pieces.clear();
    let (Ok(body), Ok(offset)) = (u16::try_from(len - header_len), u32::try_from(start)) else {
        return Ok(false);
    };
    if body > 0 {
        frame.pieces.push(Piece { gref: GrantRef(0), offset, len: body });
    }
    let Ok(headers) = Headers::parse(frame.header()) else { return Ok(false) };
    frame.headers = headers;
    let Ok((checksum, gso)) = vnet::decode(&header, &headers) else { return Ok(false) };
    frame.checksum = checksum;
    frame.gso = gso;
    Ok(len <= FRAME_MAX)
}
