//! A port, as the switch's other ports see it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use port::{Body, Broken, DropReason, Egress, Event, InFlight, Offer, Outcome, Rewrap, Ticket};
use switch::{PortCounters, PortId, StormControl};

/// A port.
pub struct Port {
    id: PortId,
    serial: u64,
    name: String,
    counters: PortCounters,
    storm_control: StormControl,
    egress: Box<[EgressQueue]>,
    /// Whether MAC addresses are part of the hash that spreads flows over the queues.
    hashes_macs: bool,
    failed: AtomicBool,
}

/// An egress queue and who waits for it.
struct EgressQueue {
    /// None once the port is being removed.
    egress: Mutex<Option<Box<dyn Egress>>>,
    /// Whether it may hold back notifications.
    coalesces: bool,
    /// A bit for each worker that waits for room here, or for the end of a delivery.
    waiters: AtomicU64,
}

impl Port {
    pub(crate) fn new(
        id: PortId,
        serial: u64,
        name: &str,
        egress: Vec<Box<dyn Egress>>,
        hashes_macs: bool,
        storm_control: StormControl,
    ) -> Self {
        let queue = |egress: Box<dyn Egress>| EgressQueue {
            coalesces: egress.coalesces(),
            egress: Mutex::new(Some(egress)),
            waiters: AtomicU64::new(0),
        };
        Self {
            id,
            serial,
            name: name.to_owned(),
            counters: PortCounters::default(),
            storm_control,
            egress: egress.into_iter().map(queue).collect(),
            hashes_macs,
            failed: AtomicBool::new(false),
        }
    }

    /// Its number. Another port may get it after this one is detached.
    pub fn id(&self) -> PortId {
        self.id
    }

    /// Its serial number, which no other port of the datapath ever gets.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Its name, for operators.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it carried and dropped.
    pub fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// The budget for what it floods.
    pub(crate) fn storm_control(&self) -> &StormControl {
        &self.storm_control
    }

    /// How many queues it has.
    pub fn queues(&self) -> usize {
        self.egress.len()
    }

    /// Whether MAC addresses are part of the hash that spreads flows over the queues.
    pub(crate) fn hashes_macs(&self) -> bool {
        self.hashes_macs
    }

    /// Whether its guest has posted too few buffers for so long that frames for it are dropped.
    pub fn is_stalled(&self) -> bool {
        self.egress.iter().any(|queue| queue.lock().as_ref().is_some_and(|e| e.is_stalled()))
    }

    /// Whether a queue of it broke.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Notes that a queue of it broke. Returns whether it is the first one.
    pub(crate) fn fail(&self) -> bool {
        !self.failed.swap(true, Ordering::AcqRel)
    }

    /// What announces room in a queue, and the end of deliveries in flight.
    pub(crate) fn room_event(&self, queue: usize) -> Option<Arc<dyn Event>> {
        self.egress.get(queue)?.lock().as_ref()?.room_event()
    }

    /// The queue that a flow belongs to.
    #[inline]
    pub(crate) fn queue_of(&self, hash: u32) -> usize {
        // The high bits of a product spread as well as a remainder, without a division.
        ((u64::from(hash) * self.egress.len() as u64) >> 32) as usize
    }

    /// Delivers a batch of `worker` to one queue. If frames are left waiting, the worker is among
    /// the [`take_waiters`](Self::take_waiters) once there is room. Returns when the queue must be
    /// [flushed](Self::flush), if it must.
    pub(crate) fn deliver(
        &self,
        queue: usize,
        body: Body<'_>,
        offers: &mut [Offer<'_>],
        now: Duration,
        worker: usize,
    ) -> Result<Option<Duration>, Broken> {
        let queue = &self.egress[queue];
        let mut egress = queue.lock();
        let Some(egress) = egress.as_mut() else {
            for offer in offers {
                offer.outcome = Outcome::Dropped(DropReason::PortGone);
            }
            return Ok(None);
        };
        egress.deliver(body, offers, now)?;
        let rest = offers.iter().position(|offer| offer.outcome.is_offered_again());
        // Those behind a frame that is sent in parts do not wait for room.
        if let Some(waiting) = rest.filter(|rest| offers[*rest].outcome == Outcome::Waiting) {
            // The guest's event may have come between the look at its ring and this mark, when no
            // worker waited for it. So look once more.
            queue.wait(worker);
            egress.deliver(body, &mut offers[waiting..], now)?;
        }
        Ok(if queue.coalesces { egress.flush(now, false) } else { None })
    }

    /// Sends a notification that a queue holds back, if it is due or if the worker `is_idle`. Returns when it is due otherwise.
    pub(crate) fn flush(&self, queue: usize, now: Duration, is_idle: bool) -> Option<Duration> {
        self.egress[queue].lock().as_mut()?.flush(now, is_idle)
    }

    /// Asks how deliveries in flight ended. `worker` then waits for the others.
    pub(crate) fn reap(&self, queue: usize, deliveries: &mut [InFlight], worker: usize) {
        let queue = &self.egress[queue];
        // Before asking: a delivery that ends after it then finds the worker waiting.
        queue.wait(worker);
        match queue.lock().as_mut() {
            Some(egress) => egress.reap(deliveries),
            None => deliveries.iter_mut().for_each(|delivery| {
                delivery.outcome = Some(Outcome::Dropped(DropReason::PortGone));
            }),
        }
    }

    /// Cancels deliveries: their sender is gone.
    pub(crate) fn cancel(&self, queue: usize, tickets: &[Ticket]) {
        if let Some(egress) = self.egress[queue].lock().as_mut() {
            egress.cancel(tickets);
        }
    }

    /// Takes the set of workers that wait for a queue, a bit for each.
    pub(crate) fn take_waiters(&self, queue: usize) -> u64 {
        self.egress[queue].waiters.swap(0, Ordering::AcqRel)
    }

    /// Wraps the egress queues anew.
    pub(crate) fn rewrap(&self, rewrap: &dyn Rewrap) {
        for queue in &self.egress {
            let mut egress = queue.lock();
            *egress = egress.take().map(|egress| rewrap.egress(egress));
        }
    }

    /// Drops the egress queues, and with them their mappings of the guest's memory.
    pub(crate) fn close(&self) {
        for queue in &self.egress {
            *queue.lock() = None;
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port")
            .field("id", &self.id)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl EgressQueue {
    fn lock(&self) -> MutexGuard<'_, Option<Box<dyn Egress>>> {
        self.egress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, worker: usize) {
        self.waiters.fetch_or(1 << worker, Ordering::AcqRel);
    }
}
