//! The daemon's process and its workers.

use std::fmt;

use control_socket::{QueueKind, QueueStatus, Status};
use host::ThreadTime;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::{plain, seconds};

/// What the names of workers' threads begin with.
const WORKER: &str = "worker-";

/// A time of a worker's thread: its metric's name, its help, and which it is.
type WorkerTime = (&'static str, &'static str, fn(&ThreadTime) -> f64);

const WORKER_TIMES: [WorkerTime; 2] = [
    ("pvnet_worker_cpu_seconds", "CPU time of the worker", |time| time.ran.as_secs_f64()),
    ("pvnet_worker_waiting_seconds", "Time for which the worker had work and no CPU", |time| {
        time.waited.as_secs_f64()
    }),
];

pub(super) fn encode(
    status: &Status,
    encoder: &mut DescriptorEncoder<'_>,
) -> Result<(), fmt::Error> {
    let kind = ConstGauge::new(0i64).metric_type();
    let help = "1, with the daemon's version";
    let mut family = encoder.encode_descriptor("pvnet_build_info", help, None, kind)?;
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    ConstGauge::new(1i64).encode(family.encode_family(&version)?)?;
    if let Some(cpu) = status.cpu {
        let time = ConstCounter::new(seconds(cpu.daemon_nanoseconds));
        plain(encoder, "process_cpu_seconds", "CPU time of the daemon", &time)?;
    }
    let started = ConstGauge::new(i64::try_from(status.started).unwrap_or(i64::MAX));
    let help = "When the daemon started, in seconds since 1970";
    plain(encoder, "process_start_time_seconds", help, &started)?;
    let absent = ConstGauge::new(i64::try_from(status.absent.len()).unwrap_or(i64::MAX));
    let help = "Guests of the configuration that have not joined";
    plain(encoder, "pvnet_absent_guests", help, &absent)?;
    let help =
        "Time for which the worker has not answered what an earlier scrape asked it; 0 if it has";
    let name = "pvnet_worker_silent_seconds";
    let mut family = encoder.encode_descriptor(name, help, None, kind)?;
    for (number, worker) in status.workers.iter().enumerate() {
        let silent = ConstGauge::new(seconds(worker.silent_nanoseconds));
        silent.encode(family.encode_family(&[("worker", number.to_string())])?)?;
    }
    workers(status, encoder)?;
    // Not every kernel counts these.
    let times = host::thread_times(status.pid).unwrap_or_default();
    let kind = ConstCounter::new(0f64).metric_type();
    for (name, help, time) in WORKER_TIMES {
        let mut family = encoder.encode_descriptor(name, help, None, kind)?;
        for thread in &times {
            if let Some(number) = thread.name.strip_prefix(WORKER) {
                let labels = [("worker", number)];
                ConstCounter::new(time(thread)).encode(family.encode_family(&labels)?)?;
            }
        }
    }
    Ok(())
}

/// What workers do with their time, and with which queues.
fn workers(status: &Status, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
    let kind = ConstCounter::new(0f64).metric_type();
    let help = "Time of the worker, by what it did: it carried, looked for work, or slept";
    let mut family = encoder.encode_descriptor("pvnet_worker_seconds", help, None, kind)?;
    for (number, worker) in status.workers.iter().enumerate() {
        for (state, time) in [
            ("carrying", worker.carrying_nanoseconds),
            ("polling", worker.polling_nanoseconds),
            ("asleep", worker.asleep_nanoseconds),
        ] {
            let labels = [("worker", number.to_string()), ("state", state.to_owned())];
            ConstCounter::new(seconds(time)).encode(family.encode_family(&labels)?)?;
        }
    }
    let kind = ConstGauge::new(0i64).metric_type();
    let help =
        "1, with the worker's CPU and its NUMA node; both are empty if the scheduler places it";
    let mut family = encoder.encode_descriptor("pvnet_worker_info", help, None, kind)?;
    for (number, worker) in status.workers.iter().enumerate() {
        let shown = |number: Option<usize>| number.map(|n| n.to_string()).unwrap_or_default();
        let labels = [
            ("worker", number.to_string()),
            ("cpu", shown(worker.cpu)),
            ("node", shown(worker.node)),
        ];
        ConstGauge::new(1i64).encode(family.encode_family(&labels)?)?;
    }
    let queues = || {
        let workers = status.workers.iter().enumerate();
        workers.flat_map(|(number, worker)| worker.queues.iter().map(move |queue| (number, queue)))
    };
    let numbered = |queue: &QueueStatus| {
        Some([
            ("port", queue.port.clone()),
            ("queue", queue.queue.filter(|_| queue.kind == QueueKind::Queue)?.to_string()),
        ])
    };
    let help = "The number of the worker that has the queue";
    let mut family = encoder.encode_descriptor("pvnet_queue_worker", help, None, kind)?;
    for (number, queue) in queues() {
        if let Some(labels) = numbered(queue) {
            let number = i64::try_from(number).unwrap_or(i64::MAX);
            ConstGauge::new(number).encode(family.encode_family(&labels)?)?;
        }
    }
    let kind = ConstCounter::new(0f64).metric_type();
    let help = "Time of workers in turns of the queue";
    let mut family = encoder.encode_descriptor("pvnet_queue_worker_seconds", help, None, kind)?;
    for (_, queue) in queues() {
        if let Some(labels) = numbered(queue) {
            let time = ConstCounter::new(seconds(queue.busy_nanoseconds));
            time.encode(family.encode_family(&labels)?)?;
        }
    }
    Ok(())
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
