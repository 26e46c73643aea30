//! Which worker gets a queue or a task.

use std::collections::BTreeMap;

use switch::PortId;

use crate::loads::QueueName;

/// Which workers may have the queues of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Workers {
    /// All that are not another port's own.
    #[default]
    Any,
    /// These.
    Of(Vec<usize>),
    /// One that serves nobody else.
    Own,
}

/// What each worker has.
#[derive(Debug)]
pub(crate) struct Placement(Box<[Load]>);

/// What one worker has.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    queues: usize,
    tasks: usize,
    /// The port whose own the worker is.
    owner: Option<PortId>,
}

/// The workers of a port's queues and tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners {
    pub(crate) queues: Vec<usize>,
    pub(crate) tasks: Vec<usize>,
    /// Those of ingress queues that were added, by their serial numbers.
    pub(crate) added: BTreeMap<u64, usize>,
    /// Which may have them.
    pub(crate) workers: Workers,
    /// A bit for each that is near to what the frames lie in; none if that is unknown.
    pub(crate) near: Option<u64>,
}

impl Owners {
    /// The workers, each once.
    pub(crate) fn workers(&self) -> Vec<usize> {
        let mut workers = [&*self.queues, &self.tasks].concat();
        workers.extend(self.added.values());
        workers.sort_unstable();
        workers.dedup();
        workers
    }

    /// Where it says that worker `from` has this queue.
    pub(crate) fn place_of(&mut self, queue: QueueName, from: usize) -> Option<&mut usize> {
        match queue {
            QueueName::Queue(number) => self.queues.get_mut(number),
            QueueName::Added(serial) => self.added.get_mut(&serial),
            // Which of them counts for nothing.
            QueueName::Task => self.tasks.iter_mut().find(|worker| **worker == from),
        }
    }
}

impl Placement {
    /// No worker has anything.
    pub(crate) fn new(workers: usize) -> Self {
        Self(vec![Load::default(); workers].into())
    }

    /// Places the queues and tasks of a port. Each queue goes to the worker that has the fewest, and each task to the worker
    /// that has the fewest tasks: a control ring is hardly any work, so it must not stand for a queue.
    pub(crate) fn place(&mut self, queues: usize, tasks: usize) -> Owners {
        let queues = (0..queues).map(|_| self.place_queue(u64::MAX)).collect();
        let tasks = (0..tasks).map(|_| {
            let worker = self.least_tasks(u64::MAX);
            self.0[worker].tasks += 1;
            worker
        });
        let tasks = tasks.collect();
        Owners { queues, tasks, ..Owners::default() }
    }

    /// Places one queue, as [`place`](Self::place) does, at one of these workers.
    pub(crate) fn place_queue(&mut self, allowed: u64) -> usize {
        let worker = self.least_queues(allowed);
        self.0[worker].queues += 1;
        worker
    }

    /// A queue is gone.
    pub(crate) fn release_queue(&mut self, worker: usize) {
        self.0[worker].queues -= 1;
    }

    /// The queues and tasks of a port are gone, and so is the port.
    pub(crate) fn release(&mut self, port: PortId, owners: &Owners) {
        owners
            .queues
            .iter()
            .chain(owners.added.values())
            .for_each(|worker| self.release_queue(*worker));
        owners.tasks.iter().for_each(|worker| self.0[*worker].tasks -= 1);
        self.reserve(port, None);
    }

    /// A queue or a task has moved.
    pub(crate) fn moved(&mut self, queue: QueueName, from: usize, to: usize) {
        match queue {
            QueueName::Task => {
                self.0[from].tasks -= 1;
                self.0[to].tasks += 1;
            }
            QueueName::Queue(_) | QueueName::Added(_) => {
                self.0[from].queues -= 1;
                self.0[to].queues += 1;
            }
        }
    }

    /// Gives a worker to a port alone, and takes back the one that it had.
    pub(crate) fn reserve(&mut self, port: PortId, worker: Option<usize>) {
        for (number, load) in self.0.iter_mut().enumerate() {
            if worker == Some(number) {
                load.owner = Some(port);
            } else if load.owner == Some(port) {
                load.owner = None;
            }
        }
    }

    /// A bit for each worker that is not another port's own.
    pub(crate) fn free_for(&self, port: PortId) -> u64 {
        self.bits(|load| load.owner.is_none_or(|owner| owner == port))
    }

    /// A bit for each worker that may have the queues of a port.
    pub(crate) fn allowed(&self, port: PortId, workers: &Workers) -> u64 {
        let free = self.free_for(port);
        match workers {
            Workers::Any => free,
            Workers::Of(list) => free & list.iter().fold(0, |bits, worker| bits | 1 << worker),
            Workers::Own => self.bits(|load| load.owner == Some(port)),
        }
    }

    fn bits(&self, is_one: impl Fn(&Load) -> bool) -> u64 {
        let ones = self.0.iter().enumerate().filter(|(_, load)| is_one(load));
        ones.fold(0, |bits, (worker, _)| bits | 1 << worker)
    }

    pub(crate) fn queues_of(&self, worker: usize) -> usize {
        self.0[worker].queues
    }

    /// Of these workers, the one with the fewest queues.
    pub(crate) fn least_queues(&self, allowed: u64) -> usize {
        self.least(allowed, |load| (load.queues, load.tasks))
    }

    /// The same with the fewest tasks.
    pub(crate) fn least_tasks(&self, allowed: u64) -> usize {
        self.least(allowed, |load| (load.tasks, load.queues))
    }

    /// Workers that are a port's own come last: it alone may name them.
    fn least<K: Ord>(&self, allowed: u64, key: impl Fn(&Load) -> K) -> usize {
        let workers = self.0.iter().enumerate().filter(|(worker, _)| allowed & (1 << worker) != 0);
        let least = workers.min_by_key(|(_, load)| {
            let is_own = allowed == u64::MAX && load.owner.is_some();
            (is_own, key(load))
        });
        least.map_or(0, |(worker, _)| worker)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PORT: PortId = PortId(3);

    #[test]
    fn a_worker_that_is_a_ports_own_gets_no_other_queue() {
        let mut placement = Placement::new(3);
        placement.reserve(PORT, Some(1));
        assert_eq!(placement.place(4, 2).workers(), [0, 2]);
        let allowed = |workers| placement.allowed(PORT, &workers);
        assert_eq!(allowed(Workers::Own), 0b010);
        assert_eq!(allowed(Workers::Any), 0b111);
        assert_eq!(placement.allowed(PortId(4), &Workers::Of(vec![1, 2])), 0b100);
        placement.reserve(PORT, Some(2));
        assert_eq!(placement.free_for(PortId(4)), 0b011);
        placement.release(PORT, &Owners::default());
        assert_eq!(placement.free_for(PortId(4)), 0b111);
    }

    #[test]
    fn a_port_has_its_queues_on_different_workers() {
        let mut placement = Placement::new(3);
        let first = placement.place(2, 1);
        assert_eq!((&*first.queues, &*first.tasks), (&[0, 1][..], &[2][..]));
        assert_eq!(placement.place(3, 1).queues, [2, 0, 1]);
        assert_eq!(first.workers(), [0, 1, 2]);
    }

    proptest! {
        #[test]
        fn queues_are_spread_evenly_whatever_tasks_there_are(
            workers in 1usize..9,
            ports in prop::collection::vec((1usize..9, 0usize..3), 0..40),
        ) {
            let mut placement = Placement::new(workers);
            let mut counts = vec![0; workers];
            for (queues, tasks) in ports {
                for worker in placement.place(queues, tasks).queues {
                    counts[worker] += 1;
                }
                let (most, fewest) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
                prop_assert!(most - fewest <= 1, "{counts:?}");
            }
        }

        #[test]
        fn ports_that_go_make_room(
            ports in prop::collection::vec((1usize..5, 0usize..2, any::<bool>()), 0..60),
        ) {
            let mut placement = Placement::new(4);
            let mut kept = Vec::new();
            for (queues, tasks, goes) in ports {
                let owners = placement.place(queues, tasks);
                if goes {
                    placement.release(PORT, &owners);
                } else {
                    kept.push(owners);
                }
            }
            kept.iter().for_each(|owners| placement.release(PORT, owners));
            prop_assert!(placement.0.iter().all(|load| load.queues + load.tasks == 0));
        }
    }
}
