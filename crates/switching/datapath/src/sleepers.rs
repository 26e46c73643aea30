//! Finds workers that sleep in the memory of a guest, and has another thread take their places.
//!
//! Whoever owns such memory can make holes in it, have it swapped out, or hold back its pages, and a thread that touches it sleeps where no signal
//! wakes it ([`worker_state`](crate::worker_state)). What the queue of that turn, and the queue to which its frames go, wait for is their own; nobody
//! else waits longer than a [`TICK`] and the checks that follow it.
//!
//! It also rings workers that have something to do some time after an instant ([`Armed::AsleepPast`](port::Armed::AsleepPast)): on Xen, a
//! timer that is set and cancelled around each frame of a conversation costs more than these rare rings.
//!
//! A [`LivenessCheck`] asks the workers whether they still take turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use switch::PortId;
use tracing::{error, warn};

use crate::Datapath;
use crate::command::Command;
use crate::port::Port;
use crate::shared::{Shared, Sleep};
use crate::worker::Worker;
use crate::worker_state::{WorkerHandle, WorkerState, WorkerThread};

/// How often it checks the workers while one does not wait for events. A check takes the CPU from whatever runs there, perhaps a worker: at 1 ms that was 2 % of
/// a worker that shares its CPU.
const TICK: Duration = Duration::from_millis(3);
/// How often it checks them while one sleeps.
const SHORT_TICK: Duration = Duration::from_micros(250);
/// A worker that sleeps at this many checks in a row, in one round, is replaced.
const ASLEEP: u32 = 3;
/// After this many checks without a busy worker it sleeps until one wakes it.
const IDLE_LOOKS: u32 = 100;
/// Checks over which short sleeps are counted, and how many of them make their ports suspect.
const WINDOW: u32 = 32;
const SHORT_SLEEPS: u32 = 8;

/// The thread that looks at the workers.
pub(crate) struct SleeperWatch {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl SleeperWatch {
    pub(crate) fn start(
        shared: Arc<Shared>,
        workers: Vec<Arc<WorkerState>>,
    ) -> std::io::Result<Self> {
        let is_over = Arc::<AtomicBool>::default();
        let workers = workers.into_iter().map(Looks::new).collect();
        let thread = std::thread::Builder::new().name("sleepers".to_owned());
        let thread = thread.spawn({
            let is_over = is_over.clone();
            move || run(&shared, &is_over, workers)
        })?;
        Ok(Self { is_over, thread })
    }

    pub(crate) fn end(self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        let _ = self.thread.join();
    }
}

fn run(shared: &Arc<Shared>, is_over: &AtomicBool, mut workers: Vec<Looks>) {
    let is_over = || is_over.load(Ordering::SeqCst);
    let mut idle = 0;
    while !is_over() {
        let someone_sleeps = workers.iter().any(|worker| worker.asleep > 0);
        std::thread::park_timeout(if someone_sleeps { SHORT_TICK } else { TICK });
        let mut works = false;
        for worker in &mut workers {
            works |= worker.look(shared);
        }
        idle = if works { 0 } else { idle + 1 };
        if idle >= IDLE_LOOKS {
            idle = 0;
            let works = || workers.iter().any(Looks::is_awaited);
            shared.sleepers.doze_until(|| works() || is_over());
        }
    }
}

/// What was seen of a worker.
struct Looks {
    worker: Arc<WorkerState>,
    /// The round in which it was last found asleep, and at how many checks.
    round: u64,
    asleep: u32,
    /// Looks of the current [`WINDOW`], those of them that found it asleep, and the ports of the last one.
    looks: u32,
    short: u32,
    ports: [Option<u64>; 2],
}

impl Looks {
    fn new(worker: Arc<WorkerState>) -> Self {
        Self { worker, round: 0, asleep: 0, looks: 0, short: 0, ports: [None; 2] }
    }

    /// Whether the worker works, or waits for a ring.
    fn is_awaited(&self) -> bool {
        let is_awaited = |thread: &WorkerThread| {
            thread.activity.round().is_some() || thread.activity.past().is_some()
        };
        self.worker.with_thread(is_awaited) == Some(true)
    }

    /// Rings the worker once its instant has passed. Returns whether it waits for a ring.
    fn ring(&self, shared: &Shared) -> bool {
        let past = self.worker.with_thread(|thread| thread.activity.past()).flatten();
        let Some(past) = past else { return false };
        if shared.started.elapsed() >= past {
            shared.doorbells[self.worker.number].ring();
        }
        true
    }

    /// Looks at the worker. Returns whether it works, or waits for a ring.
    fn look(&mut self, shared: &Arc<Shared>) -> bool {
        let seen = self.worker.with_thread(|thread| {
            let round = thread.activity.round()?;
            Some((round, thread.is_asleep(), thread.activity.ports()))
        });
        let Some((round, is_asleep, ports)) = seen.flatten() else {
            self.asleep = 0;
            return self.ring(shared);
        };
        self.looks += 1;
        if is_asleep {
            self.asleep = if self.round == round { self.asleep + 1 } else { 1 };
            self.round = round;
            self.short += 1;
            self.ports = ports;
        } else {
            self.asleep = 0;
        }
        if self.asleep >= ASLEEP {
            self.asleep = 0;
            self.replace(shared, ports);
        }
        if self.looks >= WINDOW {
            if self.short >= SHORT_SLEEPS {
                self.report(shared, self.ports, false);
            }
            (self.looks, self.short) = (0, 0);
        }
        true
    }

    fn replace(&mut self, shared: &Arc<Shared>, ports: [Option<u64>; 2]) {
        let worker = self.worker.number;
        // Before the new thread may find them locked.
        for port in ports.into_iter().flatten().filter_map(|serial| find(shared, serial)) {
            port.note_sleeper();
        }
        match Worker::replace(&self.worker, shared.clone()) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                error!(worker, %error, "a worker sleeps in a guest's memory, and no thread can take its place");
                return;
            }
        }
        (self.looks, self.short) = (0, 0);
        self.report(shared, ports, true);
    }

    fn report(&self, shared: &Shared, ports: [Option<u64>; 2], is_replaced: bool) {
        let queue = ports[0].and_then(|from| self.worker.queue_in_turn(from));
        let has_left = ports.into_iter().flatten().any(|serial| !is_attached(shared, serial));
        let [from, to] = ports.map(|serial| find(shared, serial?));
        let name = |port: &Option<Arc<Port>>| port.as_ref().map(|port| port.name().to_owned());
        warn!(
            worker = self.worker.number,
            from = name(&from),
            to = name(&to),
            is_replaced,
            "a worker slept in a guest's memory"
        );
        if let Some(sink) = shared.on_sleep.get() {
            let queue = queue.filter(|queue| *queue != usize::MAX);
            sink(Sleep { from, queue, to, has_left, is_replaced });
        }
    }
}

/// The port with this serial number, which may be about to be detached.
fn find(shared: &Shared, serial: u64) -> Option<Arc<Port>> {
    let ports = shared.ports();
    let mut all = ports.list.iter().flatten().chain(&ports.leaving);
    all.find(|port| port.serial() == serial).cloned()
}

fn is_attached(shared: &Shared, serial: u64) -> bool {
    shared.ports().list.iter().flatten().any(|port| port.serial() == serial)
}

/// A port that no queue has.
const NOBODY: PortId = PortId(u16::MAX);

/// A question to all workers.
#[derive(Debug)]
pub struct LivenessCheck {
    /// By worker. Each sends one answer.
    answers: Vec<mpsc::Receiver<()>>,
    missing: Vec<bool>,
}

impl LivenessCheck {
    /// Whether all have answered by now. Does not wait.
    pub fn is_passed(&mut self) -> bool {
        !self.missing().contains(&true)
    }

    /// Whether each worker has yet to answer. Does not wait.
    pub fn missing(&mut self) -> &[bool] {
        for (missing, answers) in self.missing.iter_mut().zip(&self.answers) {
            *missing &= answers.try_recv().is_err();
        }
        &self.missing
    }
}

impl Datapath {
    /// Asks each worker to answer between two of its turns. Wakes those that sleep; for a watchdog, every few seconds.
    pub fn check_liveness(&self) -> LivenessCheck {
        let ask = |worker: &WorkerHandle| {
            let (done, answers) = mpsc::channel();
            worker.send(Command::Synchronise { port: NOBODY, done });
            answers
        };
        let answers: Vec<_> = self.workers.iter().map(ask).collect();
        LivenessCheck { missing: vec![true; answers.len()], answers }
    }
}
