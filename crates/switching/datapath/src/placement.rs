//! Which worker gets a queue or a task.

use std::collections::BTreeMap;

/// What each worker has.
#[derive(Debug)]
pub(crate) struct Placement(Box<[Load]>);

/// What one worker has.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    queues: usize,
    tasks: usize,
}

/// The workers of a port's queues and tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners {
    pub(crate) queues: Vec<usize>,
    pub(crate) tasks: Vec<usize>,
    /// Those of ingress queues that were added, by their serial numbers.
    pub(crate) added: BTreeMap<u64, usize>,
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
}

impl Placement {
    /// No worker has anything.
    pub(crate) fn new(workers: usize) -> Self {
        Self(vec![Load::default(); workers].into())
    }

    /// Places the queues and tasks of a port. Each queue goes to the worker that has the fewest, and each task to the worker
    /// that has the fewest tasks: a control ring is hardly any work, so it must not stand for a queue.
    pub(crate) fn place(&mut self, queues: usize, tasks: usize) -> Owners {
        let queues = (0..queues).map(|_| self.place_queue()).collect();
        let tasks = (0..tasks).map(|_| {
            let worker = self.least(|load| (load.tasks, load.queues));
            self.0[worker].tasks += 1;
            worker
        });
        Owners { queues, tasks: tasks.collect(), added: BTreeMap::new() }
    }

    /// Places one queue, as [`place`](Self::place) does.
    pub(crate) fn place_queue(&mut self) -> usize {
        let worker = self.least(|load| (load.queues, load.tasks));
        self.0[worker].queues += 1;
        worker
    }

    /// A queue is gone.
    pub(crate) fn release_queue(&mut self, worker: usize) {
        self.0[worker].queues -= 1;
    }

    /// The queues and tasks are gone.
    pub(crate) fn release(&mut self, owners: &Owners) {
        owners
            .queues
            .iter()
            .chain(owners.added.values())
            .for_each(|worker| self.release_queue(*worker));
        owners.tasks.iter().for_each(|worker| self.0[*worker].tasks -= 1);
    }

    fn least<K: Ord>(&self, key: impl Fn(&Load) -> K) -> usize {
        let workers = self.0.iter().enumerate();
        workers.min_by_key(|(_, load)| key(load)).map_or(0, |(worker, _)| worker)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
                    placement.release(&owners);
                } else {
                    kept.push(owners);
                }
            }
            kept.iter().for_each(|owners| placement.release(owners));
            prop_assert!(placement.0.iter().all(|load| load.queues + load.tasks == 0));
        }
    }
}
