//! Frames from the tap.

use std::io;
use std::sync::Arc;

use hypervisor::{Counted, Meter};
use offload::vnet;
use port::{
    Armed, Body, Broken, Budget, Event, FRAME_MAX, Frame, HEADER_MAX, Ingress, Outcomes, Piece,
    Received, Window,
};
use wire::headers::Headers;
use wire::virtio_net::VirtioNetHdr;
use zerocopy::FromBytes;

use crate::buffers::Buffers;
use crate::tap::{TapQueue, VNET_HEADER_LEN};

/// The read side of a tap queue.
pub struct TapIngress {
    meter: Arc<Meter>,
    tap: Arc<TapQueue>,
    window: Window,
    /// The bodies of the frames in hand, by slot of the window.
    buffers: Buffers,
}

impl TapIngress {
    /// Reads frames from `tap` into `buffers`. A frame that does not fit is dropped.
    pub fn new(meter: Arc<Meter>, tap: Arc<TapQueue>, buffers: Buffers) -> Self {
        Self { meter, tap, window: Window::new(), buffers }
    }

    /// Reads one frame into a free slot. Returns whether there was a frame.
    fn receive_one(&mut self, received: &mut Received, budget: &mut Budget) -> io::Result<bool> {
        let Some((slot, frame)) = self.window.push() else { return Ok(false) };
        let zeroed = self.buffers.prepare(slot);
        if zeroed > 0 {
            self.meter.note(Counted::PagesZeroed, zeroed);
        }
        let read = read(&self.tap, &mut self.buffers, slot, frame);
        if let Ok(true) = read {
            budget.charge_frame(Budget::SYSTEM_CALL, frame);
            received.fresh += 1;
            return Ok(true);
        }
        budget.charge(Budget::SYSTEM_CALL, 0);
        self.window.undo_push();
        match read {
            Ok(_) => {
                received.malformed += 1;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Ingress for TapIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.tap.clone()
    }

    /// Nobody behind a wire waits: a full window would hold back what comes for everybody.
    fn has_back_pressure(&self) -> bool {
        false
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        while !budget.is_spent() && self.receive_one(received, budget).map_err(Broken::new)? {}
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(self.buffers.regions()));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        self.window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        // The tap's event is edge-triggered, and the tap was read until it was empty.
        Ok(Armed::Asleep)
    }
}

/// Reads one frame. Returns whether it is well-formed.
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
    let Ok(headers) = Headers::parse_start(frame.header(), len) else { return Ok(false) };
    frame.headers = headers;
    let Ok((checksum, gso)) = vnet::decode(&header, &headers) else { return Ok(false) };
    frame.checksum = checksum;
    frame.gso = gso;
    Ok(len <= FRAME_MAX)
}

/// Sets the pieces of a body of `left` bytes. Returns whether the places have room left: a tap
/// silently truncates a frame that does not fit.
fn place(frame: &mut Frame, mut left: usize, places: impl Iterator<Item = (usize, usize)>) -> bool {
    frame.pieces.clear();
    for (offset, room) in places {
        let taken = left.min(room);
        let (Ok(len), Ok(offset)) = (u16::try_from(taken), u64::try_from(offset)) else {
            return false;
        };
        if len > 0 {
            frame.pieces.push(Piece::in_region(0, offset, len));
        }
        left -= taken;
        if taken < room {
            return true;
        }
    }
    false
}
