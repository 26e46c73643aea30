//! Workers that carry frames between ports.
//!
//! ```text
//!   Ingress ── window ──► route ──► batch per destination ──► Egress
//!   owned by one worker     │             locked once per batch
//!                        MacTable
//! ```
//!
//! A [`Datapath`] has the workers, the ports and the switch's table. It uses ports only through
//! the traits of crate [`port`](::port). Each worker owns ingress queues; the egress side of a port may be used
//! by every worker and is locked per batch. A frame stays in its ingress queue's window until it is
//! delivered or dropped: while a destination has no room, the frame waits there, so back-pressure
//! reaches the sender; a destination that stays without room drops it in the end. A frame that a
//! device still reads stays there too.
//!
//! A port's tasks are served between the queues by one of the workers, a step at a time.
//!
//! An ingress queue is *active* while it has work and for a moment after; then it is armed and
//! waits for its event. A worker whose queues are all armed sleeps: an idle daemon uses no CPU.

#![forbid(unsafe_code)]

mod account;
mod carry;
mod head_of_line;
mod in_flight;
mod port;
mod shared;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::port::{Doorbell, Queue, Rewrap, Task};
use switch::{Limits, MacAddr, MacTable, PortId};

pub use port::Port;
pub use shared::{Failure, FailureSink};

use carry::IngressQueue;
use shared::Shared;
use worker::{Command, Work, Worker, WorkerHandle};

/// How workers behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many workers.
    pub workers: usize,
    /// How long a queue without work is polled before it is armed.
    pub poll: Duration,
    /// Bounds of the switch's table.
    pub limits: Limits,
    /// Addresses that the table can hold.
    pub capacity: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: 1,
            poll: Duration::from_micros(20),
            limits: Limits::default(),
            capacity: switch::DEFAULT_CAPACITY,
        }
    }
}

/// The workers, the ports and the switch between them.
pub struct Datapath {
    shared: Arc<Shared>,
    workers: Vec<WorkerHandle>,
    next_worker: AtomicU16,
    /// Which workers have queues of which port.
    owners: Mutex<BTreeMap<PortId, Vec<usize>>>,
}

impl Datapath {
    /// Starts the workers.
    pub fn start(config: &Config, failures: FailureSink) -> std::io::Result<Self> {
        let count = config.workers.clamp(1, worker::MAX);
        let doorbells = (0..count).map(|_| Doorbell::new()).collect::<Result<_, _>>()?;
        let table = MacTable::new(config.capacity, config.limits);
        let shared = Arc::new(Shared::new(table, config.poll, failures, doorbells));
        let workers = (0..count)
            .map(|number| Worker::start(number, shared.clone()))
            .collect::<Result<_, _>>()?;
        let owners = Mutex::default();
        Ok(Self { shared, workers, next_worker: AtomicU16::new(0), owners })
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The kernel's thread ids of the workers, for CPU accounting.
    pub fn worker_threads(&self) -> Vec<u32> {
        self.workers.iter().map(WorkerHandle::thread).collect()
    }

    /// The addresses the switch has learnt.
    pub fn addresses(&self) -> Vec<switch::Entry> {
        self.shared.table.entries(self.shared.seconds())
    }

    /// Forgets aged addresses. Call it about once a second.
    pub fn sweep(&self) {
        self.shared.table.sweep(self.shared.seconds());
    }

    /// Adds a port. Its ingress queues and tasks are spread over the workers.
    pub fn attach(&self, name: &str, queues: Vec<Queue>, tasks: Vec<Box<dyn Task>>) -> Arc<Port> {
        let (ingress, egress): (Vec<_>, Vec<_>) =
            queues.into_iter().map(|queue| (queue.ingress, queue.egress)).unzip();
        let port = self.shared.add(name, egress);
        let carry = |(queue, ingress)| Work::Carry { queue, ingress: IngressQueue::new(ingress) };
        let carry = ingress.into_iter().enumerate().map(carry);
        let mut owners = Vec::new();
        for work in carry.chain(tasks.into_iter().map(Work::Serve)) {
            let next = usize::from(self.next_worker.fetch_add(1, Ordering::Relaxed));
            let worker = next % self.workers.len();
            self.workers[worker].send(Command::Add { port: port.clone(), work });
            owners.push(worker);
        }
        self.owners().insert(port.id(), owners);
        port
    }

    /// Adds an address to the switch's table before a frame has come from it. Frames for a guest that
    /// an earlier daemon served are then not flooded.
    pub fn teach(&self, port: PortId, address: MacAddr) {
        self.shared.table.learn(address, port, self.shared.seconds());
    }

    /// Wraps the queues of a port anew, while they are in use: no frame is lost. When this returns,
    /// all queues are as `rewrap` wants them.
    pub fn rewrap(&self, port: &Port, rewrap: &Arc<dyn Rewrap>) {
        port.rewrap(&**rewrap);
        let owners = self.owners().get(&port.id()).cloned().unwrap_or_default();
        self.ask(owners, |done| Command::Rewrap { port: port.id(), rewrap: rewrap.clone(), done });
    }

    /// Removes a port. When this returns, no worker holds anything of it and its memory is unmapped.
    pub fn detach(&self, id: PortId) {
        let Some(port) = self.shared.remove(id) else { return };
        let owners = self.owners().remove(&id).unwrap_or_default();
        self.ask(owners, |done| Command::Remove { port: id, done });
        port.close();
        self.shared.table.forget_port(id);
    }

    /// Sends a command to workers, and waits until they have run it.
    fn ask(&self, workers: Vec<usize>, command: impl Fn(mpsc::Sender<()>) -> Command) {
        let (done, finished) = mpsc::channel();
        for worker in workers {
            self.workers[worker].send(command(done.clone()));
        }
        drop(done);
        // Ends when every worker has dropped its sender, with or without an answer.
        while finished.recv().is_ok() {}
    }

    fn owners(&self) -> std::sync::MutexGuard<'_, BTreeMap<PortId, Vec<usize>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Datapath {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.send(Command::Stop);
        }
        for worker in &mut self.workers {
            worker.join();
        }
    }
}
