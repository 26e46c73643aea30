//! Finds workers whose turns last too long because of a guest, and has another thread take their places.
//!
//! Whoever owns memory that a worker touches can make holes in it, have it swapped out, or hold back its pages, and the thread sleeps where no signal
//! wakes it ([`worker_state`](crate::worker_state)). Or the kernel computes: it clears a gigantic page, or wakes all who wait for one eventfd. What the
//! queue of that turn, and the queue to which its frames go, wait for is their own; nobody else waits longer than a [`TICK`] and the checks that follow
//! it, or until a [`LONG_TURN`] is noticed.
//!
//! Where no memory lets a thread sleep ([`MemorySleep::Never`](crate::MemorySleep::Never)), working workers are not watched: on a Xen host, whose guests
//! all have one processor, each check took 58,000 model cycles from what runs there (`guests-pvnet` with and without them).
//!
//! It also rings workers that have something to do some time after an instant ([`Armed::AsleepPast`](port::Armed::AsleepPast)): on Xen, a
//! timer that is set and cancelled around each frame of a conversation costs more than these rare rings.
//!
//! A [`LivenessCheck`] asks the workers whether they still take turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use switch::PortId;
use tracing::{error, warn};

use crate::Datapath;
use crate::activity::{TICK, Turn};
use crate::command::Command;
use crate::port::Port;
use crate::shared::{Cause, Shared, Sleep};
use crate::worker::Worker;
use crate::worker_state::{WorkerHandle, WorkerState, WorkerThread};

/// How often it checks them while one sleeps.
const SHORT_TICK: Duration = Duration::from_micros(250);
/// A worker that sleeps at this many checks in a row, in one turn, is replaced.
const ASLEEP: u32 = 3;
/// So is one that has used this CPU time in one turn, a hundred times what a turn should take.
const LONG_TURN: Duration = Duration::from_millis(20);
/// How often it checks whether workers that sleep must be rung, where those that work are not watched.
const RING_TICK: Duration = Duration::from_millis(10);
/// After this many checks without a busy worker it sleeps until a [`TICK`] after one wakes up.
const IDLE_CHECKS: u32 = 4;
/// Checks over which short sleeps are counted, and how many of them make their ports suspect.
const WINDOW: u32 = 32;
const SHORT_SLEEPS: u32 = 8;

/// The thread that checks the workers.
pub(crate) struct SleeperWatch {
    shared: Arc<Shared>,
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl SleeperWatch {
    pub(crate) fn start(
        shared: Arc<Shared>,
        workers: Vec<Arc<WorkerState>>,
    ) -> std::io::Result<Self> {
        let is_over = Arc::<AtomicBool>::default();
        let workers = workers.into_iter().map(WatchedWorker::new).collect();
        let thread = std::thread::Builder::new().name("sleepers".to_owned());
        let thread = thread.spawn({
            let (shared, is_over) = (shared.clone(), is_over.clone());
            move || run(&shared, &is_over, workers)
        })?;
        Ok(Self { shared, is_over, thread })
    }

    pub(crate) fn end(self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.thread().unpark();
        self.shared.sleepers.ring();
        let _ = self.thread.join();
    }
}

fn run(shared: &Arc<Shared>, is_over: &AtomicBool, mut workers: Vec<WatchedWorker>) {
    let is_over = || is_over.load(Ordering::SeqCst);
    let mut idle = 0;
    while !is_over() {
        if idle < IDLE_CHECKS {
            let tick = match workers.iter().any(|worker| worker.asleep > 0) {
                true => SHORT_TICK,
                false if shared.watches() => TICK,
                false => RING_TICK,
            };
            std::thread::park_timeout(tick);
        } else {
            let works = || workers.iter().any(|worker| worker.is_awaited(shared));
            shared.sleepers.doze_until(|| works() || is_over());
            idle = 0;
            // What is found then began when the alarm was set.
            let set = Instant::now() - TICK;
            workers.iter_mut().for_each(|worker| worker.checked = worker.checked.max(set));
        }
        let mut works = false;
        for worker in &mut workers {
            works |= worker.check(shared);
        }
        idle = if works { 0 } else { idle + 1 };
    }
}

/// A worker, and what was seen of it.
struct WatchedWorker {
    worker: Arc<WorkerState>,
    checked: Instant,
    /// The turn in which it was last found, and what CPU time it had used at the second check.
    turn: Turn,
    cpu_time: Option<Duration>,
    /// At how many checks in a row it slept.
    asleep: u32,
    /// Checks in the current [`WINDOW`], and those of them that found it asleep.
    checks: u32,
    short: u32,
    sleeper: Sleeper,
}

/// The last turn that was found asleep.
#[derive(Clone, Copy, Default)]
struct Sleeper {
    turn: Turn,
    cause: Cause,
    /// How long turns with these ports slept in the current window, as far as was seen.
    time: Duration,
}

impl Sleeper {
    /// This turn sleeps, and did so for `time` since the last check.
    fn again(self, turn: Turn, cause: Cause, time: Duration) -> Self {
        let before = if self.turn.is_beside(&turn) { self.time } else { Duration::ZERO };
        Self { turn, cause, time: before + time }
    }
}

/// What a check found.
enum Found {
    Asleep(Cause),
    /// It is awake. The CPU time that it has used, if it is in the same turn as at the last check.
    Awake(Option<Duration>),
}

impl WatchedWorker {
    fn new(worker: Arc<WorkerState>) -> Self {
        Self {
            worker,
            checked: Instant::now(),
            turn: Turn::default(),
            cpu_time: None,
            asleep: 0,
            checks: 0,
            short: 0,
            sleeper: Sleeper::default(),
        }
    }

    /// Whether the worker works and is watched, or waits for a ring.
    fn is_awaited(&self, shared: &Shared) -> bool {
        let is_awaited = |thread: &WorkerThread| {
            let works = thread.activity.round().is_some();
            works && shared.watches() || thread.activity.past().is_some()
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

    /// Checks the worker. Returns whether it works and is watched, or waits for a ring.
    fn check(&mut self, shared: &Arc<Shared>) -> bool {
        let before = self.turn;
        let watches = shared.watches();
        let seen = self.worker.with_thread(|thread| {
            thread.activity.round().filter(|_| watches)?;
            let turn = thread.activity.turn();
            let found = match thread.is_asleep() {
                true => Found::Asleep(thread.cause()),
                false => Found::Awake((turn == before).then(|| thread.cpu_time()).flatten()),
            };
            // What is found of another turn says nothing of this one.
            let is_same = turn == thread.activity.turn();
            Some((turn, if is_same { found } else { Found::Awake(None) }))
        });
        let since = self.checked.elapsed();
        self.checked += since;
        let Some((turn, found)) = seen.flatten() else {
            self.asleep = 0;
            return self.ring(shared);
        };
        if turn != self.turn {
            (self.turn, self.cpu_time, self.asleep) = (turn, None, 0);
        }
        self.checks += 1;
        let mut used = Duration::ZERO;
        match found {
            Found::Asleep(cause) => {
                self.asleep += 1;
                self.short += 1;
                // When the check is late, as on a busy machine, a turn that it finds first may have begun just now.
                let since = if self.asleep == 1 { since.min(TICK) } else { since };
                self.sleeper = self.sleeper.again(turn, cause, since);
            }
            Found::Awake(cpu_time) => {
                self.asleep = 0;
                // Outside of turns nobody is to blame.
                if let Some(now) = cpu_time.filter(|_| turn.from.is_some()) {
                    used = now.saturating_sub(*self.cpu_time.get_or_insert(now));
                }
            }
        }
        if used >= LONG_TURN {
            self.sleeper = Sleeper { turn, cause: Cause::Unknown, time: used };
        }
        if used >= LONG_TURN || self.asleep >= ASLEEP {
            self.replace(shared);
            // The next thread's turns begin anew.
            *self = Self::new(self.worker.clone());
        }
        if self.checks >= WINDOW {
            if self.short >= SHORT_SLEEPS {
                self.report(shared, false);
            }
            (self.checks, self.short, self.sleeper) = (0, 0, Sleeper::default());
        }
        true
    }

    fn replace(&self, shared: &Arc<Shared>) {
        let (worker, turn) = (self.worker.number, self.sleeper.turn);
        // Before the new thread may find them locked.
        let ports = [turn.from, turn.to].into_iter().flatten();
        for port in ports.filter_map(|serial| find(shared, serial)) {
            port.note_sleeper();
        }
        match Worker::replace(&self.worker, shared.clone()) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                error!(worker, %error, "a worker is held up by a guest, and no thread can take its place");
                return;
            }
        }
        self.report(shared, true);
    }

    fn report(&self, shared: &Shared, is_replaced: bool) {
        let Sleeper { turn, cause, time } = self.sleeper;
        let Turn { from, to, are_copies, .. } = turn;
        let queue = from.and_then(|from| self.worker.queue_in_turn(from));
        let mut ports = [from, to].into_iter().flatten();
        let has_left = ports.any(|serial| !is_attached(shared, serial));
        let [from, to] = [from, to].map(|port| find(shared, port?));
        let name = |port: &Option<Arc<Port>>| port.as_ref().map(|port| port.name().to_owned());
        warn!(
            worker = self.worker.number,
            from = name(&from),
            to = name(&to),
            ?cause,
            is_replaced,
            "a worker was held up by a guest"
        );
        if let Some(sink) = shared.on_sleep.get() {
            let queue = queue.filter(|queue| *queue != usize::MAX);
            sink(Sleep { from, queue, to, are_copies, time, cause, has_left, is_replaced });
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt as _;

    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::{Config, MemorySleep, PortMemory, PortParts};

    /// A worker whose thread sleeps.
    fn asleep() -> (WatchedWorker, Arc<crate::activity::Activity>) {
        let state = Arc::new(WorkerState::new(0, mpsc::channel().1));
        let stat = File::from(rustix::fs::memfd_create("stat", MemfdFlags::CLOEXEC).unwrap());
        stat.write_all_at(b"1 (worker-0) D 0", 0).unwrap();
        let activity = Arc::<crate::activity::Activity>::default();
        let (thread, join) = (activity.clone(), std::thread::spawn(|| ()));
        let (wchan, schedstat) = (None, None);
        state.set_thread(WorkerThread { id: 0, stat, wchan, schedstat, activity: thread, join });
        (WatchedWorker::new(state), activity)
    }

    /// A port in the switch, and one outside.
    fn with_ports(datapath: &Datapath, sleep: MemorySleep) -> [PortId; 2] {
        let memory = PortMemory { sleep, ..PortMemory::default() };
        let parts = || PortParts { memory, ..PortParts::default() };
        let member = datapath.attach_member("port", parts(), None);
        [member, datapath.attach_apart("apart", parts(), None)].map(|port| port.id())
    }

    #[test]
    fn a_worker_that_works_is_watched_where_memory_lets_it_sleep() {
        let (datapath, _) = Datapath::lockstep(&Config::default(), Box::new(|_| ())).unwrap();
        let shared = &datapath.shared;
        let (mut worker, activity) = asleep();
        with_ports(&datapath, MemorySleep::Never);
        activity.begin_round(1);
        assert!(!worker.is_awaited(shared) && !worker.check(shared));
        // One that waits for a ring is rung nevertheless.
        activity.rest(Some(Duration::from_secs(3600)));
        assert!(worker.is_awaited(shared) && worker.check(shared));
        activity.begin_round(2);
        for sleep in [MemorySleep::Swapped, MemorySleep::AtWill] {
            for port in with_ports(&datapath, sleep) {
                assert!(worker.is_awaited(shared) && worker.check(shared));
                datapath.detach(port);
            }
            assert!(!worker.is_awaited(shared) && !worker.check(shared));
        }
    }

    /// On a busy machine, or after the process was stopped, a check comes late.
    #[test]
    fn what_a_late_check_finds_first_is_no_long_sleep() {
        let (datapath, _) = Datapath::lockstep(&Config::default(), Box::new(|_| ())).unwrap();
        with_ports(&datapath, MemorySleep::AtWill);
        let (mut watched, activity) = asleep();
        activity.begin_round(1);
        activity.serve(7);
        let late = Duration::from_secs(1);
        let mut check = || {
            watched.checked = Instant::now().checked_sub(late).unwrap();
            watched.check(&datapath.shared);
            watched.sleeper.time
        };
        assert!(check() <= TICK);
        // The next one finds the same turn.
        assert!(check() >= late);
        activity.serve(7);
        assert!(check() <= late + TICK * 3);
    }
}
