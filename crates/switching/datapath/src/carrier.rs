//! A worker's view of the switch.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use port::{Frame, Window};
use switch::multicast::Groups;

use crate::activity::Activity;
use crate::copies::Copies;
use crate::port::Port;
use crate::shared::{Ports, Shared};

/// Carries frames for a worker: finds where they go ([`route`](crate::route)) and delivers them
/// ([`deliver`](crate::deliver)).
pub(crate) struct Carrier {
    pub(crate) worker: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) ports: Arc<Ports>,
    generation: u64,
    /// The members of multicast groups; none if all frames to groups are flooded.
    pub(crate) groups: Option<Arc<Groups>>,
    groups_generation: u64,
    /// Frames whose tags were changed for one delivery.
    pub(crate) changed: RefCell<Vec<Frame>>,
    /// Frames from memory in which the thread may sleep. Apart, as it is long and few ports need it.
    pub(crate) copies: Box<RefCell<Copies>>,
    /// The switch's clock when the round began.
    pub(crate) now: Duration,
    /// Where the worker says to which port it delivers.
    pub(crate) activity: Arc<Activity>,
}

/// A pass over a queue: what it has in hand.
pub(crate) struct Pass<'a> {
    /// The port that the queue is of.
    pub(crate) port: &'a Port,
    pub(crate) window: &'a Window,
    /// How many of the frames came in this pass. They are the last ones.
    pub(crate) fresh: usize,
    /// A bit for each slot whose frame is neither routed nor delivered: it has its outcome, or is in flight.
    pub(crate) decided: u64,
}

impl Carrier {
    pub(crate) fn new(worker: usize, shared: Arc<Shared>, activity: Arc<Activity>) -> Self {
        let ports = shared.ports();
        let changed = RefCell::default();
        Self {
            worker,
            shared,
            ports,
            generation: 0,
            groups: None,
            groups_generation: 0,
            changed,
            copies: Box::default(),
            now: Duration::ZERO,
            activity,
        }
    }

    /// A round begins: takes the time, and the ports if they have changed.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.now = now.duration_since(self.shared.started);
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.ports = self.shared.ports();
            self.groups = None;
        }
        if self.ports.snoops {
            self.refresh_groups();
        }
    }

    /// Has all notifications sent that are held back. What the worker's last thread knew of them is lost.
    pub(crate) fn flush_all(&self) {
        for port in self.ports.list.iter().flatten() {
            self.activity.serve(port.serial());
            for queue in 0..port.queues() {
                port.egress(queue).flush(self.now, true);
            }
        }
    }

    fn refresh_groups(&mut self) {
        let generation = self.shared.snooping.generation();
        if self.groups.is_none() || generation != self.groups_generation {
            self.groups_generation = generation;
            self.groups = Some(self.shared.snooping.groups());
        }
    }
}
