//! Frames of a receive queue of a NIC that is taken over.

use std::sync::Arc;

use hypervisor::PAGE_SIZE;
use port::{Armed, Body, Broken, Budget, Event, Ingress, Outcomes, Received, WINDOW, Window};
use rustix::net::RecvFlags;
use shm::Region;

use super::XdpNicSocket;
use crate::xdp::frame::read;
use crate::xdp::ring::{FillRing, RxRing};

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
}

impl XdpNicIngress {
    pub(super) fn new(
        socket: Arc<XdpNicSocket>,
        memory: Arc<[Region]>,
        fill: FillRing,
        rx: RxRing,
    ) -> Self {
        Self { socket, memory, fill, rx, window: Window::new(), buffers: [0; WINDOW] }
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

    /// The kernel gets the buffers that were pushed. A driver that has run out of them is told.
    fn publish(&self) {
        self.fill.publish();
        if self.fill.needs_wakeup() {
            // It says nothing of the queue: a NIC that is gone is noticed elsewhere.
            let _ = rustix::net::recv(&*self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
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
        self.publish();
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        // A frame that comes after this makes an edge.
        let has_work = !self.window.is_full() && !self.rx.is_empty();
        Ok(if has_work { Armed::Ready } else { Armed::Asleep })
    }
}
