//! The daemon's process and its workers.

use std::fmt;
use std::time::Duration;

use control_socket::{QueueKind, QueueStatus, Status};
use host::ThreadTime;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{family, gauge, plain, seconds};

/// What the names of workers' threads begin with.
const WORKER: &str = "worker-";

pub(super) fn encode(status: &Status, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let version = [([("version", env!("CARGO_PKG_VERSION"))], gauge(1))];
    family(encoder, "pvnet_build_info", "1, with the daemon's version", version)?;
    if let Some(cpu) = status.cpu {
        let time = ConstCounter::new(seconds(cpu.daemon_nanoseconds));
        plain(encoder, "process_cpu_seconds", "CPU time of the daemon", &time)?;
    }
    let help = "When the daemon started, in seconds since 1970";
    plain(encoder, "process_start_time_seconds", help, &gauge(status.started))?;
    let help = "Guests of the configuration that have not joined";
    plain(encoder, "pvnet_absent_guests", help, &gauge(status.absent.len() as u64))?;
    workers(status, encoder)?;
    // Not every kernel counts these.
    let times = host::thread_times(status.pid).unwrap_or_default();
    let of_workers = |time: fn(&ThreadTime) -> Duration| {
        times.iter().filter_map(move |thread| {
            let number = thread.name.strip_prefix(WORKER)?;
            Some(([("worker", number)], ConstCounter::new(time(thread).as_secs_f64())))
        })
    };
    let ran = of_workers(|time| time.ran);
    family(encoder, "pvnet_worker_cpu_seconds", "CPU time of the worker", ran)?;
    let help = "Time for which the worker had work and no CPU";
    family(encoder, "pvnet_worker_waiting_seconds", help, of_workers(|time| time.waited))
}

/// What workers do with their time, and with which queues.
fn workers(status: &Status, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let workers = || (0..).map(|n: u64| n.to_string()).zip(&status.workers);
    let silent = workers().map(|(number, worker)| {
        ([("worker", number)], ConstGauge::new(seconds(worker.silent_nanoseconds)))
    });
    let help =
        "Time for which the worker has not answered what an earlier scrape asked it; 0 if it has";
    family(encoder, "pvnet_worker_silent_seconds", help, silent)?;
    let times = workers().flat_map(|(number, worker)| {
        let times = [
            ("carrying", worker.carrying_nanoseconds),
            ("polling", worker.polling_nanoseconds),
            ("asleep", worker.asleep_nanoseconds),
        ];
        times.map(|(state, time)| {
            let labels = [("worker", number.clone()), ("state", state.to_owned())];
            (labels, ConstCounter::new(seconds(time)))
        })
    });
    let help = "Time of the worker, by what it did: it carried, polled, or slept";
    family(encoder, "pvnet_worker_seconds", help, times)?;
    let shown = |number: Option<usize>| number.map(|n| n.to_string()).unwrap_or_default();
    let places = workers().map(|(number, worker)| {
        let (cpu, node) = (shown(worker.cpu), shown(worker.node));
        ([("worker", number), ("cpu", cpu), ("node", node)], gauge(1))
    });
    let help =
        "1, with the worker's CPU and its NUMA node; both are empty if the scheduler places it";
    family(encoder, "pvnet_worker_info", help, places)?;
    let labels = |queue: &QueueStatus| {
        let number = queue.queue.filter(|_| queue.kind == QueueKind::Queue)?.to_string();
        Some([("port", queue.port.clone()), ("queue", number)])
    };
    let numbers = (0..).zip(&status.workers).flat_map(|(number, worker)| {
        worker.queues.iter().filter_map(move |queue| Some((labels(queue)?, gauge(number))))
    });
    let help = "The number of the worker that has the queue";
    family(encoder, "pvnet_queue_worker", help, numbers)?;
    let queues = status.workers.iter().flat_map(|worker| &worker.queues);
    let times = queues.filter_map(|queue| {
        Some((labels(queue)?, ConstCounter::new(seconds(queue.busy_nanoseconds))))
    });
    let help = "Time of workers in turns of the queue";
    family(encoder, "pvnet_queue_worker_seconds", help, times)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use control_socket::{CpuStatus, WorkerStatus};

    use super::super::{render, tests::assert_lines};
    use super::*;

    fn queue(kind: QueueKind, queue: Option<u64>) -> QueueStatus {
        let (port, busy_nanoseconds) = ("red".to_owned(), 500_000_000);
        QueueStatus { port, kind, queue, busy_nanoseconds, load: 0.0 }
    }

    #[test]
    fn the_process_and_its_workers_become_metrics() {
        let (ready, is_ready) = mpsc::channel();
        let (stop, until) = mpsc::channel::<()>();
        let work = move || {
            ready.send(()).unwrap();
            let _ = until.recv();
        };
        let thread = std::thread::Builder::new().name("worker-63".to_owned()).spawn(work).unwrap();
        is_ready.recv().unwrap();
        let status = Status {
            pid: std::process::id(),
            started: 1_700_000_000,
            cpu: Some(CpuStatus { daemon_nanoseconds: 250_000_000, ..CpuStatus::default() }),
            absent: vec!["red".to_owned(), "blue".to_owned()],
            workers: vec![
                WorkerStatus::default(),
                WorkerStatus {
                    silent_nanoseconds: 1_500_000_000,
                    cpu: Some(3),
                    node: Some(0),
                    asleep_nanoseconds: 2_500_000_000,
                    queues: vec![queue(QueueKind::Queue, Some(4)), queue(QueueKind::Task, None)],
                    ..WorkerStatus::default()
                },
            ],
            ..Status::default()
        };
        let text = render(status).unwrap();
        let lines = [
            "process_cpu_seconds_total 0.25",
            "process_start_time_seconds 1700000000",
            "pvnet_absent_guests 2",
            "pvnet_worker_silent_seconds{worker=\"0\"} 0.0",
            "pvnet_worker_silent_seconds{worker=\"1\"} 1.5",
            "pvnet_worker_seconds_total{worker=\"1\",state=\"asleep\"} 2.5",
            "pvnet_worker_info{worker=\"0\",cpu=\"\",node=\"\"} 1",
            "pvnet_worker_info{worker=\"1\",cpu=\"3\",node=\"0\"} 1",
            "pvnet_queue_worker{port=\"red\",queue=\"4\"} 1",
            "pvnet_queue_worker_seconds_total{port=\"red\",queue=\"4\"} 0.5",
        ];
        assert_lines(&text, &lines);
        for name in ["pvnet_worker_cpu_seconds_total", "pvnet_worker_waiting_seconds_total"] {
            assert!(text.contains(&format!("{name}{{worker=\"63\"}} ")), "{text}");
        }
        drop(stop);
        thread.join().unwrap();
    }
}
