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
mod carrier;
mod carry;
mod deliver;
mod head_of_line;
mod in_flight;
mod move_log;
mod parts;
mod port;
mod route;
mod shared;
mod slot;
mod storm;
mod work;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ::port::{Doorbell, Ingress, Queue, Rewrap, Task};
use switch::{LearningCounts, Limits, MacAddr, MacTable, PortId};

pub use port::{IngressId, LockWaits, Port};
pub use shared::{Failure, FailureSink};
pub use switch::TeachError;

use carry::IngressQueue;
use move_log::MoveLog;
use shared::Shared;
use work::Work;
use worker::{Command, Worker, WorkerHandle};

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
    /// Copies of flooded frames that one port may cause per second; zero for no limit.
    pub flood_copies: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: 1,
            poll: Duration::from_micros(20),
            limits: Limits::default(),
            capacity: switch::DEFAULT_CAPACITY,
            flood_copies: switch::FLOOD_COPIES,
        }
    }
}

/// The workers, the ports and the switch between them.
pub struct Datapath {
    shared: Arc<Shared>,
    workers: Vec<WorkerHandle>,
    next_worker: AtomicU16,
    next_ingress: AtomicU64,
    /// Which workers have queues of which port.
    owners: Mutex<BTreeMap<PortId, Vec<usize>>>,
    moves: Mutex<MoveLog>,
}

impl Datapath {
    /// Starts the workers.
    pub fn start(config: &Config, failures: FailureSink) -> std::io::Result<Self> {
        let count = config.workers.clamp(1, worker::MAX);
        let doorbells = (0..count).map(|_| Doorbell::new()).collect::<Result<_, _>>()?;
        let table = MacTable::new(config.capacity, config.limits);
        let flood_copies = config.flood_copies;
        let shared = Shared::new(table, config.poll, flood_copies, failures, doorbells);
        let shared = Arc::new(shared);
        let workers = (0..count)
            .map(|number| Worker::start(number, shared.clone()))
            .collect::<Result<_, _>>()?;
        let (owners, moves) = (Mutex::default(), Mutex::default());
        let (next_worker, next_ingress) = (AtomicU16::new(0), AtomicU64::new(0));
        Ok(Self { shared, workers, next_worker, next_ingress, owners, moves })
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The kernel's thread ids of the workers, for CPU accounting.
    pub fn worker_threads(&self) -> Vec<u32> {
        self.workers.iter().map(WorkerHandle::thread).collect()
    }

    /// The addresses in the switch's table.
    pub fn addresses(&self) -> Vec<switch::Entry> {
        self.shared.table.entries(self.shared.seconds())
    }

    /// What became of the source addresses of all frames.
    pub fn learning(&self) -> LearningCounts {
        self.shared.table.counts()
    }

    /// Forgets aged addresses, and logs which stations moved. Call it about once a second; more often costs nothing.
    pub fn sweep(&self) {
        let now = self.shared.seconds();
        let mut log = self.moves.lock().unwrap_or_else(PoisonError::into_inner);
        if log.is_written(now) {
            return;
        }
        self.shared.table.sweep(now);
        let moves = self.shared.table.take_moves(now);
        log.write(&moves, &self.shared.ports(), now);
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
            self.workers[worker].send(Command::Add { port: port.clone(), work, id: None });
            owners.push(worker);
        }
        // Each once, however many queues it has: a command is for all of them.
        owners.sort_unstable();
        owners.dedup();
        self.owners().insert(port.id(), owners);
        port
    }

    /// Adds an ingress queue to a port that is attached. Frames out of the port do not use it.
    pub fn add_ingress(&self, port: &Arc<Port>, ingress: Box<dyn Ingress>) -> IngressId {
        let next = usize::from(self.next_worker.fetch_add(1, Ordering::Relaxed));
        let worker = next % self.workers.len();
        let serial = self.next_ingress.fetch_add(1, Ordering::Relaxed);
        let id = IngressId { port: port.id(), serial };
        let ingress = IngressQueue::new(ingress);
        let work = Work::Carry { queue: usize::MAX, ingress };
        self.workers[worker].send(Command::Add { port: port.clone(), work, id: Some(id) });
        let mut owners = self.owners();
        let owners = owners.entry(port.id()).or_default();
        if !owners.contains(&worker) {
            owners.push(worker);
        }
        id
    }

    /// Removes an ingress queue that [`add_ingress`](Self::add_ingress) has added. When this returns, it is
    /// dropped.
    pub fn remove_ingress(&self, id: IngressId) {
        self.ask(self.owners_of(id.port), |done| Command::RemoveIngress { id, done });
    }

    /// Waits until all turns of a port's queues have ended that have begun already. Each queue has another
    /// turn soon, with or without frames.
    pub fn synchronise(&self, port: PortId) {
        self.ask(self.owners_of(port), |done| Command::Synchronise { port, done });
    }

    fn owners_of(&self, port: PortId) -> Vec<usize> {
        self.owners().get(&port).cloned().unwrap_or_default()
    }

    /// Says that a station is on a port, before a frame has come from it: frames for it are not flooded, and no other
    /// port can take its address until the port is detached. Call it from one thread at a time.
    ///
    /// # Errors
    /// No station can have the address, another port was taught to have it, or the table has no place for it.
    pub fn teach(&self, port: PortId, address: MacAddr) -> Result<(), TeachError> {
        self.shared.table.teach(address, port, self.shared.seconds())
    }

    /// Wraps the queues of a port anew, while they are in use: no frame is lost. When this returns,
    /// all queues are as `rewrap` wants them.
    pub fn rewrap(&self, port: &Port, rewrap: &Arc<dyn Rewrap>) {
        port.rewrap(&**rewrap);
        let owners = self.owners_of(port.id());
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
