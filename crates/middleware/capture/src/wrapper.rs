//! Both sides of a queue, wrapped to record the frames that go through.

use std::sync::Arc;
use std::time::Duration;

use port::{
    Armed, Body, Broken, Budget, Egress, Event, InFlight, Ingress, Offer, Outcomes, Received,
    Ticket, Window,
};

use crate::packet::{Direction, Packet};
use crate::recorder::Recorder;

/// An ingress side that records frames when their outcome is final.
pub(crate) struct CaptureIngress {
    pub(crate) inner: Box<dyn Ingress>,
    pub(crate) recorder: Recorder,
}

impl CaptureIngress {
    /// Records the frames that are about to leave the window: their bodies can still be read.
    #[cold]
    fn record(&mut self, outcomes: &Outcomes) {
        let Self { inner, recorder } = self;
        let window = inner.window();
        let packets = window.order().iter().filter_map(|slot| {
            let outcome = outcomes[usize::from(*slot)];
            let packet =
                Packet { frame: window.frame(*slot), direction: Direction::Inbound, outcome };
            outcome.is_final().then_some(packet)
        });
        if packets.clone().next().is_some() {
            inner.with_body(&mut |body| recorder.record(body, &packets));
        }
    }
}

impl Ingress for CaptureIngress {
    fn event(&self) -> Arc<dyn Event> {
        self.inner.event()
    }

    fn has_back_pressure(&self) -> bool {
        self.inner.has_back_pressure()
    }

    fn window(&self) -> &Window {
        self.inner.window()
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.inner.receive(budget, received)
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        self.inner.with_body(work);
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        if self.recorder.is_active() {
            self.record(outcomes);
        }
        self.inner.finish(outcomes);
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        self.inner.arm()
    }
}

/// An egress side that records frames when the port has taken or dropped them.
pub(crate) struct CaptureEgress {
    pub(crate) inner: Box<dyn Egress>,
    pub(crate) recorder: Recorder,
}

impl CaptureEgress {
    /// Records the frames that will not be offered again.
    #[cold]
    fn record(&mut self, body: Body<'_>, offers: &[Offer<'_>]) {
        let done = offers.iter().filter(|offer| !offer.outcome.is_offered_again());
        let direction = Direction::Outbound;
        let packets =
            done.map(|offer| Packet { frame: offer.frame, direction, outcome: offer.outcome });
        self.recorder.record(body, &packets);
    }
}

impl Egress for CaptureEgress {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
    ) -> Result<(), Broken> {
        let result = self.inner.deliver(body, offers, now);
        if self.recorder.is_active() {
            self.record(body, offers);
        }
        result
    }

    fn reap(&mut self, deliveries: &mut [InFlight]) {
        self.inner.reap(deliveries);
    }

    fn cancel(&mut self, tickets: &[Ticket]) {
        self.inner.cancel(tickets);
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        self.inner.room_event()
    }

    fn is_stalled(&self) -> bool {
        self.inner.is_stalled()
    }
}
