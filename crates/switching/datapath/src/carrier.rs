//! A worker's view of the switch.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::shared::{Ports, Shared};

/// Carries frames for a worker: finds where they go ([`route`](crate::route)) and delivers them
/// ([`deliver`](crate::deliver)).
pub(crate) struct Carrier {
    pub(crate) worker: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) ports: Arc<Ports>,
    generation: u64,
    /// The switch's clock when the round began.
    pub(crate) now: Duration,
}

impl Carrier {
    pub(crate) fn new(worker: usize, shared: Arc<Shared>) -> Self {
        let ports = shared.ports();
        Self { worker, shared, ports, generation: 0, now: Duration::ZERO }
    }

    /// A round begins: takes the time, and the ports if they have changed.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.now = now.duration_since(self.shared.started);
        let generation = self.shared.generation.load(Ordering::Acquire);
        if generation != self.generation {
            self.generation = generation;
            self.ports = self.shared.ports();
        }
    }
}
