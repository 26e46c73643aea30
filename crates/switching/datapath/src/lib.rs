//! Workers that carry frames between ports.
//!
//! ```text
//!   TxQueue / uplink::Ingress ── window ──► route ──► batch per destination ──► RxQueue / uplink::Egress
//!        owned by one worker                 │             locked once a batch
//!                                         MacTable
//! ```
//!
//! A [`Datapath`] has the workers, the ports and the switch's table. Each worker owns ingress
//! queues; the egress side of a port may be used by every worker and is locked per batch. A
//! frame stays in its ingress queue's window until it is delivered or dropped: a destination
//! without room makes it wait there, so back-pressure reaches the sender's ring, and a
//! destination that stays without room is given up on (see `netback`'s stall).
//!
//! A guest's control ring is served between the queues by one of the workers, a step at a time.
//!
//! An ingress queue is *active* while it has work and for a moment after; then it is armed and
//! left to its event. A worker whose queues are all armed sleeps: an idle daemon uses no CPU.

#![forbid(unsafe_code)]

mod carry;
mod port;
mod queue;
mod worker;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hypervisor::Hypervisor;
use netback::ControlRing;
use switch::{Limits, MacTable, PortId};
use wire::ethernet::MacAddr;

pub use port::{Egress, Port};
pub use queue::Ingress;

use worker::{Command, Work, Worker, WorkerHandle};

/// How workers behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many.
    pub workers: usize,
    /// How long a queue that has run dry is polled before its event is asked for.
    pub poll: Duration,
    /// Bounds of the switch's table.
    pub limits: Limits,
    /// Addresses it can hold.
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

/// A queue broke and was dropped. Told once for a port, whichever of its queues were broken.
#[derive(Debug)]
pub struct Failure {
    /// The port it belonged to. When this is heard the port may be gone already and its number
    /// another's: ask the port known by it whether it [has failed](Port::has_failed).
    pub port: PortId,
    /// Why, for an operator.
    pub reason: String,
}

/// Told of failures, on the worker's thread: it must not block.
pub type FailureSink = Box<dyn Fn(Failure) + Send + Sync>;

/// The ports at one moment, by number.
type Ports<H> = Vec<Option<Arc<Port<H>>>>;

/// What workers share.
struct Shared<H: Hypervisor> {
    table: MacTable,
    ports: RwLock<Arc<Ports<H>>>,
    /// Counts changes of `ports`: a worker looks here once a pass, and at the lock only then.
    generation: AtomicU64,
    started: Instant,
    poll: Duration,
    failures: FailureSink,
    wakers: Box<[worker::Waker]>,
}

/// The workers, the ports and the switch between them.
pub struct Datapath<H: Hypervisor> {
    shared: Arc<Shared<H>>,
    workers: Vec<WorkerHandle<H>>,
    next_worker: AtomicU16,
    /// Which workers have queues of which port.
    owners: Mutex<BTreeMap<PortId, Vec<usize>>>,
}

impl<H: Hypervisor> Datapath<H> {
    /// Starts the workers.
    pub fn start(config: &Config, failures: FailureSink) -> std::io::Result<Self> {
        let count = config.workers.clamp(1, worker::MAX);
        let wakers = (0..count).map(|_| worker::Waker::new()).collect::<Result<_, _>>()?;
        let shared = Arc::new(Shared {
            table: MacTable::new(config.capacity, config.limits),
            ports: RwLock::default(),
            generation: AtomicU64::new(0),
            started: Instant::now(),
            poll: config.poll,
            failures,
            wakers,
        });
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

    /// The kernel's thread numbers of the workers, for CPU accounting.
    pub fn worker_threads(&self) -> Vec<u32> {
        self.workers.iter().map(WorkerHandle::thread).collect()
    }

    /// The ports there are.
    pub fn ports(&self) -> Vec<Arc<Port<H>>> {
        self.shared.ports().iter().flatten().cloned().collect()
    }

    /// The addresses the switch has learnt.
    pub fn addresses(&self) -> Vec<switch::Entry> {
        self.shared.table.entries(self.shared.seconds())
    }

    /// Forgets addresses that were not seen for long. To be called about once a second.
    pub fn sweep(&self) {
        self.shared.table.sweep(self.shared.seconds());
    }

    /// Adds a port: its egress queues can be sent to, its ingress queues are spread over the
    /// workers, and so is its control ring, if it has one.
    pub fn attach(
        &self,
        name: &str,
        egress: Vec<Egress<H>>,
        ingress: Vec<Ingress<H>>,
        control: Option<ControlRing<H>>,
    ) -> Arc<Port<H>> {
        let events: Vec<_> = egress.iter().map(Egress::event).collect();
        let port = self.shared.add(name, egress);
        let carry = |(queue, (ingress, room))| Work::Carry { queue, ingress, room };
        let carry = ingress.into_iter().zip(events).enumerate().map(carry);
        let mut owners = Vec::new();
        for work in carry.chain(control.map(Work::Serve)) {
            let next = usize::from(self.next_worker.fetch_add(1, Ordering::Relaxed));
            let worker = next % self.workers.len();
            self.workers[worker].send(Command::Add { port: port.clone(), work });
            owners.push(worker);
        }
        self.owners().insert(port.id(), owners);
        port
    }

    /// Tells the switch where an address is before it has been heard of: frames for a guest that
    /// was there before this datapath was need not go to everybody.
    pub fn teach(&self, port: PortId, address: MacAddr) {
        self.shared.table.learn(address, port, self.shared.seconds());
    }

    /// Removes a port. When this returns no worker has anything of it any more: its memory is
    /// unmapped and its owner may be told so.
    pub fn detach(&self, id: PortId) {
        let Some(port) = self.shared.remove(id) else { return };
        let owners = self.owners().remove(&id).unwrap_or_default();
        let (done, finished) = mpsc::channel();
        for worker in owners {
            self.workers[worker].send(Command::Remove { port: id, done: done.clone() });
        }
        drop(done);
        // Ends when every worker has dropped its sender, whether it answered or not.
        while finished.recv().is_ok() {}
        port.close();
        self.shared.table.forget_port(id);
    }

    fn owners(&self) -> std::sync::MutexGuard<'_, BTreeMap<PortId, Vec<usize>>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<H: Hypervisor> Drop for Datapath<H> {
    fn drop(&mut self) {
        for worker in &self.workers {
            worker.send(Command::Stop);
        }
        for worker in &mut self.workers {
            worker.join();
        }
    }
}

impl<H: Hypervisor> Shared<H> {
    fn ports(&self) -> Arc<Ports<H>> {
        self.ports.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells that a port has failed.
    fn fail(&self, port: &Port<H>, reason: String) {
        if port.fail() {
            (self.failures)(Failure { port: port.id(), reason });
        }
    }

    /// The switch's clock.
    fn seconds(&self) -> u32 {
        u32::try_from(self.started.elapsed().as_secs()).unwrap_or(u32::MAX)
    }

    fn change<R>(&self, change: impl FnOnce(&mut Ports<H>) -> R) -> R {
        let mut ports = self.ports.write().unwrap_or_else(PoisonError::into_inner);
        let mut copy = Ports::clone(&ports);
        let result = change(&mut copy);
        *ports = Arc::new(copy);
        self.generation.fetch_add(1, Ordering::Release);
        result
    }

    fn add(&self, name: &str, egress: Vec<Egress<H>>) -> Arc<Port<H>> {
        self.change(|ports| {
            let number = ports.iter().position(Option::is_none).unwrap_or(ports.len());
            let id = PortId(u16::try_from(number).unwrap_or(u16::MAX));
            let port = Arc::new(Port::new(id, name, egress));
            if number == ports.len() {
                ports.push(None);
            }
            ports[number] = Some(port.clone());
            port
        })
    }

    fn remove(&self, id: PortId) -> Option<Arc<Port<H>>> {
        self.change(|ports| ports.get_mut(usize::from(id.0))?.take())
    }
}
