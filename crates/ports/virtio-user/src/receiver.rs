//! Frames from the back-end.

use std::sync::Arc;

use arrayvec::ArrayVec;
use port::{
    Armed, Body, Broken, Budget, Doorbell, Event, FRAME_MAX, Fragment, Frame, HEADER_MAX, Ingress,
    Outcomes, Received, WINDOW, Window,
};
use shm::Region;
use vhost_user::Call;
use vhost_user::shared::{accept, bit};
use virtqueue::burst::{BurstDriver, Returned};
use wire::virtio_net::{VirtioNetHdr, VirtioNetHdrMrgRxbuf};

use crate::messages::Notifier;
use crate::options::Agreed;
use crate::shared_memory::{PART, WHOLE};

/// The most buffers of a frame: one for each fragment behind its header.
const BUFFERS_MAX: usize = port::FRAGMENTS_MAX;

/// The ring of buffers that the back-end fills, as the ingress side of a queue. A frame stays in its buffers until it is
/// finished.
pub struct Receiver {
    ring: BurstDriver,
    regions: Arc<[Region]>,
    kick: Arc<Call>,
    call: Arc<Doorbell>,
    header_len: usize,
    is_mergeable: bool,
    /// Bytes of each buffer.
    buffer: u32,
    window: Window,
    /// The buffers of each frame in hand, by slot of the window.
    held: Box<[ArrayVec<u16, BUFFERS_MAX>]>,
    next: NextFrame,
    is_armed: bool,
}

/// The buffers of the next frame, as far as they have come.
#[derive(Debug, Default)]
struct NextFrame {
    buffers: ArrayVec<Returned, BUFFERS_MAX>,
    /// How many there will be.
    count: usize,
    /// What its header says.
    metadata: VirtioNetHdr,
}

impl Receiver {
    /// Offers the back-end all buffers of a new ring.
    pub(crate) fn new(
        mut ring: BurstDriver,
        region: Region,
        Notifier { kick, call }: Notifier,
        agreed: Agreed,
    ) -> Self {
        let is_mergeable = agreed.has(bit::MRG_RXBUF);
        let buffer = if is_mergeable { PART } else { WHOLE };
        let _ = ring.offer(ring.free(), buffer);
        // In any case: the back-end may have checked before they were there.
        kick.notify();
        Self {
            ring,
            regions: [region].into(),
            kick,
            call,
            header_len: agreed.header_len(),
            is_mergeable,
            buffer,
            window: Window::new(),
            held: (0..WINDOW).map(|_| ArrayVec::new()).collect(),
            next: NextFrame::default(),
            is_armed: false,
        }
    }

    /// Adds a buffer to the next frame. Returns whether it is complete.
    #[inline]
    fn gather(&mut self, returned: Returned) -> Result<bool, Broken> {
        let Self { next, regions, is_mergeable, .. } = self;
        if next.buffers.is_empty() {
            // The buffer has room for it. If less was written, the frame is found malformed.
            let header = regions[0].read::<VirtioNetHdrMrgRxbuf>(returned.offset);
            let header = header.map_err(Broken::new)?;
            next.metadata = header.hdr;
            next.count = if *is_mergeable { header.num_buffers.get().into() } else { 1 };
            if !(1..=BUFFERS_MAX).contains(&next.count) {
                return Err(Broken(format!("a frame in {} buffers", next.count)));
            }
        }
        next.buffers.push(returned);
        Ok(next.buffers.len() == next.count)
    }

    /// Puts the next frame, which is complete, into the window. Returns whether it is well-formed.
    #[inline]
    fn take_frame(&mut self, budget: &mut Budget) -> bool {
        let Self { ring, next, regions, window, held, header_len, .. } = self;
        // `receive` has seen that there is one.
        let Some((slot, frame)) = window.push() else { return false };
        let work = u32::try_from(next.buffers.len()).unwrap_or(u32::MAX);
        let is_good =
            read(&regions[0], &next.buffers, *header_len, frame) && accept(frame, &next.metadata);
        let buffers = next.buffers.drain(..).map(|returned| returned.id);
        if is_good {
            budget.charge_frame(work, frame);
            held[slot].clear();
            held[slot].extend(buffers);
        } else {
            buffers.for_each(|id| ring.put_back(id));
            window.undo_push();
            budget.charge(work, 1);
        }
        is_good
    }
}

/// Reads a frame: its first bytes, and where the rest lies. Returns whether it can be one.
///
/// The first buffer must have the header whole, as it has where each buffer but the last is filled up.
#[inline]
fn read(region: &Region, buffers: &[Returned], header_len: usize, frame: &mut Frame) -> bool {
    let written: usize = buffers.iter().map(|buffer| buffer.written as usize).sum();
    let Some((first, rest)) = buffers.split_first() else { return false };
    let (Some(len), Some(in_first)) =
        (written.checked_sub(header_len), (first.written as usize).checked_sub(header_len))
    else {
        return false;
    };
    let private = len.min(HEADER_MAX);
    let start = first.offset + header_len;
    if len > FRAME_MAX
        || in_first < private
        || region.copy_out(start, &mut frame.bytes[..private]).is_err()
    {
        return false;
    }
    frame.header_len = u8::try_from(private).unwrap_or(u8::MAX);
    frame.len = u32::try_from(len).unwrap_or(u32::MAX);
    frame.fragments.clear();
    let rest = rest.iter().map(|buffer| (buffer.offset, buffer.written as usize));
    for (offset, len) in std::iter::once((start + private, in_first - private)).chain(rest) {
        // No longer than the frame.
        let Ok(len) = u16::try_from(len) else { return false };
        if len > 0 && frame.fragments.try_push(Fragment::in_region(0, offset as u64, len)).is_err()
        {
            return false;
        }
    }
    true
}

impl Ingress for Receiver {
    fn event(&self) -> Arc<dyn Event> {
        self.call.clone()
    }

    /// None: nobody behind the back-end waits, and a full window would hold back what comes for everybody.
    fn has_back_pressure(&self) -> bool {
        false
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        while !budget.is_spent() && !self.window.is_full() {
            let Some(returned) = self.ring.take().map_err(Broken::new)? else { break };
            if std::mem::take(&mut self.is_armed) {
                self.ring.disarm();
            }
            if !self.gather(returned)? {
                budget.charge(1, 0);
            } else if self.take_frame(budget) {
                received.fresh += 1;
            } else {
                received.malformed += 1;
            }
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.regions));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { ring, window, held, .. } = self;
        window.retain(|slot, _| {
            let is_final = outcomes[usize::from(slot)].is_final();
            if is_final {
                held[usize::from(slot)].drain(..).for_each(|id| ring.put_back(id));
            }
            !is_final
        });
        let free = self.ring.free();
        if free > 0 && self.ring.offer(free, self.buffer) {
            self.kick.notify();
        }
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        if self.window.is_full() {
            return Ok(Armed::Asleep);
        }
        self.is_armed = true;
        Ok(if self.ring.arm() { Armed::Ready } else { Armed::Asleep })
    }
}
