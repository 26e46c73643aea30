//! A worker as its datapath sees it: commands, and its end.

use std::sync::{Arc, mpsc};

use port::{Coalescing, Rewrap};
use switch::PortId;
use tracing::error;

use crate::port::{IngressId, Port};
use crate::shared::Shared;
use crate::slot::Entry;
use crate::work::Work;
use crate::worker_state::WorkerState;

/// A command to a worker. What it removes, it hands to whoever asked: to drop a queue may unmap much memory, and the
/// worker's other queues would wait.
pub(crate) enum Command {
    Add {
        port: Arc<Port>,
        work: NewWork,
        id: Option<IngressId>,
    },
    RemoveIngress {
        id: IngressId,
        done: mpsc::Sender<Removed>,
    },
    /// Puts a queue in the place of one in whose turn an earlier thread still sleeps. What is not needed comes back.
    ReplaceSleeping {
        port: Arc<Port>,
        queue: usize,
        work: Work,
        done: mpsc::Sender<Work>,
    },
    /// Answered with the queue, unless an earlier thread sleeps in a turn of it.
    Release {
        number: u64,
        done: mpsc::Sender<Arc<Entry>>,
    },
    /// A queue that another worker has released.
    TakeOver {
        entry: Arc<Entry>,
        done: mpsc::Sender<()>,
    },
    Synchronise {
        port: PortId,
        done: mpsc::Sender<()>,
    },
    Rewrap {
        port: PortId,
        rewrap: Arc<dyn Rewrap>,
        done: mpsc::Sender<()>,
    },
    Coalesce {
        port: PortId,
        coalescing: Option<Coalescing>,
        done: mpsc::Sender<()>,
    },
    Remove {
        port: PortId,
        done: mpsc::Sender<Removed>,
    },
    Pause {
        done: mpsc::Sender<()>,
    },
    Resume,
    Stop,
}

/// Work that its worker's thread makes, so that the memory of it is on the node of the worker's CPU.
pub(crate) type NewWork = Box<dyn FnOnce() -> Work + Send>;

/// What a worker had of a port.
pub(crate) type Removed = Vec<Arc<Entry>>;

/// A worker, for its datapath.
pub(crate) struct WorkerHandle {
    state: Arc<WorkerState>,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
}

impl WorkerHandle {
    pub(crate) fn new(
        state: Arc<WorkerState>,
        shared: Arc<Shared>,
        commands: mpsc::Sender<Command>,
    ) -> Self {
        Self { state, shared, commands }
    }

    pub(crate) fn send(&self, command: Command) {
        // This fails after the worker has got `Stop`. Then the command needs no effect.
        let _ = self.commands.send(command);
        self.shared.doorbells[self.state.number].ring();
    }

    pub(crate) fn state(&self) -> &Arc<WorkerState> {
        &self.state
    }

    /// Waits for the end of its thread, after [`Command::Stop`].
    pub(crate) fn join(&self) {
        if self.state.join().is_err() {
            error!(worker = self.state.number, "worker panicked");
        }
    }
}
