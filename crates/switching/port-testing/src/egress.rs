//! The egress side of a fake port.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use port::{
    Body, Broken, Doorbell, Egress, Event, Frame, InFlight, Merging, Offer, Outcome, Ticket,
};

/// What was done to an egress queue.
#[derive(Debug, Default)]
pub struct Log {
    /// Lengths of the frames offered, by call.
    pub calls: Vec<Vec<u32>>,
    /// The deliveries that were cancelled.
    pub cancelled: Vec<Ticket>,
}

type Answer = dyn FnMut(&Frame, Body<'_>) -> Result<Outcome, Broken> + Send;

/// An egress queue that answers each frame as a test says. Deliveries in flight end when they are reaped.
pub struct FakeEgress {
    answer: Box<Answer>,
    doorbell: Arc<Doorbell>,
    log: Arc<Mutex<Log>>,
    /// Whether it says that it is stalled.
    pub is_stalled: bool,
    /// Which merged frames it says that it takes.
    pub merging: Option<Merging>,
}

impl FakeEgress {
    /// An egress queue with this answer to each frame. An error ends the call, and an
    /// outcome with which the frame is offered again.
    pub fn new(
        answer: impl FnMut(&Frame, Body<'_>) -> Result<Outcome, Broken> + Send + 'static,
    ) -> Self {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        Self {
            answer: Box::new(answer),
            doorbell,
            log: Arc::default(),
            is_stalled: false,
            merging: None,
        }
    }

    /// The room event.
    pub fn doorbell(&self) -> Arc<Doorbell> {
        Arc::clone(&self.doorbell)
    }

    /// What is done to the queue.
    pub fn log(&self) -> Arc<Mutex<Log>> {
        Arc::clone(&self.log)
    }
}

impl Egress for FakeEgress {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        _now: Duration,
    ) -> Result<(), Broken> {
        self.log.lock().unwrap().calls.push(offers.iter().map(|offer| offer.frame.len).collect());
        for offer in offers {
            offer.outcome = (self.answer)(offer.frame, body)?;
            if offer.outcome.is_offered_again() {
                break;
            }
        }
        Ok(())
    }

    fn reap(&mut self, deliveries: &mut [InFlight]) {
        for delivery in deliveries {
            delivery.outcome = Some(Outcome::Delivered);
        }
    }

    fn cancel(&mut self, tickets: &[Ticket]) {
        self.log.lock().unwrap().cancelled.extend(tickets);
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.doorbell.clone())
    }

    fn is_stalled(&self) -> bool {
        self.is_stalled
    }

    fn merging(&self) -> Option<Merging> {
        self.merging
    }
}
