//! What workers do with their time, and which queues they spend it on.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::Datapath;
use crate::port::Port;
use crate::slot::Entry;
use crate::times::WorkerTimes;
use crate::worker_state::WorkerHandle;

/// How long the time is, at least, over which recent shares are taken.
const RECENT: Duration = Duration::from_secs(1);

/// Parts of a time; together they are 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// As in [`WorkerTimes`].
    pub carrying: f64,
    /// The same.
    pub polling: f64,
    /// The same.
    pub asleep: f64,
}

/// Which of a port's queues and tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueName {
    /// A queue of the port, by its number.
    Queue(usize),
    /// An ingress queue that was [added](crate::Datapath::add_ingress).
    Added(u64),
    /// A task.
    Task,
}

/// A queue or a task of a worker.
#[derive(Clone, Debug)]
pub struct QueueLoad {
    /// Its port.
    pub port: Arc<Port>,
    /// Which of it.
    pub queue: QueueName,
    /// How long its turns were, since it is there.
    pub busy: Duration,
    /// The part of the last seconds in which it had a turn.
    pub share: f64,
}

/// A worker.
#[derive(Clone, Debug)]
pub struct WorkerLoad {
    /// The CPU that it is bound to.
    pub cpu: Option<usize>,
    /// Since the start.
    pub times: WorkerTimes,
    /// The same in the last seconds.
    pub recent: Shares,
    /// What it serves, the port that was attached first before others.
    pub queues: Vec<QueueLoad>,
}

/// What was read at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    pub(crate) at: Instant,
    workers: Vec<WorkerTimes>,
    /// By the numbers of [`Entry`]s.
    queues: BTreeMap<u64, Duration>,
}

impl Reading {
    /// The part of the time since then that a worker spent on each.
    fn shares(&self, worker: usize, times: WorkerTimes, now: Instant) -> Shares {
        let wall = now.saturating_duration_since(self.at).as_secs_f64();
        let before = self.workers.get(worker).copied().unwrap_or_default();
        let share = |after: Duration, before| {
            let time: Duration = after.saturating_sub(before);
            if wall > 0.0 { (time.as_secs_f64() / wall).min(1.0) } else { 0.0 }
        };
        Shares {
            carrying: share(times.carrying, before.carrying),
            polling: share(times.polling, before.polling),
            asleep: share(times.asleep, before.asleep),
        }
    }

    /// The part of the time since then in which a queue had turns.
    pub(crate) fn share(&self, entry: &Entry, now: Instant) -> f64 {
        let wall = now.saturating_duration_since(self.at).as_secs_f64();
        let before = self.queues.get(&entry.number).copied().unwrap_or_default();
        let time = entry.busy.read().saturating_sub(before).as_secs_f64();
        if wall > 0.0 { (time / wall).min(1.0) } else { 0.0 }
    }
}

/// The last readings: shares since the older one are over one to two times [`RECENT`].
#[derive(Debug)]
pub(crate) struct Readings {
    older: Reading,
    newer: Reading,
}

impl Readings {
    /// Nothing was read yet.
    pub(crate) fn new() -> Self {
        let none = Reading { at: Instant::now(), workers: Vec::new(), queues: BTreeMap::new() };
        Self { older: none.clone(), newer: none }
    }

    /// The older one.
    pub(crate) fn before(&self) -> &Reading {
        &self.older
    }
}

impl Entry {
    pub(crate) fn name(&self) -> QueueName {
        match (self.id, self.room_of) {
            (Some(id), _) => QueueName::Added(id.serial),
            (None, Some(queue)) => QueueName::Queue(queue),
            (None, None) => QueueName::Task,
        }
    }
}

impl Datapath {
    /// Takes note of what workers have done, for the [shares](WorkerLoad::recent) that are asked for later. Call it about once a second;
    /// more often costs nothing.
    pub fn measure(&self) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        if readings.newer.at.elapsed() >= RECENT {
            let now = self.read_loads();
            readings.older = std::mem::replace(&mut readings.newer, now);
        }
    }

    /// What is read now.
    pub(crate) fn read_loads(&self) -> Reading {
        let at = Instant::now();
        let now = at.duration_since(self.shared.started);
        let workers = self.workers.iter().map(|worker| worker.state().times.read(now)).collect();
        let entries = self.workers.iter().flat_map(|worker| worker.state().all());
        let queues = entries.map(|entry| (entry.number, entry.busy.read())).collect();
        Reading { at, workers, queues }
    }

    /// The part of the last seconds in which a queue had turns.
    pub(crate) fn recent_share(&self, entry: &Entry) -> f64 {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        readings.older.share(entry, Instant::now())
    }

    /// What each worker does, and for whom.
    pub fn loads(&self) -> Vec<WorkerLoad> {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, at) = (&readings.older, Instant::now());
        let now = at.duration_since(self.shared.started);
        let of_worker = |(number, worker): (usize, &WorkerHandle)| {
            let times = worker.state().times.read(now);
            let of_entry = |entry: Arc<Entry>| QueueLoad {
                port: entry.port.clone(),
                queue: entry.name(),
                busy: entry.busy.read(),
                share: before.share(&entry, at),
            };
            let mut queues: Vec<_> = worker.state().all().into_iter().map(of_entry).collect();
            queues.sort_by_key(|load| (load.port.serial(), load.queue));
            let cpu = self.shared.cpus.get(number).copied();
            WorkerLoad { cpu, times, recent: before.shares(number, times, at), queues }
        };
        self.workers.iter().enumerate().map(of_worker).collect()
    }
}
