//! Frames of one ingress queue that devices still read.

use std::sync::Arc;

use arrayvec::ArrayVec;
use port::{DropReason, InFlight, Outcome, Outcomes, Ticket, WINDOW, Window};

use crate::port::Port;

/// A delivery of a frame that is in flight.
struct Delivery {
    /// The frame's slot in its window.
    slot: u8,
    port: Arc<Port>,
    queue: usize,
    ticket: Ticket,
}

/// The deliveries of one ingress queue's frames that are in flight. A flooded frame may have
/// several; it has an outcome when all of them have ended.
#[derive(Default)]
pub(crate) struct Deliveries {
    /// Oldest first.
    list: Vec<Delivery>,
    /// A bit for each slot with a delivery in the list.
    slots: u64,
    /// Slots of frames for which a delivery could not read the sender's pages.
    faulty: u64,
    /// Slots of frames with at least one successful delivery.
    delivered: u64,
}

impl Deliveries {
    /// The slots that must not be offered again.
    pub(crate) fn slots(&self) -> u64 {
        self.slots
    }

    /// Adds a delivery in flight.
    pub(crate) fn add(&mut self, slot: u8, port: &Arc<Port>, queue: usize, ticket: Ticket) {
        self.list.push(Delivery { slot, port: Arc::clone(port), queue, ticket });
        self.slots |= 1 << slot;
    }

    /// Notes how one of several deliveries of a frame ended.
    pub(crate) fn note(&mut self, slot: u8, outcome: Outcome) {
        match outcome {
            Outcome::Delivered => self.delivered |= 1 << slot,
            Outcome::SourceFault => self.faulty |= 1 << slot,
            _ => {}
        }
    }

    /// Asks the ports of `worker`'s deliveries which have ended, and sets the outcomes of frames
    /// without further deliveries. Returns the slots that were in flight before this call.
    pub(crate) fn reap(&mut self, window: &Window, outcomes: &mut Outcomes, worker: usize) -> u64 {
        let before = self.slots;
        if before == 0 {
            return 0;
        }
        let mut start = 0;
        while start < self.list.len() {
            start = self.reap_run(start, window, outcomes, worker);
        }
        before
    }

    /// Asks one queue which of the deliveries to it from `start` on have ended. Returns where those to others begin.
    fn reap_run(
        &mut self,
        start: usize,
        window: &Window,
        outcomes: &mut Outcomes,
        worker: usize,
    ) -> usize {
        let Delivery { port, queue, .. } = &self.list[start];
        let (port, queue) = (port.clone(), *queue);
        let same = |d: &&Delivery| Arc::ptr_eq(&d.port, &port) && d.queue == queue;
        let run = self.list[start..].iter().take_while(same).take(WINDOW);
        let mut asked: ArrayVec<InFlight, WINDOW> =
            run.map(|d| InFlight { ticket: d.ticket, outcome: None }).collect();
        port.reap(queue, &mut asked, worker);
        let mut at = start;
        for result in asked {
            let Some(outcome) = result.outcome else {
                at += 1;
                continue;
            };
            let slot = self.list.remove(at).slot;
            match outcome {
                Outcome::Delivered => {
                    port.counters().add_egress(worker, 1, window.frame(slot).len.into());
                }
                Outcome::Dropped(reason) => port.add_drops(reason, 1),
                Outcome::SourceFault => port.add_drops(DropReason::MemoryFault, 1),
                Outcome::Waiting | Outcome::Partial { .. } | Outcome::InFlight(_) => {}
            }
            self.note(slot, outcome);
            if self.list.iter().all(|delivery| delivery.slot != slot) {
                outcomes[usize::from(slot)] = self.end(slot, outcome);
            }
        }
        at
    }

    /// Ends the frame in `slot`, whose last delivery had the outcome `last`. Returns the frame's
    /// outcome.
    fn end(&mut self, slot: u8, last: Outcome) -> Outcome {
        let bit = 1 << slot;
        let (faulty, delivered) = (self.faulty & bit != 0, self.delivered & bit != 0);
        self.slots &= !bit;
        self.faulty &= !bit;
        self.delivered &= !bit;
        match (faulty, delivered) {
            (true, _) => Outcome::SourceFault,
            (_, true) => Outcome::Delivered,
            _ => last,
        }
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        for delivery in &self.list {
            delivery.port.cancel(delivery.queue, &[delivery.ticket]);
        }
    }
}
