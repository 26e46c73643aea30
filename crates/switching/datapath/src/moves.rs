//! Moves queues between workers while they are in use.
//!
//! A queue moves as a whole, between two of its turns: its frames in hand, their deliveries and what waits for room go with it. So no frame is
//! lost or carried twice, and the frames of a flow stay in order: the one worker's last turn has ended before the other one's first begins. The
//! first turn at the new worker comes without an event, so none is missed either: an event that came in between is still there when the new
//! worker listens to it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError, mpsc};
use std::time::{Duration, Instant, SystemTime};

use switch::PortId;
use tracing::info;

use crate::Datapath;
use crate::balance::{Item, busiest, plan};
use crate::command::Command;
use crate::loads::{QueueName, Reading};
use crate::placement::{Owners, Workers};
use crate::port::Port;
use crate::slot::Entry;

/// A queue has another worker, or would get one.
#[derive(Clone, Debug)]
pub struct QueueMove {
    /// Its port.
    pub port: Arc<Port>,
    /// Which of it.
    pub queue: QueueName,
    /// The worker that had it.
    pub from: usize,
    /// The one that has it now.
    pub to: usize,
    /// The part of a worker's time that it took.
    pub share: f64,
}

/// Why a queue has moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MoveReason {
    /// An operator asked for this move, or for all that help.
    Asked,
    /// Its worker had too much to do.
    Load,
    /// A port names its workers, or has one to itself.
    Placed,
}

/// A queue that has moved.
#[derive(Clone, Debug)]
pub struct PastMove {
    /// When.
    pub at: SystemTime,
    /// The name of its port.
    pub port: String,
    /// Which of it.
    pub queue: QueueName,
    /// The worker that had it.
    pub from: usize,
    /// The one that got it.
    pub to: usize,
    /// The part of a worker's time that it took.
    pub share: f64,
    /// Why.
    pub reason: MoveReason,
}

/// How many of them are kept.
const PAST: usize = 32;

/// How queues should be spread, or were.
#[derive(Clone, Debug, Default)]
pub struct Balance {
    /// The part of its time that the busiest worker spends on queues.
    pub busiest_before: f64,
    /// The same after the moves, as estimated: a queue is expected to cost what it did.
    pub busiest_after: f64,
    /// What moves.
    pub moves: Vec<QueueMove>,
}

/// When queues are spread anew.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BalanceRule {
    /// How often the loads are checked.
    pub interval: Duration,
    /// The busiest worker spends at least this part of its time on queues.
    pub threshold: f64,
    /// It would have at least this part less of it.
    pub gain: f64,
}

/// Intervals in a row in which the rule must hold: one burst moves nothing.
const UNEVEN: u32 = 2;

/// Why a queue was not moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// The port has no such queue.
    #[error("there is no such queue")]
    NoQueue,
    /// The number is too large.
    #[error("there is no worker {number}: they are 0 to {last}")]
    NoWorker {
        /// The number.
        number: usize,
        /// The last worker's.
        last: usize,
    },
    /// The configuration has others for it.
    #[error(
        "worker {0} is not among those that may have this queue (`workers` or `worker` of its port, or of another one)"
    )]
    NotAllowed(usize),
    /// A worker would be a port's own, and none would be left for others.
    #[error(
        "no worker is free for it: each other one has its own port, or serves one with `workers`"
    )]
    NoneLeft,
    /// A thread sleeps in a turn of it.
    #[error("a worker sleeps in the memory of its other side")]
    Asleep,
}

/// When the rule was last checked, and what was read then.
#[derive(Debug)]
pub(crate) struct Balancing {
    base: Reading,
    uneven: u32,
}

impl Balancing {
    /// From now on.
    pub(crate) fn new(base: Reading) -> Self {
        Self { base, uneven: 0 }
    }
}

impl Datapath {
    /// Says which workers may have a port's queues, from now on, and moves those that are elsewhere. A worker of its own is taken from other
    /// ports, and its tasks move there too. Returns what has moved.
    ///
    /// # Errors
    /// There are no such workers. Nothing is changed then.
    pub fn place(&self, port: &Port, workers: Workers) -> Result<Vec<QueueMove>, MoveError> {
        let id = port.id();
        let before = {
            let owners = self.owners();
            owners.get(&id).ok_or(MoveError::NoQueue)?.workers.clone()
        };
        if (&before, &workers) == (&Workers::Any, &Workers::Any) {
            return Ok(Vec::new());
        }
        // Until all workers have the queues that were attached before.
        self.ask(&self.all_workers(), |done| Command::Synchronise { port: id, done });
        let mut owners = self.owners();
        match &workers {
            Workers::Any => self.placement().reserve(id, None),
            Workers::Of(list) => {
                let last = self.workers.len() - 1;
                if let Some(number) = list.iter().copied().find(|number| *number > last) {
                    return Err(MoveError::NoWorker { number, last });
                }
                let free = self.placement().free_for(id);
                if let Some(taken) = list.iter().find(|number| free & (1 << **number) == 0) {
                    return Err(MoveError::NotAllowed(*taken));
                }
                self.placement().reserve(id, None);
            }
            Workers::Own if before == Workers::Own => {}
            Workers::Own => {
                let own = self.own_worker(&owners, id).ok_or(MoveError::NoneLeft)?;
                self.placement().reserve(id, Some(own));
            }
        }
        if let Some(owners) = owners.get_mut(&id) {
            owners.workers = workers;
        }
        Ok(self.settle(&mut owners))
    }

    /// Says which workers are near to what a port's frames lie in: on the NUMA node of its NIC. Its queues go to them now, if they may, and later to
    /// others only if that saves more than the way there costs. Returns what has moved.
    pub fn prefer(&self, port: &Port, near: &[usize]) -> Vec<QueueMove> {
        let id = port.id();
        let near = near.iter().fold(0, |bits, worker| bits | 1 << worker);
        // Until all workers have the queues that were attached before.
        self.ask(&self.all_workers(), |done| Command::Synchronise { port: id, done });
        let mut owners = self.owners();
        let Some(owner) = owners.get_mut(&id) else { return Vec::new() };
        owner.near = Some(near);
        let workers = owner.workers.clone();
        let far = self.entries().into_iter().filter(|(from, entry)| {
            entry.port.id() == id && entry.name() != QueueName::Task && near & (1 << from) == 0
        });
        let mut moves = Vec::new();
        for (from, entry) in far {
            let allowed = self.allowed(&entry, &workers) & near;
            if allowed != 0 {
                let to = self.placement().least_queues(allowed);
                let moved = self.transfer(&mut owners, &entry, (from, to), MoveReason::Placed);
                moves.extend(moved.ok());
            }
        }
        moves
    }

    /// A worker that could be this port's own: no other port is bound to it, and another one is left for those. Of several, the one that has
    /// the least to give away.
    fn own_worker(&self, owners: &BTreeMap<PortId, Owners>, id: PortId) -> Option<usize> {
        let placement = self.placement();
        let bound =
            owners.iter().filter(|(port, _)| **port != id).map(|(_, owners)| &owners.workers);
        let bound = bound.fold(0, |all, workers| match workers {
            Workers::Of(list) => list.iter().fold(all, |all, number| all | 1 << number),
            Workers::Any | Workers::Own => all,
        });
        let free = placement.free_for(id);
        let candidates = (0..self.workers.len()).filter(|number| free & (1 << number) != 0);
        let candidates: Vec<_> = candidates.collect();
        // The last one is for the others.
        if candidates.len() < 2 {
            return None;
        }
        let candidates = candidates.into_iter().filter(|number| bound & (1 << number) == 0);
        // The one with the highest number, where several have as much.
        candidates.rev().min_by_key(|number| placement.queues_of(*number))
    }

    /// Moves the queues and tasks that a worker may not have, except a queue in whose turn a thread sleeps.
    fn settle(&self, owners: &mut BTreeMap<PortId, Owners>) -> Vec<QueueMove> {
        let mut moves = Vec::new();
        for (from, entry) in self.entries() {
            let Some(owner) = owners.get(&entry.port.id()) else { continue };
            let allowed = self.allowed(&entry, &owner.workers);
            if allowed == 0 || allowed & (1 << from) != 0 {
                continue;
            }
            let to = match entry.name() {
                QueueName::Task => self.placement().least_tasks(allowed),
                QueueName::Queue(_) | QueueName::Added(_) => self.placement().least_queues(allowed),
            };
            moves.extend(self.transfer(owners, &entry, (from, to), MoveReason::Placed).ok());
        }
        moves
    }

    /// A bit for each worker that may have a queue. Tasks go with the queues of a port that has a worker to itself only.
    fn allowed(&self, entry: &Entry, workers: &Workers) -> u64 {
        let workers = match (entry.name(), workers) {
            (QueueName::Task, Workers::Of(_)) => &Workers::Any,
            (_, workers) => workers,
        };
        self.placement().allowed(entry.port.id(), workers)
    }

    /// All queues and tasks, with the workers that have them.
    fn entries(&self) -> Vec<(usize, Arc<Entry>)> {
        let workers = self.workers.iter().enumerate();
        let entries = workers.flat_map(|(number, worker)| {
            worker.state().all().into_iter().map(move |entry| (number, entry))
        });
        entries.collect()
    }

    /// Moves a queue.
    ///
    /// # Errors
    /// There is no such queue or worker, it may not have it, or its worker sleeps in a turn of it.
    pub fn move_queue(
        &self,
        port: &Port,
        queue: QueueName,
        to: usize,
    ) -> Result<QueueMove, MoveError> {
        self.move_for(port, queue, to, MoveReason::Asked)
    }

    fn move_for(
        &self,
        port: &Port,
        queue: QueueName,
        to: usize,
        reason: MoveReason,
    ) -> Result<QueueMove, MoveError> {
        let last = self.workers.len() - 1;
        if to > last {
            return Err(MoveError::NoWorker { number: to, last });
        }
        let mut owners = self.owners();
        let is_it = |(_, entry): &(usize, Arc<Entry>)| {
            entry.port.serial() == port.serial() && entry.name() == queue
        };
        let (from, entry) = self.entries().into_iter().find(is_it).ok_or(MoveError::NoQueue)?;
        let owner = owners.get(&port.id()).ok_or(MoveError::NoQueue)?;
        if self.allowed(&entry, &owner.workers) & (1 << to) == 0 {
            return Err(MoveError::NotAllowed(to));
        }
        self.transfer(&mut owners, &entry, (from, to), reason)
    }

    /// Gives a queue or a task to another worker.
    fn transfer(
        &self,
        owners: &mut BTreeMap<PortId, Owners>,
        entry: &Arc<Entry>,
        (from, to): (usize, usize),
        reason: MoveReason,
    ) -> Result<QueueMove, MoveError> {
        let (port, queue) = (entry.port.clone(), entry.name());
        let share = self.recent_share(entry);
        let moved = QueueMove { port, queue, from, to, share };
        if from == to {
            return Ok(moved);
        }
        let owner = owners.get_mut(&entry.port.id()).ok_or(MoveError::NoQueue)?;
        let place = owner.place_of(queue, from).ok_or(MoveError::NoQueue)?;
        let (done, released) = mpsc::channel();
        self.workers[from].send(Command::Release { number: entry.number, done });
        let entry = released.recv().map_err(|_| MoveError::Asleep)?;
        // Until the other one has it: then it can move again.
        self.ask(&[to], |done| Command::TakeOver { entry: entry.clone(), done });
        *place = to;
        self.placement().moved(queue, from, to);
        info!(moved = %moved, ?reason, "a queue has another worker");
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        past.truncate(PAST - 1);
        let port = moved.port.name().to_owned();
        past.push_front(PastMove { at: SystemTime::now(), port, queue, from, to, share, reason });
        Ok(moved)
    }

    /// The last queues that have moved, the newest first.
    pub fn past_moves(&self) -> Vec<PastMove> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// How queues would be spread best, by what they have cost lately.
    pub fn balance(&self) -> Balance {
        let before = {
            let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
            readings.before().clone()
        };
        self.balance_since(&before, Instant::now())
    }

    /// Moves what a plan moves, and what is still where it was then. Returns what has moved.
    pub fn rebalance(&self, balance: &Balance) -> Balance {
        self.rebalance_for(balance, MoveReason::Asked)
    }

    fn rebalance_for(&self, balance: &Balance, reason: MoveReason) -> Balance {
        let move_one = |planned: &QueueMove| {
            let QueueMove { port, queue, to, share, .. } = planned;
            let moved = self.move_for(port, *queue, *to, reason).ok()?;
            Some(QueueMove { share: *share, ..moved })
        };
        let moves = balance.moves.iter().filter_map(move_one).collect();
        Balance { moves, ..*balance }
    }

    /// Spreads queues anew, if the rule says so. Call it about once a second. Returns what has moved.
    pub fn rebalance_by(&self, rule: &BalanceRule) -> Option<Balance> {
        let mut balancing = self.balancing.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if now.duration_since(balancing.base.at) < rule.interval {
            return None;
        }
        let balance = self.balance_since(&balancing.base, now);
        let is_uneven = balance.is_worth_it(rule);
        let uneven = if is_uneven { balancing.uneven + 1 } else { 0 };
        let moves = uneven >= UNEVEN;
        // What has moved is measured anew before anything moves again.
        balancing.uneven = if moves { 0 } else { uneven };
        let balance = moves.then(|| self.rebalance_for(&balance, MoveReason::Load));
        balancing.base = self.read_loads();
        balance
    }

    fn balance_since(&self, before: &Reading, now: Instant) -> Balance {
        let owners = self.owners();
        let entries =
            self.entries().into_iter().filter(|(_, entry)| entry.name() != QueueName::Task);
        let entries: Vec<_> = entries.collect();
        let item = |(worker, entry): &(usize, Arc<Entry>)| {
            let workers = owners.get(&entry.port.id()).map(|owners| &owners.workers);
            let allowed =
                workers.map(|workers| self.allowed(entry, workers)).filter(|allowed| *allowed != 0);
            let near = owners.get(&entry.port.id()).and_then(|owners| owners.near);
            let (allowed, near) = (allowed.unwrap_or(1 << worker), near.unwrap_or(u64::MAX));
            Item::measured(before.share(entry, now), *worker, allowed, near)
        };
        let items: Vec<_> = entries.iter().map(item).collect();
        let here: Vec<_> = items.iter().map(|item| item.worker).collect();
        let workers = self.workers.len();
        let places = plan(&items, workers);
        let moved =
            entries.iter().zip(&items).zip(&places).filter(|((_, item), to)| item.worker != **to);
        let moves = moved.map(|(((_, entry), item), to)| QueueMove {
            port: entry.port.clone(),
            queue: entry.name(),
            from: item.worker,
            to: *to,
            share: item.load_at(item.worker),
        });
        Balance {
            busiest_before: busiest(&items, &here, workers),
            busiest_after: busiest(&items, &places, workers),
            moves: moves.collect(),
        }
    }
}

impl Balance {
    /// Whether a rule wants these moves.
    fn is_worth_it(&self, rule: &BalanceRule) -> bool {
        let Self { busiest_before: before, busiest_after: after, moves } = self;
        !moves.is_empty() && *before >= rule.threshold && before - after >= before * rule.gain
    }
}

/// As operators name it.
impl fmt::Display for QueueMove {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { port, queue, from, to, .. } = self;
        let name = port.name();
        match queue {
            QueueName::Queue(number) => write!(f, "{name}/{number}: {from} → {to}"),
            QueueName::Added(number) => write!(f, "{name}/guest-{number}: {from} → {to}"),
            QueueName::Task => write!(f, "{name}/task: {from} → {to}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use port::Queue;
    use port_testing::{FakeEgress, supply};

    use super::*;
    use crate::Config;

    const SECOND: Duration = Duration::from_secs(1);
    const RULE: BalanceRule = BalanceRule { interval: SECOND, threshold: 0.6, gain: 0.1 };

    /// A datapath whose one port has these queues, which are idle.
    fn start(workers: usize, queues: usize) -> (Datapath, Arc<Port>) {
        let config = Config { workers, ..Config::default() };
        let datapath = Datapath::start(&config, Box::new(|failure| panic!("{failure:?}"))).unwrap();
        let queue = |_| Queue {
            ingress: supply(std::iter::empty()),
            egress: Box::new(FakeEgress::new(|_, _| Ok(port::Outcome::Delivered))),
        };
        let port = datapath.attach("red", (0..queues).map(queue).collect(), Vec::new());
        datapath.synchronise(port.id());
        (datapath, port)
    }

    /// As if a second had passed, in which each queue had turns for this part of it.
    fn pass(datapath: &Datapath, loads: &[f64]) {
        datapath.balancing.lock().unwrap().base.at = Instant::now() - SECOND;
        for (_, entry) in datapath.entries() {
            if let QueueName::Queue(number) = entry.name() {
                entry.busy.add(SECOND.mul_f64(loads[number]));
            }
        }
    }

    /// The load of each worker.
    fn sums(datapath: &Datapath, loads: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; datapath.workers()];
        for (worker, entry) in datapath.entries() {
            if let QueueName::Queue(number) = entry.name() {
                sums[worker] += loads[number];
            }
        }
        sums
    }

    /// Eight queues, of which one has half of the work, and two workers.
    #[test]
    fn unequal_loads_are_spread_within_ten_percent_of_the_best() {
        let (datapath, _) = start(2, 8);
        let loads = [0.63, 0.09, 0.09, 0.09, 0.09, 0.09, 0.09, 0.09];
        let before = sums(&datapath, &loads);
        assert!(before.iter().any(|sum| *sum > 0.85), "{before:?}");
        pass(&datapath, &loads);
        assert!(datapath.rebalance_by(&RULE).is_none(), "once may be chance");
        assert!(datapath.rebalance_by(&RULE).is_none(), "the interval is not over");
        pass(&datapath, &loads);
        let balance = datapath.rebalance_by(&RULE).unwrap();
        assert_eq!(balance.moves.len(), 3, "{balance:?}");
        let after = sums(&datapath, &loads);
        assert!(after.iter().all(|sum| *sum <= 0.63 * 1.1), "{after:?}");
        // The estimate was right, and nothing moves back.
        assert!((balance.busiest_after - 0.63).abs() < 0.1, "{balance:?}");
        for _ in 0..4 {
            pass(&datapath, &loads);
            assert!(datapath.rebalance_by(&RULE).is_none());
        }
    }

    #[test]
    fn what_helps_little_or_is_not_needed_moves_nothing() {
        for loads in [[0.2, 0.0, 0.2, 0.0], [0.5, 0.4, 0.5, 0.5]] {
            let (datapath, _) = start(2, 4);
            for _ in 0..4 {
                pass(&datapath, &loads);
                assert!(datapath.rebalance_by(&RULE).is_none(), "{loads:?}");
            }
        }
    }

    #[test]
    fn a_load_that_comes_and_goes_moves_nothing() {
        let (datapath, _) = start(2, 4);
        for n in 0..8 {
            let busy = if n % 2 == 0 { 0.45 } else { 0.1 };
            pass(&datapath, &[busy, 0.0, busy, 0.0]);
            assert!(datapath.rebalance_by(&RULE).is_none(), "{n}");
        }
    }

    #[test]
    fn pinned_queues_are_not_moved() {
        let (datapath, port) = start(2, 4);
        datapath.place(&port, Workers::Of(vec![0])).unwrap();
        for _ in 0..4 {
            pass(&datapath, &[0.25; 4]);
            assert!(datapath.rebalance_by(&RULE).is_none());
        }
        assert_eq!(sums(&datapath, &[0.25; 4]), [1.0, 0.0]);
    }
}
