//! What workers do with their time, and which queues they spend it on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use switch::add_alone;

use crate::Datapath;
use crate::port::Port;
use crate::slot::Entry;

/// How long the time is, at least, over which recent shares are taken.
const RECENT: Duration = Duration::from_secs(1);

/// What a worker did with its time since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerTimes {
    /// Turns of queues and tasks that had work.
    pub carrying: Duration,
    /// All else while it did not sleep: it looked for work.
    pub polling: Duration,
    /// It waited for events.
    pub asleep: Duration,
}

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

/// Nanoseconds that one thread counts.
#[derive(Debug, Default)]
pub(crate) struct Busy(AtomicU64);

impl Busy {
    #[inline]
    pub(crate) fn add(&self, took: Duration) {
        add_alone(&self.0, nanoseconds(took));
    }

    pub(crate) fn read(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// The time of a worker. Its thread writes it; all times are since the start of the datapath.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Times {
    carried: Busy,
    /// Twice the nanoseconds for which it has slept; while it sleeps, twice those for which it has not, and one. So one word says both, and
    /// whoever reads it sees no sleep twice.
    slept: AtomicU64,
}

impl Times {
    /// A queue or a task had a turn with work.
    #[inline]
    pub(crate) fn carried(&self, took: Duration) {
        self.carried.add(took);
    }

    /// It waits for events from now on.
    pub(crate) fn falls_asleep(&self, now: Duration) {
        let awake = nanoseconds(now).saturating_sub(self.slept.load(Ordering::Relaxed) >> 1);
        self.slept.store(awake << 1 | 1, Ordering::Relaxed);
    }

    /// It does so no more.
    pub(crate) fn wakes(&self, now: Duration) {
        let asleep = nanoseconds(now).saturating_sub(self.slept.load(Ordering::Relaxed) >> 1);
        self.slept.store(asleep << 1, Ordering::Relaxed);
    }

    pub(crate) fn read(&self, now: Duration) -> WorkerTimes {
        let slept = self.slept.load(Ordering::Relaxed);
        let asleep = match (slept & 1 == 1, Duration::from_nanos(slept >> 1)) {
            (true, awake) => now.saturating_sub(awake),
            (false, asleep) => asleep.min(now),
        };
        // A turn is counted after its end.
        let awake = now - asleep;
        let carrying = self.carried.read().min(awake);
        WorkerTimes { carrying, polling: awake - carrying, asleep }
    }
}

/// It wraps after 584 years.
#[inline]
fn nanoseconds(time: Duration) -> u64 {
    time.as_secs().wrapping_mul(1_000_000_000).wrapping_add(time.subsec_nanos().into())
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
        let of_worker = |(number, worker): (usize, &crate::worker_state::WorkerHandle)| {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_sleep_counts_while_it_lasts_and_once() {
        let times = Times::default();
        times.carried(MS * 3);
        times.falls_asleep(MS * 10);
        let during = times.read(MS * 14);
        let expected = |asleep| WorkerTimes { carrying: MS * 3, polling: MS * 7, asleep };
        assert_eq!(during, expected(MS * 4));
        times.wakes(MS * 20);
        assert_eq!(times.read(MS * 20), expected(MS * 10));
        times.carried(MS * 5);
        let after = times.read(MS * 25);
        assert_eq!(after, WorkerTimes { carrying: MS * 8, ..expected(MS * 10) });
    }

    proptest! {
        #[test]
        fn the_parts_are_the_whole(steps in prop::collection::vec((0u32..2000, any::<bool>()), 1..40)) {
            let (times, mut now, mut sleeps) = (Times::default(), Duration::ZERO, false);
            let mut slept = Duration::ZERO;
            for (step, turn) in steps {
                now += MS * step;
                if sleeps {
                    slept += MS * step;
                    times.wakes(now);
                } else if turn {
                    times.carried(MS * step);
                }
                sleeps = !sleeps && !turn;
                if sleeps {
                    times.falls_asleep(now);
                }
                let WorkerTimes { carrying, polling, asleep } = times.read(now);
                prop_assert_eq!((carrying + polling + asleep, asleep), (now, slept));
            }
        }
    }
}
