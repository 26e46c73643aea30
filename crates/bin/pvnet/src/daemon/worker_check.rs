//! What the workers do, for the status.

use std::time::Instant;

use control_socket::{QueueKind, QueueStatus, WorkerShares, WorkerStatus};
use datapath::{Datapath, LivenessCheck, QueueLoad, QueueName, Shares, WorkerLoad};

use crate::daemon::status::nanoseconds;

/// What the last status asked, and what does not change.
#[derive(Default)]
pub(super) struct WorkerCheck {
    question: Option<(Instant, LivenessCheck)>,
    /// The nodes of the workers' CPUs, by worker, once they are known.
    nodes: Vec<Option<usize>>,
}

impl WorkerCheck {
    /// What each worker does, and how long it has not answered. Asks all again if each has.
    pub(super) fn read(&mut self, datapath: &Datapath) -> Vec<WorkerStatus> {
        let now = Instant::now();
        let loads = datapath.loads();
        if self.nodes.is_empty() {
            self.nodes = loads.iter().map(|load| load.cpu.and_then(cpus::node_of)).collect();
        }
        let (asked, check) = self.question.get_or_insert_with(|| (now, datapath.check_liveness()));
        let silent = nanoseconds(now - *asked);
        let missing = check.missing();
        let workers = loads.into_iter().zip(&self.nodes).zip(missing.iter());
        let status = workers.map(|((load, node), is_missing)| WorkerStatus {
            silent_nanoseconds: if *is_missing { silent } else { 0 },
            node: *node,
            ..status(load)
        });
        let status = status.collect();
        if !missing.contains(&true) {
            self.question = Some((now, datapath.check_liveness()));
        }
        status
    }
}

fn status(load: WorkerLoad) -> WorkerStatus {
    let WorkerLoad { cpu, times, recent, queues } = load;
    let Shares { carrying, polling, asleep } = recent;
    WorkerStatus {
        cpu,
        carrying_nanoseconds: nanoseconds(times.carrying),
        polling_nanoseconds: nanoseconds(times.polling),
        asleep_nanoseconds: nanoseconds(times.asleep),
        recent: WorkerShares { carrying, polling, asleep },
        queues: queues.iter().map(queue).collect(),
        ..WorkerStatus::default()
    }
}

fn queue(load: &QueueLoad) -> QueueStatus {
    QueueStatus {
        busy_nanoseconds: nanoseconds(load.busy),
        load: load.share,
        ..queue_name(load.port.name(), load.queue)
    }
}

/// A queue, without its load.
pub(super) fn queue_name(port: &str, queue: QueueName) -> QueueStatus {
    let (kind, queue) = match queue {
        QueueName::Queue(number) => (QueueKind::Queue, Some(number as u64)),
        QueueName::Added(serial) => (QueueKind::ForGuest, Some(serial)),
        QueueName::Task => (QueueKind::Task, None),
    };
    QueueStatus { port: port.to_owned(), kind, queue, ..QueueStatus::default() }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use port::{Frame, Outcome, Queue};
    use port_testing::{FakeEgress, supply};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// Has one worker hang until the returned sender is dropped.
    pub(in crate::daemon) fn hang_one(datapath: &Datapath) -> mpsc::Sender<()> {
        let (entered, hangs) = mpsc::channel();
        let (release, until) = mpsc::channel::<()>();
        let ingress = supply(std::iter::from_fn(move || {
            let _ = entered.send(());
            let _ = until.recv();
            None
        }));
        let egress = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
        datapath.attach("red", vec![Queue { ingress, egress }], Vec::new());
        hangs.recv_timeout(LIMIT).unwrap();
        release
    }

    #[test]
    fn a_worker_that_hangs_is_silent_until_it_goes_on() {
        let config = datapath::Config { workers: 2, ..datapath::Config::default() };
        let datapath = Datapath::start(&config, Box::new(|_| ())).unwrap();
        let release = hang_one(&datapath);
        let mut check = WorkerCheck::default();
        check.read(&datapath);
        let begin = Instant::now();
        let silent = |check: &mut WorkerCheck| -> Vec<bool> {
            // The other worker needs a moment for its answer.
            std::thread::sleep(Duration::from_millis(1));
            let workers = check.read(&datapath);
            workers.iter().map(|worker| worker.silent_nanoseconds > 0).collect()
        };
        while silent(&mut check).iter().filter(|silent| **silent).count() != 1
            || begin.elapsed() < Duration::from_millis(50)
        {
            assert!(begin.elapsed() < LIMIT, "nobody is silent");
        }
        let longest = check.read(&datapath).iter().map(|worker| worker.silent_nanoseconds).max();
        assert!(longest > Some(20_000_000), "it is one question all the time: {longest:?}");
        drop(release);
        while silent(&mut check) != [false; 2] {
            assert!(begin.elapsed() < LIMIT, "it is silent for ever");
        }
    }

    #[test]
    fn the_status_has_each_workers_cpu_time_and_queues() {
        let cpu = cpus::bound().unwrap().iter().last().unwrap();
        let config = datapath::Config { cpus: vec![cpu], ..datapath::Config::default() };
        let datapath = Datapath::start(&config, Box::new(|_| ())).unwrap();
        let egress = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
        let ingress = supply(std::iter::from_fn(|| {
            std::thread::sleep(Duration::from_millis(2));
            Some(Frame::empty())
        }));
        datapath.attach("red", vec![Queue { ingress, egress }], Vec::new());
        let (mut check, begin) = (WorkerCheck::default(), Instant::now());
        loop {
            let workers = check.read(&datapath);
            let [worker] = &workers[..] else { panic!("{workers:?}") };
            assert_eq!((worker.cpu, worker.node), (Some(cpu), cpus::node_of(cpu)));
            let queue = worker.queues.first();
            if queue.is_some_and(|queue| queue.to_string() == "red/0" && queue.load > 0.5) {
                assert!(worker.recent.carrying > 0.5 && worker.carrying_nanoseconds > 0);
                break;
            }
            assert!(begin.elapsed() < LIMIT, "it never carries: {worker:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
