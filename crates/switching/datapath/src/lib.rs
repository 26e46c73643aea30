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
mod activity;
mod apart;
mod balance;
mod batches;
mod carrier;
mod carry;
mod command;
mod copies;
mod deliver;
mod domains;
mod egress_queue;
mod flow_queues;
mod head_of_line;
mod held;
mod histogram;
mod in_flight;
mod inbox;
mod loads;
mod move_log;
mod moves;
mod pair;
mod parts;
mod placement;
mod port;
mod prediction;
mod probes;
mod residence;
mod route;
mod shared;
mod sleepers;
mod slot;
mod targets;
mod times;
mod wake_ups;
mod work;
mod worker;
mod worker_state;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use ::port::{Coalescing, Egress, Ingress, Queue, Rewrap, Task};
use switch::{LearningCounts, Limits, MacAddr, MacTable, Membership, PortId};

pub use batches::BatchCounts;
pub use egress_queue::LockWaits;
pub use histogram::Distribution;
pub use loads::{QueueLoad, QueueName, Shares, WorkerLoad};
pub use moves::{Balance, BalanceRule, MoveError, MoveReason, PastMove, QueueMove};
pub use placement::Workers;
pub use port::{IngressId, MemorySleep, Port, PortMemory};
pub use shared::{Cause, Failure, FailureSink, Sleep, SleepSink};
pub use sleepers::LivenessCheck;
pub use switch::TeachError;
pub use times::WorkerTimes;
pub use worker::LockstepWorker;

use carry::IngressQueue;
use command::Command;
use command::NewWork;
use loads::Readings;
use move_log::MoveLog;
use moves::Balancing;
use placement::{Owners, Placement};
use shared::{Attachment, Shared};
use sleepers::SleeperWatch;
use slot::Entry;
use wake_ups::WakeUps;
use work::Work;
use worker::Worker;
use worker_state::WorkerHandle;

/// How workers behave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How many workers.
    pub workers: usize,
    /// The CPU of each of them, by number; a worker without one runs where the scheduler puts it.
    pub cpus: Vec<usize>,
    /// How long a worker without work polls at most before it sleeps, while round trips are under way.
    pub poll: Duration,
    /// Workers that have queues never sleep.
    pub always_poll: bool,
    /// Bounds of the switch's table.
    pub limits: Limits,
    /// Addresses that the table can hold.
    pub capacity: usize,
    /// Copies of flooded frames that one port may cause per second; zero for no limit.
    pub flood_copies: u32,
    /// Whether MAC addresses are part of the hash that spreads flows over a port's queues.
    pub hash_macs: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: 1,
            cpus: Vec::new(),
            poll: poller::POLL,
            always_poll: false,
            limits: Limits::default(),
            capacity: switch::DEFAULT_CAPACITY,
            flood_copies: switch::FLOOD_COPIES,
            hash_macs: false,
        }
    }
}

/// What a port consists of when it is attached.
#[derive(Default)]
pub struct PortParts {
    /// Its queues.
    pub queues: Vec<Queue>,
    /// Its other work.
    pub tasks: Vec<Box<dyn Task>>,
    /// When a worker that sleeps is woken up for frames from the port; by default each frame wakes it.
    pub coalescing: Option<Coalescing>,
    /// How its frames get to and from ports beside which a thread must not sleep.
    pub memory: PortMemory,
    /// Whether a flow's frames go to the queue from which its own last came, if there are several: for guests that send through the queue of the
    /// CPU.
    pub steers_flows: bool,
}

/// The workers, the ports and the switch between them.
pub struct Datapath {
    shared: Arc<Shared>,
    workers: Vec<WorkerHandle>,
    /// The thread that watches for workers that sleep, if they have threads.
    sleepers: Option<SleeperWatch>,
    next_ingress: AtomicU64,
    placement: Mutex<Placement>,
    /// Which workers have queues and tasks of which port.
    owners: Mutex<BTreeMap<PortId, Owners>>,
    moves: Mutex<MoveLog>,
    /// What workers had done lately.
    readings: Mutex<Readings>,
    balancing: Mutex<Balancing>,
    /// The last queues that have moved.
    past: Mutex<VecDeque<PastMove>>,
}

impl Datapath {
    /// Starts the workers.
    pub fn start(config: &Config, failures: FailureSink) -> std::io::Result<Self> {
        let count = config.workers.clamp(1, worker::MAX);
        let shared = Shared::of(config, failures, count)?;
        let workers = (0..count)
            .map(|number| Worker::start(number, shared.clone()))
            .collect::<Result<Vec<_>, _>>()?;
        let states = workers.iter().map(|worker| worker.state().clone()).collect();
        let sleepers = Some(SleeperWatch::start(shared.clone(), states)?);
        Ok(Self::with_workers(shared, workers, sleepers))
    }

    /// A datapath with one worker, which the caller runs: worker and sender take turns on one thread, so that each run
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
        let poll = Duration::ZERO;
        let config = Config { poll, always_poll: false, ..config.clone() };
        let shared = Shared::of(&config, failures, 1)?;
        let (worker, handle) = Worker::new(0, shared.clone())?;
        Ok((Self::with_workers(shared, vec![handle], None), LockstepWorker::new(worker)))
    }

    fn with_workers(
        shared: Arc<Shared>,
        workers: Vec<WorkerHandle>,
        sleepers: Option<SleeperWatch>,
    ) -> Self {
        let (owners, moves) = (Mutex::default(), Mutex::default());
        let placement = Mutex::new(Placement::new(workers.len()));
        let next_ingress = AtomicU64::new(0);
        let readings = Readings::new();
        let balancing = Mutex::new(Balancing::new(readings.before().clone()));
        let readings = Mutex::new(readings);
        Self {
            shared,
            workers,
            sleepers,
            next_ingress,
            placement,
            owners,
            moves,
            readings,
            balancing,
            past: Mutex::default(),
        }
    }

    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// The kernel's thread ids of the workers, for CPU accounting.
    pub fn worker_threads(&self) -> Vec<u32> {
        let id = |worker: &WorkerHandle| worker.state().with_thread(|thread| thread.id);
        self.workers.iter().map(|worker| id(worker).unwrap_or(0)).collect()
    }

    /// Calls `sink` from now on for each sleep of a worker in the memory of a port. Only the first sink is called.
    pub fn on_sleep(&self, sink: SleepSink) {
        let _ = self.shared.on_sleep.set(sink);
    }

    /// The addresses that the switch knows.
    pub fn addresses(&self) -> Vec<switch::MacEntry> {
        let (ports, seconds) = (self.shared.ports(), self.shared.seconds());
        self.tables(&ports).flat_map(|table| table.entries(seconds)).collect()
    }

    /// The tables of ports without a VLAN, and of all VLANs.
    fn tables<'a>(&'a self, ports: &'a shared::Ports) -> impl Iterator<Item = &'a MacTable> {
        let vlans = ports.domains.iter().flat_map(|domains| domains.tables());
        std::iter::once(&self.shared.table).chain(vlans.map(|(_, table)| &**table))
    }

    /// What became of the source addresses of all frames.
    pub fn learning(&self) -> LearningCounts {
        self.shared.table.counts()
    }

    /// Forgets aged addresses and members of groups, and logs which stations moved. Call it about once a second; more often costs
    /// nothing.
    pub fn sweep(&self) {
        self.sweep_at(self.shared.seconds());
    }

    /// As [`sweep`](Self::sweep), at this second since the start: tests do not wait.
    pub fn sweep_at(&self, now: u32) {
        let mut log = self.moves.lock().unwrap_or_else(PoisonError::into_inner);
        if log.is_written(now) {
            return;
        }
        let ports = self.shared.ports();
        if ports.snoops {
            self.shared.snooping.sweep(now);
        }
        let mut moves = Vec::new();
        for table in self.tables(&ports) {
            table.sweep(now);
            moves.extend(table.take_moves(now));
        }
        log.write(&moves, &ports, now);
    }

    /// Adds a port. Its ingress queues are spread over the workers so that each has as many as the others; its tasks too.
    /// A worker that is within a round learns of the port in the next one: see [`synchronise`](Self::synchronise).
    pub fn attach(&self, name: &str, queues: Vec<Queue>, tasks: Vec<Box<dyn Task>>) -> Arc<Port> {
        self.attach_member(name, PortParts { queues, tasks, ..PortParts::default() }, None)
    }

    /// As [`attach`](Self::attach). `membership` says in which VLANs the port is, and whether it is isolated.
    pub fn attach_member(
        &self,
        name: &str,
        parts: PortParts,
        membership: Option<Membership>,
    ) -> Arc<Port> {
        self.add(name, parts, Attachment::Switch(membership))
    }

    fn add(&self, name: &str, parts: PortParts, attachment: Attachment) -> Arc<Port> {
        let PortParts { queues, tasks, coalescing, memory, steers_flows } = parts;
        let (ingress, egress): (Vec<_>, Vec<_>) =
            queues.into_iter().map(|queue| (queue.ingress, queue.egress)).unzip();
        let port = self.shared.add(name, egress, attachment, (memory, steers_flows));
        let carry = |(queue, ingress)| new_queue(queue, ingress, coalescing);
        let carry = ingress.into_iter().enumerate().map(carry);
        let owners = self.placement().place(carry.len(), tasks.len());
        let serve = |task| -> NewWork { Box::new(|| Work::Serve(task)) };
        let tasks = tasks.into_iter().map(serve).zip(&owners.tasks);
        for (work, worker) in carry.zip(&owners.queues).chain(tasks) {
            self.workers[*worker].send(Command::Add { port: port.clone(), work, id: None });
        }
        self.owners().insert(port.id(), owners);
        port
    }

    /// Adds an ingress queue to a port that is attached. Frames out of the port do not use it. `coalescing`: see
    /// [`PortParts`].
    pub fn add_ingress(
        &self,
        port: &Arc<Port>,
        ingress: Box<dyn Ingress>,
        coalescing: Option<Coalescing>,
    ) -> IngressId {
        let serial = self.next_ingress.fetch_add(1, Ordering::Relaxed);
        let id = IngressId { port: port.id(), serial };
        let work = new_queue(usize::MAX, ingress, coalescing);
        let mut owners = self.owners();
        let owner = owners.entry(port.id()).or_default();
        let worker = {
            let mut placement = self.placement();
            let allowed = placement.allowed(port.id(), &owner.workers);
            placement.place_queue(allowed)
        };
        self.workers[worker].send(Command::Add { port: port.clone(), work, id: Some(id) });
        owner.added.insert(serial, worker);
        id
    }

    /// Removes an ingress queue that [`add_ingress`](Self::add_ingress) has added. When this returns, it is
    /// dropped.
    pub fn remove_ingress(&self, id: IngressId) {
        let removed =
            self.owners().get_mut(&id.port).and_then(|owners| owners.added.remove(&id.serial));
        // Otherwise its port is detached, and it is dropped.
        if let Some(worker) = removed {
            let removed = self.send_all(&[worker], |done| Command::RemoveIngress { id, done });
            Entry::let_go(removed.into_iter().flatten().collect());
            self.placement().release_queue(worker);
        }
    }

    /// Replaces the ingress queue of this number, in whose turn a worker [sleeps](Sleep). What that worker had in hand of
    /// it is lost. Does nothing if it has woken up.
    pub fn replace_sleeping_ingress(
        &self,
        port: &Arc<Port>,
        queue: usize,
        ingress: Box<dyn Ingress>,
        coalescing: Option<Coalescing>,
    ) {
        let worker =
            self.owners().get(&port.id()).and_then(|owners| owners.queues.get(queue).copied());
        let Some(worker) = worker else {
            return;
        };
        let wake_ups = WakeUps::new(coalescing, Instant::now());
        let work = Work::Carry { queue, ingress: IngressQueue::new(queue, ingress), wake_ups };
        let (done, unused) = mpsc::channel();
        self.workers[worker].send(Command::ReplaceSleeping {
            port: port.clone(),
            queue,
            work,
            done,
        });
        drop(unused.recv());
    }

    /// Puts other egress sides, which `make` makes by the queue's number, in the places of those of a port in which workers
    /// [sleep](Sleep). Returns how many.
    pub fn replace_sleeping_egress(
        &self,
        port: &Port,
        make: impl Fn(usize) -> Option<Box<dyn Egress>>,
    ) -> usize {
        port.replace_sleeping(make)
    }

    /// Removes the queues of a port, which stays attached: frames for it wait until it is [resumed](Self::resume_port). When this returns, no
    /// worker holds anything of them but one that [sleeps](Sleep).
    pub fn suspend_port(&self, port: &Port) {
        let id = port.id();
        port.suspend();
        // Unlike those of a port that goes, its queues may be dropped late, by a thread that was replaced and has not ended: it takes no further turn of
        // them, and whoever suspends a port revokes their memory.
        self.ask_workers_of(id, |done| Command::Remove { port: id, done });
    }

    /// Gives other queues to a port that is suspended. Returns false if they are not as many as it has, or two workers sleep in those before: it
    /// must be detached then.
    pub fn resume_port(
        &self,
        port: &Arc<Port>,
        queues: Vec<Queue>,
        coalescing: Option<Coalescing>,
    ) -> bool {
        let owners = self.owners().get(&port.id()).map(|owners| owners.queues.clone());
        let Some(owners) = owners.filter(|owners| owners.len() == queues.len()) else {
            return false;
        };
        let (ingress, egress): (Vec<_>, Vec<_>) =
            queues.into_iter().map(|queue| (queue.ingress, queue.egress)).unzip();
        if !port.resume(egress) {
            return false;
        }
        for ((queue, ingress), worker) in ingress.into_iter().enumerate().zip(owners) {
            let work = new_queue(queue, ingress, coalescing);
            self.workers[worker].send(Command::Add { port: port.clone(), work, id: None });
        }
        true
    }

    /// Waits until all turns of a port's queues have ended that have begun already. Each queue has another
    /// turn soon, with or without frames.
    pub fn synchronise(&self, port: PortId) {
        self.ask_workers_of(port, |done| Command::Synchronise { port, done });
    }

    /// Stops carrying frames: they wait where they are. When this returns, no worker uses a queue until [`resume`](Self::resume).
    /// Ports may come and go meanwhile.
    pub fn pause(&self) {
        self.ask(&self.all_workers(), |done| Command::Pause { done });
    }

    /// Carries frames again.
    pub fn resume(&self) {
        self.workers.iter().for_each(|worker| worker.send(Command::Resume));
    }

    /// Says that a station is on a port in the switch, before a frame has come from it: frames for it are not flooded, and no other
    /// port can take its address until the port is detached. Call it from one thread at a time.
    ///
    /// # Errors
    /// No station can have the address, another port was taught to have it, or the table has no place for it.
    pub fn teach(&self, port: PortId, address: MacAddr) -> Result<(), TeachError> {
        let seconds = self.shared.seconds();
        let ports = self.shared.ports();
        if ports.targets.contains(port) {
            return Ok(());
        }
        let Some((domains, membership)) = ports.member(port) else {
            return self.shared.table.teach(address, port, seconds);
        };
        let numbers = membership.domains().into_iter().filter_map(|number| domains.get(number));
        let mut tables = numbers.map(|domain| domain.table(&self.shared.table));
        tables.try_for_each(|table| table.teach(address, port, seconds))
    }

    /// Puts a port into other VLANs while it is in use. Its addresses are forgotten, those that were taught too. When this returns, it
    /// gets no more frames of those VLANs that it has left. A port outside of the switch is in none.
    pub fn set_member(&self, port: PortId, membership: Option<Membership>) {
        self.shared.set_member(port, membership);
        // After that, every worker knows.
        self.ask(&self.all_workers(), |done| Command::Synchronise { port, done });
        self.shared.forget(port, false);
    }

    /// Wraps the queues of a port anew, while they are in use: no frame is lost. When this returns,
    /// all queues are as `rewrap` wants them.
    pub fn rewrap(&self, port: &Port, rewrap: &Arc<dyn Rewrap>) {
        port.rewrap(&**rewrap);
        let id = port.id();
        self.ask_workers_of(id, |done| Command::Rewrap { port: id, rewrap: rewrap.clone(), done });
    }

    /// Sets when a worker that sleeps is woken up for frames from a port; see [`PortParts`].
    pub fn coalesce(&self, port: &Port, coalescing: Option<Coalescing>) {
        let port = port.id();
        self.ask_workers_of(port, |done| Command::Coalesce { port, coalescing, done });
    }

    /// Removes a port. When this returns, no worker holds anything of it and its memory is unmapped, unless a thread sleeps there.
    pub fn detach(&self, id: PortId) {
        let Some(port) = self.shared.remove(id) else { return };
        let owners = self.owners().remove(&id).unwrap_or_default();
        let removed = self.send_all(&owners.workers(), |done| Command::Remove { port: id, done });
        Entry::let_go(removed.into_iter().flatten().collect());
        self.placement().release(id, &owners);
        port.close();
        self.shared.release(&port);
        self.shared.forget(id, true);
    }

    /// Sends a command to workers, and waits until they have run it. Drops what they answer: not they, but this thread takes the
    /// time for that.
    fn ask<T>(&self, workers: &[usize], command: impl Fn(mpsc::Sender<T>) -> Command) {
        let answers = self.send_all(workers, command);
        // Ends when every worker has dropped its sender, with or without an answer.
        while answers.recv().is_ok() {}
    }

    /// The numbers of all workers.
    fn all_workers(&self) -> Vec<usize> {
        (0..self.workers.len()).collect()
    }

    /// The same, to the workers of a port. A queue that moves meanwhile is moved before the command is sent, or after it is run.
    fn ask_workers_of<T>(&self, port: PortId, command: impl Fn(mpsc::Sender<T>) -> Command) {
        let answers = {
            let owners = self.owners();
            let workers = owners.get(&port).map(Owners::workers).unwrap_or_default();
            self.send_all(&workers, command)
        };
        while answers.recv().is_ok() {}
    }

    fn send_all<T>(
        &self,
        workers: &[usize],
        command: impl Fn(mpsc::Sender<T>) -> Command,
    ) -> mpsc::Receiver<T> {
        let (done, answers) = mpsc::channel();
        for worker in workers {
            self.workers[*worker].send(command(done.clone()));
        }
        answers
    }

    fn owners(&self) -> MutexGuard<'_, BTreeMap<PortId, Owners>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn placement(&self) -> MutexGuard<'_, Placement> {
        self.placement.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An ingress queue for a worker.
fn new_queue(queue: usize, ingress: Box<dyn Ingress>, coalescing: Option<Coalescing>) -> NewWork {
    Box::new(move || {
        let wake_ups = WakeUps::new(coalescing, Instant::now());
        Work::Carry { queue, ingress: IngressQueue::new(queue, ingress), wake_ups }
    })
}

impl Drop for Datapath {
    fn drop(&mut self) {
        if let Some(watch) = self.sleepers.take() {
            watch.end();
        }
        for worker in &self.workers {
            worker.send(Command::Stop);
        }
        for worker in &self.workers {
            worker.join();
        }
    }
}
