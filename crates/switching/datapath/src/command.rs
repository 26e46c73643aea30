//! Commands to a worker.

use std::sync::{Arc, mpsc};

use port::{Coalescing, Rewrap};
use switch::PortId;

use crate::port::{IngressId, Port};
use crate::slot::Entry;
use crate::work::Work;

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
    /// Replaces the queue in whose turn an earlier thread still sleeps. The new queue comes back if it is not needed.
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
