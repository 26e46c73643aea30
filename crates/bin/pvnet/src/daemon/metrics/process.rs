//! The daemon's process and its workers.

use std::fmt;

use control_socket::Status;
use host::ThreadTime;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use super::encode::{plain, seconds};

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

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use control_socket::{CpuStatus, WorkerStatus};

    use super::super::{render, tests::assert_lines};
    use super::*;

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
            workers: [0, 1_500_000_000]
                .map(|silent_nanoseconds| WorkerStatus { silent_nanoseconds })
                .into(),
            ..Status::default()
        };
        let text = render(status).unwrap();
        let lines = [
            "process_cpu_seconds_total 0.25",
            "process_start_time_seconds 1700000000",
            "pvnet_absent_guests 2",
            "pvnet_worker_silent_seconds{worker=\"0\"} 0.0",
            "pvnet_worker_silent_seconds{worker=\"1\"} 1.5",
        ];
        assert_lines(&text, &lines);
        for name in ["pvnet_worker_cpu_seconds_total", "pvnet_worker_waiting_seconds_total"] {
            assert!(text.contains(&format!("{name}{{worker=\"63\"}} ")), "{text}");
        }
        drop(stop);
        thread.join().unwrap();
    }
}
