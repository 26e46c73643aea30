//! Measures a transfer and its cost.

use std::time::Duration;

use control_socket::{QueueReport, Status};
use lab::{Children, CpuMeter, Iperf, ThreadTime, Traffic, thread_times};

use super::flows::{Hashes, SERVER_PORT, Spread};
use crate::error::{Error, Result};
use crate::testbed::{Subject as _, Testbed, measure};

/// The results of one transfer from the left guest to the right one.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Payload, in 10⁶ bits per second.
    pub mbps: f64,
    /// The share of time in which the sender's rings were full: the mean over those that carried frames.
    pub ring_full: f64,
    /// The sender's rings that carried frames.
    pub rings: usize,
    /// CPU time of the daemon in nanoseconds per KiB of payload.
    pub daemon: f64,
    /// The same of both guests: their queues' threads, and iperf3 with the stack's work for it.
    pub guests: f64,
    /// The same of the daemon's workers.
    pub worker: f64,
    /// The same of the threads of the sender's and the receiver's queues.
    pub queues: [f64; 2],
    /// The share of the workers' time in which one waited for an egress queue that another had locked.
    pub locked: f64,
    /// The mean share of a CPU that a worker used.
    pub worker_busy: f64,
    /// The share of the CPUs' time that this machine's hypervisor gave to others.
    pub stolen: f64,
    /// The sender's congestion control, as iperf3 names it.
    pub congestion: Option<String>,
    /// The client's ports, one per stream.
    pub ports: Vec<u16>,
}

impl Sample {
    /// How the streams spread over `queues` queues.
    pub fn spread(&self, queues: usize) -> Spread {
        let set: Vec<Hashes> = self.ports.iter().filter_map(|port| Hashes::of(*port)).collect();
        Spread::of(&set, queues)
    }
}

/// A transfer.
#[derive(Clone, Copy, Debug)]
pub struct Transfer<'a> {
    /// Connections.
    pub streams: u32,
    /// Seconds.
    pub seconds: u32,
    /// TCP's congestion control.
    pub congestion: &'a str,
}

/// A ring with a smaller share of the frames has none of the streams: its frames are those of the control connection.
const CARRIES: f64 = 0.005;

/// Times and counts of the threads at one moment.
struct Counts {
    workers: Vec<Duration>,
    /// The threads of the queues of both guests.
    queues: [Duration; 2],
    /// All of the guests' processes.
    guests: Duration,
    lock_waits: Duration,
    rings: Vec<QueueReport>,
}

impl Counts {
    fn read(testbed: &mut Testbed) -> Result<Self> {
        let status = testbed.status()?;
        let workers = times(&thread_times(testbed.pid())?, "worker-").collect();
        let mut queues = [Duration::ZERO; 2];
        let interface = format!("{}-", testbed.left().device);
        let mut guests = Duration::ZERO;
        for (sum, guest) in queues.iter_mut().zip(testbed.guests()) {
            let threads = thread_times(guest)?;
            *sum = times(&threads, &interface).sum();
            guests += times(&threads, "").sum::<Duration>();
        }
        let rings = testbed.left_queues()?;
        Ok(Self { workers, queues, guests, lock_waits: lock_waits(&status), rings })
    }
}

/// The running times of the threads whose names begin with `prefix`.
fn times<'a>(threads: &'a [ThreadTime], prefix: &'a str) -> impl Iterator<Item = Duration> + 'a {
    threads.iter().filter(move |thread| thread.name.starts_with(prefix)).map(|thread| thread.ran)
}

fn lock_waits(status: &Status) -> Duration {
    let nanoseconds = status.ports.iter().map(|port| port.lock_waits.nanoseconds).sum();
    Duration::from_nanos(nanoseconds)
}

/// The time of this process's children that have ended: iperf3 at both ends.
struct Programs([CpuMeter; 2]);

impl Programs {
    fn start() -> Result<Self> {
        let of = |children| CpuMeter::start(&[std::process::id()], children);
        Ok(Self([of(Children::Reaped)?, of(Children::Ignored)?]))
    }

    fn read(&self) -> Result<Duration> {
        let [with, without] = &self.0;
        let of = |meter: &CpuMeter| Ok::<_, Error>(meter.read()?.of(std::process::id()));
        Ok(of(with)?.saturating_sub(of(without)?))
    }
}

/// Runs a transfer.
pub fn transfer(testbed: &mut Testbed, transfer: &Transfer<'_>) -> Result<Sample> {
    let before = Counts::read(testbed)?;
    let programs = Programs::start()?;
    let measured = {
        let testbed = &*testbed;
        let (left, right) = (testbed.left(), testbed.right());
        let tcp = Iperf::tcp(&left.namespace, &right.namespace, right.ipv4, transfer.seconds);
        let traffic = Traffic::Tcp { streams: transfer.streams };
        let iperf = Iperf { traffic, port: SERVER_PORT, ..tcp };
        let iperf = iperf.congestion(Some(transfer.congestion));
        measure(testbed, || iperf.run())?
    };
    let programs = programs.read()?;
    let after = Counts::read(testbed)?;
    let throughput = measured.result;
    let kib = throughput.bytes.max(1) as f64 / 1024.0;
    let per_kib = |time: Duration| time.as_secs_f64() * 1e9 / kib;
    let ran = |before: &[Duration], after: &[Duration]| {
        let total = |times: &[Duration]| times.iter().sum::<Duration>();
        total(after).saturating_sub(total(before))
    };
    let workers = ran(&before.workers, &after.workers);
    let waited = after.lock_waits.saturating_sub(before.lock_waits);
    let queues = [0, 1].map(|end| per_kib(after.queues[end].saturating_sub(before.queues[end])));
    let daemon = measured.cpu.driver + measured.cpu.hypervisor;
    let (ring_full, rings) = rings(&before.rings, &after.rings, throughput.seconds);
    Ok(Sample {
        mbps: throughput.mbps,
        ring_full,
        rings,
        daemon: per_kib(measured.wall.mul_f64(daemon.max(0.0))),
        guests: per_kib(programs + after.guests.saturating_sub(before.guests)),
        worker: per_kib(workers),
        queues,
        locked: share(waited, workers + waited),
        worker_busy: share(
            workers,
            measured.wall * u32::try_from(after.workers.len()).unwrap_or(1),
        ),
        stolen: measured.stolen,
        congestion: throughput.congestion,
        ports: throughput.ports,
    })
}

fn share(part: Duration, whole: Duration) -> f64 {
    part.as_secs_f64() / whole.as_secs_f64().max(f64::EPSILON)
}

/// The mean share of `seconds` in which the rings that carried frames were full, and how many they are.
fn rings(before: &[QueueReport], after: &[QueueReport], seconds: f64) -> (f64, usize) {
    let since = |of: fn(&QueueReport) -> u64| {
        let pairs = before.iter().zip(after);
        pairs.map(move |(before, after)| of(after).saturating_sub(of(before)) as f64)
    };
    let all: f64 = since(|ring| ring.frames).sum();
    let rings = since(|ring| ring.frames).zip(since(|ring| ring.full_nanoseconds));
    let full: Vec<f64> = rings
        .filter(|(frames, _)| *frames > CARRIES * all)
        .map(|(_, full)| (full / 1e9 / seconds.max(f64::EPSILON)).min(1.0))
        .collect();
    (full.iter().sum::<f64>() / full.len().max(1) as f64, full.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_without_a_stream_do_not_count() {
        let ring = |frames, full_nanoseconds| QueueReport {
            frames,
            full_nanoseconds,
            ..QueueReport::default()
        };
        let before = [ring(1000, 0), ring(0, 0), ring(0, 0)];
        let after = [ring(2000, 500_000_000), ring(1000, 1_500_000_000), ring(5, 0)];
        let (full, carried) = rings(&before, &after, 2.0);
        assert!((full - 0.5).abs() < 1e-9 && carried == 2, "{full} {carried}");
        assert_eq!(rings(&[], &[], 2.0), (0.0, 0));
    }

    #[test]
    fn threads_are_found_by_the_beginning_of_their_names() {
        let thread = |name: &str, ran| ThreadTime {
            name: name.to_owned(),
            ran: Duration::from_secs(ran),
            waited: Duration::ZERO,
        };
        let all = [thread("worker-0", 1), thread("worker-1", 2), thread("control", 4)];
        assert_eq!(times(&all, "worker-").sum::<Duration>(), Duration::from_secs(3));
    }
}
