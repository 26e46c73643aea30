//! Frames of a receive queue of a NIC that is taken over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::PAGE_SIZE;
use port::{Armed, Body, Broken, Budget, Event, Ingress, Outcomes, Received, WINDOW, Window};
use rustix::net::RecvFlags;
use shm::Region;

use super::{RX_BUFFERS, XdpNicSocket};
use crate::xdp::frame::read;
use crate::xdp::ring::{FillRing, RxRing};

/// The time until a driver without buffers is told again of those that there are: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// The read side of a queue.
pub struct XdpNicIngress {
    socket: Arc<XdpNicSocket>,
    /// One region.
    memory: Arc<[Region]>,
    fill: FillRing,
    rx: RxRing,
    window: Window,
    /// The buffer of each frame in hand, by slot of the window.
    buffers: [u64; WINDOW],
    again: Duration,
}

impl XdpNicIngress {
    pub(super) fn new(
        socket: Arc<XdpNicSocket>,
        memory: Arc<[Region]>,
        fill: FillRing,
        rx: RxRing,
    ) -> Self {
        let (window, buffers, again) = (Window::new(), [0; WINDOW], AGAIN[0]);
        Self { socket, memory, fill, rx, window, buffers, again }
    }

    /// Takes the next frame into the window. Returns whether there was one.
    fn receive_one(&mut self, budget: &mut Budget, received: &mut Received) -> bool {
        let Some((slot, frame)) = self.window.push() else { return false };
        let Some(descriptor) = self.rx.take() else {
            self.window.undo_push();
            return false;
        };
        let buffer = descriptor.address & !(PAGE_SIZE as u64 - 1);
        if read(&self.memory[0], descriptor, frame) {
            self.buffers[slot] = buffer;
            budget.charge_frame(1, frame);
            received.fresh += 1;
        } else {
            self.window.undo_push();
            self.fill.push(buffer);
            budget.charge(1, 0);
            received.malformed += 1;
        }
        true
    }

    /// Tells a driver that has run out of buffers of those in the ring.
    fn wake_driver(&self) {
        if self.fill.needs_wakeup() {
            // It says nothing of the queue: a NIC that is gone is noticed elsewhere.
            let _ = rustix::net::recv(&*self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }

    /// Whether the driver may be without a buffer although there are some. Then no frame comes, and no event.
    fn is_starved(&self) -> bool {
        // With zero copy it asks to be told after it has found none. If it has none of all, it may be about to ask.
        let in_hand = u32::try_from(self.window.order().len()).unwrap_or(0);
        let has_none = || self.fill.len() + in_hand >= RX_BUFFERS;
        self.fill.needs_wakeup() || self.socket.is_zero_copy() && has_none()
    }

    /// Its driver runs out of buffers, or has some again.
    #[cfg(test)]
    pub(crate) fn set_starved(&self, is_starved: bool) {
        self.fill.set_needs_wakeup(is_starved);
    }
}

impl Ingress for XdpNicIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.socket.clone()
    }

    /// Nobody behind a wire waits.
    fn has_back_pressure(&self) -> bool {
        false
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        while !budget.is_spent() && self.receive_one(budget, received) {}
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.memory));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { window, fill, buffers, .. } = self;
        let order = window.order().iter().map(|slot| usize::from(*slot));
        order.filter(|slot| outcomes[*slot].is_final()).for_each(|slot| fill.push(buffers[slot]));
        window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
        self.fill.publish();
        self.wake_driver();
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        if self.window.is_full() {
            return Ok(Armed::Asleep);
        }
        // A driver may have asked after the last look.
        self.wake_driver();
        // A frame that comes after this makes an edge.
        if !self.rx.is_empty() {
            return Ok(Armed::Ready);
        }
        if !self.is_starved() {
            self.again = AGAIN[0];
            return Ok(Armed::Asleep);
        }
        let again = Instant::now() + self.again;
        self.again = (self.again * 2).min(AGAIN[1]);
        Ok(Armed::Until(again))
    }
}
