//! The queue of a mirror's port.

use std::sync::Arc;
use std::time::Duration;

use port::{
    Armed, Body, Broken, Budget, DropReason, Egress, Event, Ingress, Offer, Outcome, Outcomes,
    Received, WINDOW, Window,
};

use crate::buffer::Buffer;

/// Sends the copies.
pub(crate) struct MirrorIngress {
    buffer: Arc<Buffer>,
    window: Window,
    /// By slot of the window: where the body lies.
    places: [u16; WINDOW],
}

impl MirrorIngress {
    pub(crate) fn new(buffer: Arc<Buffer>) -> Self {
        Self { buffer, window: Window::new(), places: [0; WINDOW] }
    }
}

impl Ingress for MirrorIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.buffer.doorbell.clone()
    }

    fn window(&self) -> &Window {
        &self.window
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        while !budget.is_spent() && !self.window.is_full() {
            let Some((place, copy)) = self.buffer.take() else { break };
            budget.charge_frame(1, &copy);
            let Some((slot, frame)) = self.window.push() else { break };
            *frame = copy;
            self.places[slot] = place;
            received.fresh += 1;
        }
        Ok(())
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        work(Body::Regions(self.buffer.regions()));
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let Self { buffer, window, places } = self;
        let done = |slot: &&u8| outcomes[usize::from(**slot)].is_final();
        let done = window.order().iter().filter(done);
        buffer.free(done.map(|slot| places[usize::from(*slot)]));
        window.retain(|slot, _| !outcomes[usize::from(slot)].is_final());
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        let waits = self.window.is_full() || self.buffer.arm();
        Ok(if waits { Armed::Asleep } else { Armed::Ready })
    }
}

impl Drop for MirrorIngress {
    /// Copies that were not sent make room for those of the next queue.
    fn drop(&mut self) {
        let places = &self.places;
        self.buffer.free(self.window.order().iter().map(|slot| places[usize::from(*slot)]));
    }
}

/// Takes no frames.
pub(crate) struct Nothing;

impl Egress for Nothing {
    fn deliver(
        &mut self,
        _: Body<'_>,
        offers: &mut [Offer<'_>],
        _: Duration,
    ) -> Result<(), Broken> {
        for offer in offers {
            offer.outcome = Outcome::Dropped(DropReason::NotForwarded);
        }
        Ok(())
    }
}
