//! The egress side of a test port with a device behind it: the device reads a frame's body, where
//! its sender put it, when the test says so.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use port::{
    Body, BodyHold, Broken, Doorbell, Egress, Event, Frame, InFlight, Offer, Outcome, ScatterList,
    Ticket,
};
use shm::{Iovec, Region};

/// What the test holds of the device.
#[derive(Clone)]
pub struct Device(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    doorbell: Arc<Doorbell>,
}

#[derive(Default)]
struct State {
    next: u16,
    /// What the device has yet to read, oldest first.
    jobs: Vec<Job>,
    /// How deliveries ended that nobody has asked for since.
    ended: BTreeMap<Ticket, Outcome>,
    cancelled: Vec<Ticket>,
    reaps: u64,
}

/// A frame that the device reads.
pub struct Job {
    pub ticket: Ticket,
    header: Vec<u8>,
    /// Region, offset and length of each part of the body.
    parts: Vec<(usize, usize, usize)>,
    hold: BodyHold,
}

struct TestEgress(Arc<Shared>);

impl Device {
    pub fn new() -> (Self, Box<dyn Egress>) {
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let shared = Arc::new(Shared { state: Mutex::default(), doorbell });
        (Self(shared.clone()), Box::new(TestEgress(shared)))
    }

    /// How many frames the device has yet to read.
    pub fn in_flight(&self) -> usize {
        self.0.state.lock().unwrap().jobs.len()
    }

    /// How often it was asked how deliveries ended.
    pub fn reaps(&self) -> u64 {
        self.0.state.lock().unwrap().reaps
    }

    pub fn cancelled(&self) -> Vec<Ticket> {
        self.0.state.lock().unwrap().cancelled.clone()
    }

    /// The device reads the frame that is the `n`-th of those in flight, and has finished.
    /// Returns the frame's bytes.
    pub fn finish(&self, n: usize) -> Vec<u8> {
        self.finish_as(n, Outcome::Delivered)
    }

    /// The same, with another outcome.
    pub fn finish_as(&self, n: usize, outcome: Outcome) -> Vec<u8> {
        let job = self.0.state.lock().unwrap().jobs.remove(n);
        let bytes = job.read();
        let ticket = job.ticket;
        drop(job);
        self.0.state.lock().unwrap().ended.insert(ticket, outcome);
        self.0.doorbell.ring();
        bytes
    }

    /// Takes a frame that is in flight from the device, which never says that it has finished.
    pub fn take(&self, n: usize) -> Job {
        self.0.state.lock().unwrap().jobs.remove(n)
    }
}

impl Job {
    fn new(ticket: Ticket, frame: &Frame, list: &ScatterList<'_>, hold: BodyHold) -> Self {
        let mut parts = Vec::new();
        for iovec in list.all() {
            if let Iovec::Shared { region, offset, len } = iovec {
                let index = regions(&hold).iter().position(|held| std::ptr::eq(*held, region));
                parts.push((index.expect("held"), offset, len));
            }
        }
        Self { ticket, header: frame.header().to_vec(), parts, hold }
    }

    /// The frame's bytes, as they are now.
    pub fn read(&self) -> Vec<u8> {
        let mut bytes = self.header.clone();
        for (index, offset, len) in &self.parts {
            let mut part = vec![0; *len];
            regions(&self.hold)[*index].copy_out(*offset, &mut part).unwrap();
            bytes.extend(part);
        }
        bytes
    }

    pub fn is_revoked(&self) -> bool {
        matches!(&self.hold, BodyHold::Granted(hold) if hold.is_revoked())
    }
}

fn regions(hold: &BodyHold) -> Vec<&Region> {
    match hold {
        BodyHold::Granted(hold) => vec![hold.region()],
        BodyHold::Regions(regions) => regions.iter().collect(),
    }
}

impl Egress for TestEgress {
    fn deliver(
        &mut self,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        _now: Duration,
    ) -> Result<(), Broken> {
        let mut state = self.0.state.lock().unwrap();
        for offer in offers {
            let ticket = Ticket(state.next);
            let Some((list, hold)) = ScatterList::held(offer.frame, body) else {
                offer.outcome = Outcome::SourceFault;
                continue;
            };
            state.next += 1;
            state.jobs.push(Job::new(ticket, offer.frame, &list, hold));
            offer.outcome = Outcome::InFlight(ticket);
        }
        Ok(())
    }

    fn reap(&mut self, deliveries: &mut [InFlight]) {
        let mut state = self.0.state.lock().unwrap();
        state.reaps += 1;
        for delivery in deliveries {
            assert_eq!(delivery.outcome, None);
            delivery.outcome = state.ended.remove(&delivery.ticket);
        }
    }

    fn cancel(&mut self, tickets: &[Ticket]) {
        self.0.state.lock().unwrap().cancelled.extend(tickets);
    }

    fn room_event(&self) -> Option<Arc<dyn Event>> {
        Some(self.0.doorbell.clone())
    }
}
