//! A worker as its datapath sees it: commands, and its end.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use port::{Coalescing, Rewrap};
use switch::PortId;
use tracing::error;

use crate::port::{IngressId, Port};
use crate::shared::Shared;
use crate::slot::Slot;
use crate::work::Work;

/// A command to a worker. What it removes, it hands to whoever asked: to drop a queue may unmap much memory, and the
/// worker's other queues would wait.
pub(crate) enum Command {
    Add { port: Arc<Port>, work: Work, id: Option<IngressId> },
    RemoveIngress { id: IngressId, done: mpsc::Sender<Vec<Slot>> },
    Synchronise { port: PortId, done: mpsc::Sender<()> },
    Rewrap { port: PortId, rewrap: Arc<dyn Rewrap>, done: mpsc::Sender<()> },
    Coalesce { port: PortId, coalescing: Option<Coalescing>, done: mpsc::Sender<()> },
    Remove { port: PortId, done: mpsc::Sender<Vec<Slot>> },
    Pause { done: mpsc::Sender<()> },
    Resume,
    Stop,
}

/// A worker, for its datapath.
pub(crate) struct WorkerHandle {
    number: usize,
    thread: u32,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    join: Option<JoinHandle<()>>,
}

impl WorkerHandle {
    /// A handle of worker `number`, which runs as this thread.
    pub(crate) fn new(
        number: usize,
        thread: u32,
        shared: Arc<Shared>,
        commands: mpsc::Sender<Command>,
        join: JoinHandle<()>,
    ) -> Self {
        Self { number, thread, shared, commands, join: Some(join) }
    }

    /// A handle of a worker that the caller's thread steps.
    pub(crate) fn stepped(shared: Arc<Shared>, commands: mpsc::Sender<Command>) -> Self {
        Self { number: 0, thread: 0, shared, commands, join: None }
    }

    pub(crate) fn send(&self, command: Command) {
        // This fails after the worker has got `Stop`. Then the command needs no effect.
        let _ = self.commands.send(command);
        self.shared.doorbells[self.number].ring();
    }

    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    pub(crate) fn join(&mut self) {
        if let Some(join) = self.join.take()
            && join.join().is_err()
        {
            error!(worker = self.number, "worker panicked");
        }
    }
}
