//! What is plugged into the switch, as its other ports see it.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use frame::{Body, DropReason, Offer, Outcome};
use hypervisor::{EventChannel, Hypervisor};
use netback::Fault;
use switch::{PortCounters, PortId};

/// A port.
pub struct Port<H: Hypervisor> {
    id: PortId,
    name: String,
    counters: PortCounters,
    egress: Box<[Lane<H>]>,
    failed: AtomicBool,
}

/// An egress queue and who waits for it.
struct Lane<H: Hypervisor> {
    queue: Mutex<Egress<H>>,
    /// A bit for each worker that has frames waiting for room here.
    waiters: AtomicU64,
}

/// The egress side of one queue of a port.
pub enum Egress<H: Hypervisor> {
    /// To a guest.
    Netback(netback::RxQueue<H>),
    /// To the world outside.
    Uplink(uplink::Egress<H>),
    /// The port is being removed.
    Closed,
}

/// What announces that a queue may have room again.
pub(crate) enum RoomEvent<H: Hypervisor> {
    Event(Arc<H::Event>),
    /// The queue never makes anybody wait.
    Never,
}

impl<H: Hypervisor> RoomEvent<H> {
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Event(event) => Some(event.as_fd()),
            Self::Never => None,
        }
    }

    pub(crate) fn take(&self) {
        if let Self::Event(event) = self {
            // A guest that is gone has no room to announce; its end is learnt of elsewhere.
            let _ = event.take();
        }
    }
}

impl<H: Hypervisor> Egress<H> {
    pub(crate) fn event(&self) -> RoomEvent<H> {
        match self {
            Self::Netback(queue) => RoomEvent::Event(queue.event().clone()),
            Self::Uplink(_) | Self::Closed => RoomEvent::Never,
        }
    }

    fn deliver<'a>(
        &mut self,
        body: Body<'a, H::Peer>,
        offers: &mut [Offer<'a>],
        now: Duration,
    ) -> Result<(), Fault> {
        match self {
            Self::Netback(queue) => queue.deliver(body, offers, now),
            Self::Uplink(queue) => {
                queue.deliver(body, offers);
                Ok(())
            }
            Self::Closed => {
                for offer in offers {
                    offer.outcome = Outcome::Dropped(DropReason::PortGone);
                }
                Ok(())
            }
        }
    }
}

impl<H: Hypervisor> Port<H> {
    pub(crate) fn new(id: PortId, name: &str, egress: Vec<Egress<H>>) -> Self {
        let lane = |queue| Lane { queue: Mutex::new(queue), waiters: AtomicU64::new(0) };
        Self {
            id,
            name: name.to_owned(),
            counters: PortCounters::default(),
            egress: egress.into_iter().map(lane).collect(),
            failed: AtomicBool::new(false),
        }
    }

    /// Its number.
    pub fn id(&self) -> PortId {
        self.id
    }

    /// Its name, for operators.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it carried and dropped.
    pub fn counters(&self) -> &PortCounters {
        &self.counters
    }

    /// How many queues it has.
    pub fn queues(&self) -> usize {
        self.egress.len()
    }

    /// Whether its guest has taken nothing for so long that frames for it are dropped.
    pub fn is_stalled(&self) -> bool {
        let stalled = |lane: &Lane<H>| match &*lane.lock() {
            Egress::Netback(queue) => queue.is_stalled(),
            Egress::Uplink(_) | Egress::Closed => false,
        };
        self.egress.iter().any(stalled)
    }

    /// Whether a queue of it broke.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Notes that a queue of it broke; answers whether that is news.
    pub(crate) fn fail(&self) -> bool {
        !self.failed.swap(true, Ordering::AcqRel)
    }

    /// The queue a flow belongs to.
    #[inline]
    pub(crate) fn queue_of(&self, hash: u32) -> usize {
        // The high bits of a product spread as well as a remainder, without a division.
        ((u64::from(hash) * self.egress.len() as u64) >> 32) as usize
    }

    /// Delivers a batch to one queue, as `worker`. When frames are left waiting, the worker is
    /// told (see [`waiters`](Self::waiters)) once there is room.
    pub(crate) fn deliver<'a>(
        &self,
        queue: usize,
        body: Body<'a, H::Peer>,
        offers: &mut [Offer<'a>],
        now: Duration,
        worker: usize,
    ) -> Result<(), Fault> {
        let lane = &self.egress[queue];
        let mut egress = lane.lock();
        egress.deliver(body, offers, now)?;
        let done = offers.iter().position(|offer| offer.outcome == Outcome::Waiting);
        if let Some(done) = done {
            // The guest's event may have come between the look at its ring and this mark, and
            // found nobody waiting. So look once more, now that it finds us.
            lane.waiters.fetch_or(1 << worker, Ordering::AcqRel);
            egress.deliver(body, &mut offers[done..], now)?;
        }
        Ok(())
    }

    /// Takes the workers that wait for room in a queue, a bit each.
    pub(crate) fn waiters(&self, queue: usize) -> u64 {
        self.egress[queue].waiters.swap(0, Ordering::AcqRel)
    }

    /// Drops the egress queues and with them what they hold of the guest.
    pub(crate) fn close(&self) {
        for lane in &self.egress {
            *lane.lock() = Egress::Closed;
        }
    }
}

impl<H: Hypervisor> Lane<H> {
    fn lock(&self) -> MutexGuard<'_, Egress<H>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
