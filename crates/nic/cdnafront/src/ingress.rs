//! Frames from the card into the switch.

#![expect(
    clippy::cast_possible_truncation,
    reason = "lengths and counts here are bounded by a frame"
)]

use std::sync::Arc;

use arrayvec::ArrayVec;
use cdna::Status;
use cdna::descriptor::FRAGMENTS_MAX;
use hypervisor::PAGE_SIZE;
use netdev::Metadata;
use port::{
    Armed, Body, Broken, Budget, Event, FRAME_MAX, Fragment, Frame, HEADER_MAX, Ingress, Outcomes,
    WINDOW, Window,
};

use crate::rx::{ReceivedFrame, RxRing};

type FramePages = ArrayVec<u32, FRAGMENTS_MAX>;

/// The side of a port that receives. The bodies of frames stay in the pages that the card wrote, until the
/// switch is done with them.
pub struct ContextIngress {
    rx: RxRing,
    interrupt: Arc<dyn Event>,
    window: Window,
    /// The pages of each frame in hand, by slot of the window.
    held: Box<[FramePages]>,
    next: ReceivedFrame,
    /// Whether the card has served the context.
    was_up: bool,
}

impl ContextIngress {
    pub(crate) fn new(rx: RxRing, interrupt: Arc<dyn Event>) -> Self {
        let held = vec![FramePages::new(); WINDOW].into();
        let (window, next) = (Window::new(), ReceivedFrame::default());
        Self { rx, interrupt, window, held, next, was_up: false }
    }

    /// Whether the card serves the context, or will.
    fn is_served(&mut self) -> bool {
        match self.rx.ring().pages().status() {
            Some(Status::Up) => self.was_up = true,
            Some(Status::Down) if !self.was_up => {}
            _ => return false,
        }
        true
    }
}

impl Ingress for ContextIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.interrupt.clone()
    }

    /// No sender behind the wire waits: a full window would hold back the frames for all receivers.
    fn has_back_pressure(&self) -> bool {
        false
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(
        &mut self,
        budget: &mut Budget,
        received: &mut port::Received,
    ) -> Result<(), Broken> {
        while !budget.is_spent() {
            let Some((slot, frame)) = self.window.push() else { break };
            if !self.rx.take(&mut self.next).map_err(Broken::new)? {
                self.window.undo_push();
                break;
            }
            // The card has just written it, so it is in another CPU's cache.
            self.rx.prefetch_next();
            let pages = self.next.parts().iter().map(|part| part.page);
            let work = self.next.parts().len() as u32;
            if fill(frame, &self.rx, &self.next).is_some() {
                budget.charge_frame(work, frame);
                self.held[slot] = pages.collect();
                received.fresh += 1;
            } else {
                self.window.undo_push();
                self.rx.release(pages);
                budget.charge(work, 0);
                received.malformed += 1;
            }
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(self.rx.memory().regions()));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { rx, window, held, .. } = self;
        window.retain(|slot, _| {
            let slot = usize::from(slot);
            let is_kept = !outcomes[slot].is_final();
            if !is_kept {
                rx.release(held[slot].drain(..));
            }
            is_kept
        });
        rx.refill();
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        if self.window.is_full() {
            return Ok(Armed::Asleep);
        }
        if self.rx.arm() {
            return Ok(Armed::Ready);
        }
        if !self.is_served() {
            return Err(Broken::new("the card no longer serves the context"));
        }
        Ok(Armed::Asleep)
    }
}

/// Makes a frame of what was received. None if it is malformed.
pub(crate) fn fill(frame: &mut Frame, rx: &RxRing, received: &ReceivedFrame) -> Option<()> {
    let Metadata { len, checksum, gso } = received.metadata();
    if len > FRAME_MAX {
        return None;
    }
    let header_len = len.min(HEADER_MAX);
    let mut header = &mut frame.bytes[..header_len];
    frame.fragments.clear();
    for part in received.parts() {
        let start = part.page as usize * PAGE_SIZE;
        let (now, rest) = header.split_at_mut(header.len().min(part.len.into()));
        rx.memory().region().copy_out(start, now).ok()?;
        header = rest;
        frame.fragments.push(Fragment::in_region(0, start as u64, part.len));
    }
    // At most HEADER_MAX, and at most FRAME_MAX.
    (frame.header_len, frame.len) = (header_len as u8, len as u32);
    frame.skip_header(0);
    (frame.checksum, frame.gso) = (checksum, gso);
    frame.parse_headers().ok()
}
