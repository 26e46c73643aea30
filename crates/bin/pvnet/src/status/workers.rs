//! Workers in a line each.

use control_socket::{QueueKind, QueueStatus, WorkerShares, WorkerStatus};

/// Queues that a line names, the busiest of them.
const NAMED: usize = 6;

/// What a worker does, and for whom.
pub fn line(number: usize, worker: &WorkerStatus) -> String {
    let WorkerShares { carrying, polling, asleep } = worker.recent;
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let place = place(worker).map_or_else(String::new, |place| format!(" on {place}"));
    let times = format!(
        "{} carrying, {} polling, {} asleep",
        percent(carrying),
        percent(polling),
        percent(asleep)
    );
    format!("worker {number}{place}: {times}; {}", queues(&worker.queues))
}

/// Where a worker runs, if it is bound.
pub fn place(worker: &WorkerStatus) -> Option<String> {
    let cpu = worker.cpu?;
    Some(match worker.node {
        Some(node) => format!("CPU {cpu} (node {node})"),
        None => format!("CPU {cpu}"),
    })
}

fn queues(queues: &[QueueStatus]) -> String {
    let mut queues: Vec<_> = queues.iter().filter(|queue| queue.kind != QueueKind::Task).collect();
    queues.sort_by(|one, other| other.load.total_cmp(&one.load));
    let named: Vec<_> = queues.iter().take(NAMED).map(|queue| with_load(queue)).collect();
    match queues.len() {
        0 => "no queues".to_owned(),
        all if all > NAMED => format!("{} and {} more", named.join(", "), all - NAMED),
        _ => named.join(", "),
    }
}

fn with_load(queue: &QueueStatus) -> String {
    format!("{queue} {:.0} %", queue.load * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(queue: u64, load: f64) -> QueueStatus {
        QueueStatus { port: "red".to_owned(), queue: Some(queue), load, ..QueueStatus::default() }
    }

    #[test]
    fn a_worker_has_a_place_and_its_busiest_queues() {
        let recent = WorkerShares { carrying: 0.5, polling: 0.25, asleep: 0.25 };
        let queues = (0..8).map(|n| queue(n, n as f64 / 100.0));
        let task = QueueStatus { kind: QueueKind::Task, ..queue(9, 0.9) };
        let queues = queues.chain([task]).collect();
        let worker =
            WorkerStatus { cpu: Some(3), node: Some(1), recent, queues, ..WorkerStatus::default() };
        assert_eq!(
            line(2, &worker),
            "worker 2 on CPU 3 (node 1): 50 % carrying, 25 % polling, 25 % asleep; \
             red/7 7 %, red/6 6 %, red/5 5 %, red/4 4 %, red/3 3 %, red/2 2 % and 2 more"
        );
        let idle = line(0, &WorkerStatus::default());
        assert_eq!(idle, "worker 0: 0 % carrying, 0 % polling, 0 % asleep; no queues");
    }
}
