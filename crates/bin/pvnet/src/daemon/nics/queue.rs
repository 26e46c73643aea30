//! One context that is the receive queue of a guest's interface, served by one thread.
//!
//! The context is assigned to the guest's domain, so the card reaches no other memory through it. The driver
//! domain has its pages and drives it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use cdnafront::{Hypercalls, Interface, Leftover, LentCounts, LentIngress, Loan};
use machine::{Domain, Machine};
use netdev::Device;
use nic_session::channel::GuestEnd;
use port::{Doorbell, Lender, LentMemory};
use rustix::event::{PollFd, PollFlags, poll};
use tracing::{info, warn};

use super::card::Place;
use super::channel::Channel;
use super::uplink::DirectCalls;
use crate::context::ContextDevice;
use crate::daemon::backends::VifId;
use crate::daemon::event::PortEvents;
use crate::daemon::ports::port_event::{PortEvent, QueueChange};
use crate::daemon::thread::spawn_for_client;

/// How long the card may take to give the context back.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);
/// How often a thread that waits for the control thread looks whether it must end.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Ends a queue's thread.
pub(super) struct Stop {
    is_set: AtomicBool,
    doorbell: Arc<Doorbell>,
}

impl Stop {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { is_set: AtomicBool::new(false), doorbell: Arc::new(Doorbell::new()?) })
    }

    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        self.doorbell.ring();
    }

    fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Acquire)
    }
}

/// A queue, for its thread.
pub(super) struct ServedQueue {
    pub(super) id: VifId,
    /// The port's name of its interface.
    pub(super) name: String,
    pub(super) place: Place,
    pub(super) domain: Arc<Domain>,
    pub(super) lender: Arc<dyn Lender>,
    pub(super) memory: LentMemory,
    pub(super) counts: Arc<LentCounts>,
    /// Of the uplink.
    pub(super) events: PortEvents,
    pub(super) stop: Arc<Stop>,
}

impl ServedQueue {
    /// Serves it until it is stopped.
    pub(super) fn run(self, machine: &Machine) {
        if let Err(error) = self.serve(machine) {
            warn!(
                guest = self.name,
                error, "frames for it are copied: it has no queue of the card"
            );
        }
    }

    fn open(&self, machine: &Machine) -> Result<ContextDevice, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let (ours, theirs) = seqpacket::pair().map_err(|error| text(&error))?;
        let places = vec![self.place.clone()];
        let channel = Channel::new(Arc::new(ours), machine.clone(), self.domain.id(), places);
        let channel = channel.map_err(|error| text(&error))?;
        spawn_for_client("queue context", move || channel.serve()).map_err(|error| text(&error))?;
        ContextDevice::without_memory(&Arc::new(GuestEnd::new(theirs)), 0)
    }

    /// Connects the context whenever the card serves it.
    fn serve(&self, machine: &Machine) -> Result<(), String> {
        let device = self.open(machine)?;
        while !self.stop.is_set() {
            let leftover = Arc::<Leftover>::default();
            let Some((interface, ingress)) = self.connect(&device, &leftover)? else {
                self.wait(&device)?;
                continue;
            };
            info!(guest = self.name, "has a queue of the card");
            let (id, ingress) = (self.id, Box::new(ingress));
            self.events.tell(PortEvent::Queue(QueueChange::Up { id, ingress }));
            while interface.is_open() && !self.stop.is_set() && self.counts.refusal().is_none() {
                self.wait(&device)?;
                device.take_changes();
            }
            self.down();
            // Returns when the card touches no buffer any more.
            Box::new(interface).close(CLOSE_LIMIT);
            self.lender.take_back(&leftover.take());
            // The guest lends pages that it has given up. The context is free, so the uplink's gets the guest's frames.
            if let Some(refusal) = self.counts.refusal() {
                return Err(refusal.to_owned());
            }
        }
        Ok(())
    }

    fn connect(
        &self,
        device: &ContextDevice,
        leftover: &Arc<Leftover>,
    ) -> Result<Option<(Interface, LentIngress)>, String> {
        let Self { lender, memory, counts, .. } = self;
        let region = memory.region.share().ok_or("the guest's memory cannot be shared")?;
        let loan = Loan {
            lender: lender.clone(),
            id: memory.lender,
            counts: counts.clone(),
            refused: self.stop.doorbell.clone(),
        };
        let calls =
            || -> Box<dyn Hypercalls> { Box::new(DirectCalls::new(&self.place, &self.domain)) };
        device.connect_lent(region, memory.features, loan, leftover, &calls)
    }

    /// Has the receiving side dropped. Who stops the queue has done it already, and waits for this thread.
    fn down(&self) {
        if self.stop.is_set() {
            return;
        }
        let done = self.events.tell(PortEvent::Queue(QueueChange::Down { id: self.id }));
        while let Err(mpsc::RecvTimeoutError::Timeout) = done.recv_timeout(LOOK_EVERY) {
            if self.stop.is_set() {
                return;
            }
        }
    }

    /// Waits for a change of the assignment, or for the end.
    fn wait(&self, device: &ContextDevice) -> Result<(), String> {
        let mut fds = [
            PollFd::from_borrowed_fd(device.changes(), PollFlags::IN),
            PollFd::new(&*self.stop.doorbell, PollFlags::IN),
        ];
        rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(|error| error.to_string())?;
        Ok(())
    }
}
