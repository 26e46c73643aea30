//! A datapath whose only worker runs on the caller's thread.

use rustix::event::epoll;

use crate::shared::{FailureSink, Shared};
use crate::worker::{Worker, WorkerHandle};
use crate::{Config, Datapath};

/// Steps that [`LockstepWorker::run`] makes at most: more than any burst needs that a ring can hold.
const STEPS: u32 = 1 << 20;

/// The worker of a datapath that has no thread. It does nothing between two calls.
pub struct LockstepWorker {
    worker: Worker,
    events: Vec<epoll::Event>,
}

impl Datapath {
    /// A datapath with one worker, which the caller runs: it and whoever sends frames take turns on one thread, so that each run
    /// executes the same instructions. `config.workers` is ignored, and the worker does not poll.
    ///
    /// Nobody answers [`detach`](Self::detach), [`rewrap`](Self::rewrap), [`remove_ingress`](Self::remove_ingress) and
    /// [`synchronise`](Self::synchronise) meanwhile, so these wait for ever on the thread of the worker.
    ///
    /// # Errors
    /// The system gives no descriptors.
    pub fn lockstep(
        config: &Config,
        failures: FailureSink,
    ) -> std::io::Result<(Self, LockstepWorker)> {
        let config = Config { workers: 1, poll: std::time::Duration::ZERO, ..*config };
        let shared = Shared::of(&config, failures, 1)?;
        let (worker, commands) = Worker::new(0, shared.clone())?;
        let handle = WorkerHandle::stepped(shared.clone(), commands);
        let worker = LockstepWorker { worker, events: Vec::with_capacity(64) };
        Ok((Self::with_workers(shared, vec![handle]), worker))
    }
}

impl LockstepWorker {
    /// Works until there is nothing to do. Returns false if there is no end.
    pub fn run(&mut self) -> bool {
        (0..STEPS).any(|_| !self.worker.step(&mut self.events))
    }
}
