//! The workers in an interval.

use control_socket::{QueueStatus, Status, WorkerStatus};
use report::human;

use super::layout::{TableColumn, table};

/// One worker in an interval.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerRates {
    /// The CPU that it is bound to, and the node of that.
    pub cpu: Option<usize>,
    pub node: Option<usize>,
    /// Nanoseconds in which it carried, polled, and slept.
    pub carrying: u64,
    pub polling: u64,
    pub asleep: u64,
    /// Its queues at the end, the busiest first, with the nanoseconds of their turns.
    pub queues: Vec<(QueueStatus, u64)>,
}

/// All workers between two readings.
pub fn between(before: &Status, after: &Status) -> Vec<WorkerRates> {
    let queues = || before.workers.iter().flat_map(|worker| &worker.queues);
    let none = WorkerStatus::default();
    let of_worker = |(number, after): (usize, &WorkerStatus)| {
        let before = before.workers.get(number).unwrap_or(&none);
        let since = |field: fn(&WorkerStatus) -> u64| field(after).saturating_sub(field(before));
        let of_queue = |queue: &QueueStatus| {
            // Another worker may have had it.
            let is_it = |other: &&QueueStatus| {
                (&other.port, other.kind, other.queue) == (&queue.port, queue.kind, queue.queue)
                    && other.busy_nanoseconds <= queue.busy_nanoseconds
            };
            let before = queues().find(is_it).map_or(0, |other| other.busy_nanoseconds);
            (queue.clone(), queue.busy_nanoseconds - before)
        };
        let mut queues: Vec<_> = after.queues.iter().map(of_queue).collect();
        queues.sort_by_key(|(_, busy)| std::cmp::Reverse(*busy));
        WorkerRates {
            cpu: after.cpu,
            node: after.node,
            carrying: since(|worker| worker.carrying_nanoseconds),
            polling: since(|worker| worker.polling_nanoseconds),
            asleep: since(|worker| worker.asleep_nanoseconds),
            queues,
        }
    };
    after.workers.iter().enumerate().map(of_worker).collect()
}

/// Queues that a row names.
const NAMED: usize = 4;

/// A table of at most `width` characters in a line, for intervals of `seconds`; empty without a worker.
pub fn text(workers: &[WorkerRates], seconds: f64, width: Option<usize>) -> String {
    if workers.is_empty() {
        return String::new();
    }
    let percent = |nanoseconds: u64| human(nanoseconds as f64 / 1e7 / seconds);
    let shown = |number: Option<usize>| number.map_or_else(|| "–".to_owned(), |n| n.to_string());
    let queues = |worker: &WorkerRates| {
        let busy = worker.queues.iter().filter(|(_, busy)| *busy > 0).take(NAMED);
        let busy = busy.map(|(queue, busy)| format!("{queue} {}", percent(*busy)));
        busy.collect::<Vec<_>>().join(", ")
    };
    let column = |header, rank, cell: &dyn Fn(&WorkerRates) -> String| TableColumn {
        header,
        is_left: header == "queues, %",
        cells: workers.iter().map(cell).collect(),
        rank,
    };
    let mut columns = vec![TableColumn {
        header: "worker",
        is_left: false,
        cells: (0..workers.len()).map(|number| number.to_string()).collect(),
        rank: 0,
    }];
    columns.extend([
        column("CPU", 2, &|worker| shown(worker.cpu)),
        column("node", 4, &|worker| shown(worker.node)),
        column("carrying %", 0, &|worker| percent(worker.carrying)),
        column("polling %", 0, &|worker| percent(worker.polling)),
        column("asleep %", 0, &|worker| percent(worker.asleep)),
        column("queues, %", 3, &queues),
    ]);
    format!("{}\n", table(columns, width))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(busy: [u64; 2], asleep: u64) -> Status {
        let queue = |(number, busy): (usize, u64)| QueueStatus {
            port: "red".to_owned(),
            queue: Some(number as u64),
            busy_nanoseconds: busy,
            ..QueueStatus::default()
        };
        let worker = WorkerStatus {
            cpu: Some(3),
            carrying_nanoseconds: busy.iter().sum(),
            asleep_nanoseconds: asleep,
            queues: busy.into_iter().enumerate().map(queue).collect(),
            ..WorkerStatus::default()
        };
        Status { workers: vec![worker], ..Status::default() }
    }

    #[test]
    fn workers_have_shares_of_the_interval() {
        let before = status([1_000_000_000, 0], 500_000_000);
        let after = status([1_100_000_000, 400_000_000], 2_000_000_000);
        let workers = between(&before, &after);
        let text = text(&workers, 2.0, None);
        for part in ["25.0", "75.0", "red/1 20.0, red/0 5.00"] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        assert_eq!((workers[0].carrying, workers[0].asleep), (500_000_000, 1_500_000_000));
        assert!(super::text(&[], 1.0, None).is_empty());
    }
}
