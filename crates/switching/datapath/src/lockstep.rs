//! A worker that runs on the caller's thread.

use rustix::event::epoll;

use crate::worker::Worker;

/// Steps that [`LockstepWorker::run`] makes at most: more than any burst needs that a ring can hold.
const STEPS: u32 = 1 << 20;

/// The worker of a datapath that has no thread. It does nothing between two calls.
pub struct LockstepWorker {
    worker: Worker,
    events: Vec<epoll::Event>,
}

impl LockstepWorker {
    pub(crate) fn new(worker: Worker) -> Self {
        Self { worker, events: Vec::with_capacity(64) }
    }

    /// Works until there is nothing to do. Returns false if there is no end.
    pub fn run(&mut self) -> bool {
        (0..STEPS).any(|_| !self.worker.step(&mut self.events))
    }
}
