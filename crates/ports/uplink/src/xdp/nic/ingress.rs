//! Frames of a receive queue of a NIC that is taken over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hypervisor::PAGE_SIZE;
use port::{Armed, Body, Broken, Budget, Event, Ingress, Outcomes, Received, WINDOW, Window};
use rustix::net::RecvFlags;
use shm::Region;

use super::{RX_BUFFERS, XdpNicSocket};
use crate::xdp::ring::{FillRing, RxRing};
use crate::xdp::socket::read;

/// The time until a driver without buffers is notified again: at first, and at most.
const AGAIN: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(64)];

/// The rings of frames that come in. They are locked for moments only, never while a frame's body goes somewhere: a worker may sleep then in the
/// memory of a guest, and another handle serves the queue.
struct Rings {
    fill: FillRing,
    rx: RxRing,
}

/// Makes read sides of a queue.
#[derive(Clone)]
pub struct XdpNicReceiver {
    socket: Arc<XdpNicSocket>,
    memory: Arc<[Region]>,
    rings: Arc<Mutex<Rings>>,
}

/// A read side of a queue.
pub struct XdpNicIngress {
    handle: XdpNicReceiver,
    window: Window,
    /// The buffer of each frame in hand, by slot of the window.
    buffers: [u64; WINDOW],
    again: Duration,
}

impl XdpNicReceiver {
    pub(super) fn new(
        socket: Arc<XdpNicSocket>,
        memory: Arc<[Region]>,
        fill: FillRing,
        rx: RxRing,
    ) -> Self {
        Self { socket, memory, rings: Arc::new(Mutex::new(Rings { fill, rx })) }
    }

    /// The read side in use, except one in which a worker sleeps.
    #[must_use]
    pub fn ingress(&self) -> XdpNicIngress {
        let (window, buffers, again) = (Window::new(), [0; WINDOW], AGAIN[0]);
        XdpNicIngress { handle: self.clone(), window, buffers, again }
    }

    fn rings(&self) -> MutexGuard<'_, Rings> {
        self.rings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells a driver that has run out of buffers of those in the ring.
    fn wake_driver(&self, rings: &Rings) {
        if rings.fill.needs_wakeup() {
            // It says nothing of the queue: a NIC that is gone is noticed elsewhere.
            let _ = rustix::net::recv(&*self.socket, &mut [0u8; 0], RecvFlags::DONTWAIT);
        }
    }
}

impl XdpNicIngress {
    /// Takes frames into the window, as many as the budget allows.
    fn receive_all(&mut self, budget: &mut Budget, received: &mut Received) {
        let Self { handle, window, buffers, .. } = self;
        let rings = &mut *handle.rings();
        while !budget.is_spent() {
            let Some((slot, frame)) = window.push() else { return };
            let Some(descriptor) = rings.rx.take() else {
                window.undo_push();
                return;
            };
            let buffer = descriptor.address & !(PAGE_SIZE as u64 - 1);
            if read(&handle.memory[0], descriptor, frame) {
                buffers[slot] = buffer;
                budget.charge_frame(1, frame);
                received.fresh += 1;
            } else {
                window.undo_push();
                rings.fill.push(buffer);
                budget.charge(1, 0);
                received.malformed += 1;
            }
        }
    }

    /// Whether the driver may be without a buffer although there are some. Then no frame comes, and no event.
    fn is_starved(&self, rings: &Rings) -> bool {
        // With zero copy it asks for a notification after it has found none. If it has none of all, it may be about to ask.
        let in_hand = u32::try_from(self.window.order().len()).unwrap_or(0);
        let has_none = || rings.fill.len() + in_hand >= RX_BUFFERS;
        rings.fill.needs_wakeup() || self.handle.socket.is_zero_copy() && has_none()
    }

    /// Its driver runs out of buffers, or has some again.
    #[cfg(test)]
    pub(crate) fn set_starved(&self, is_starved: bool) {
        self.handle.rings().fill.set_needs_wakeup(is_starved);
    }

    /// Buffers that the kernel may fill, and has not seen yet.
    #[cfg(test)]
    pub(crate) fn filled(&self) -> u32 {
        self.handle.rings().fill.len()
    }
}

impl Drop for XdpNicIngress {
    /// Gives back the buffers of frames in hand: another handle may serve the queue.
    fn drop(&mut self) {
        let mut rings = self.handle.rings();
        for slot in self.window.order() {
            rings.fill.push(self.buffers[usize::from(*slot)]);
        }
        rings.fill.publish();
    }
}

impl Ingress for XdpNicIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.handle.socket.clone()
    }

    /// Nobody behind a wire waits.
    fn has_back_pressure(&self) -> bool {
        false
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.receive_all(budget, received);
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(&self.handle.memory));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { handle, window, buffers, .. } = self;
        let mut rings = handle.rings();
        let order = window.order().iter().map(|slot| usize::from(*slot));
        let done = order.filter(|slot| outcomes[*slot].is_final());
        done.for_each(|slot| rings.fill.push(buffers[slot]));
        window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
        rings.fill.publish();
        handle.wake_driver(&rings);
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        if self.window.is_full() {
            return Ok(Armed::Asleep);
        }
        // A driver may have asked after the last check.
        let rings = self.handle.rings();
        self.handle.wake_driver(&rings);
        // A frame that comes after this makes an edge.
        if !rings.rx.is_empty() {
            return Ok(Armed::Ready);
        }
        let is_starved = self.is_starved(&rings);
        drop(rings);
        if !is_starved {
            self.again = AGAIN[0];
            return Ok(Armed::Asleep);
        }
        let again = Instant::now() + self.again;
        self.again = (self.again * 2).min(AGAIN[1]);
        Ok(Armed::Until(again))
    }
}
