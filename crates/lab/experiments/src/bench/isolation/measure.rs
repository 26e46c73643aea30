//! Measures the good guests, and the cost of the attack.

use std::time::{Duration, Instant};

use lab::{Children, CpuMeter, Interrupt, Iperf, RttProbe};
use report::Samples;

use super::order::{Order, Report};
use super::testbed::Attacked;
use crate::error::Result;
use crate::testbed::Subject as _;

/// The time until an order has its effect, for example until rings have filled up.
pub const SETTLE: Duration = Duration::from_millis(300);
/// The pause between round trips. Without it, a stall would be one sample among thousands.
const PACE: Duration = Duration::from_millis(1);
/// How long to wait for a first attempt that may be the last one.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Round trips between two readings of the clock.
const CHUNK: u32 = 100;
/// The time that a lost round trip counts for: as long as the prober waits for it.
const LOST: Duration = Duration::from_secs(1);

/// One measurement.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Throughput of a TCP stream, in 10⁶ bits per second.
    pub mbps: f64,
    /// The 99th percentile of round trips, in µs.
    pub p99: f64,
    /// The longest round trip, in µs.
    pub latest: f64,
    /// CPUs that the daemon used: 0.5 is half of one.
    pub daemon: f64,
    /// CPUs that the hostile process used.
    pub hostile: f64,
    /// What the hostile guest did, in operations of its class.
    pub operations: u64,
    /// How often the attack failed and it joined again: the daemon disables an interface that breaks the
    /// rules.
    pub failures: u64,
    /// Why there was no throughput.
    pub no_stream: Option<String>,
}

impl Sample {
    /// The CPUs that this attack used: its process's, and the daemon's increase over the `idle` guest's time.
    pub fn cost(&self, idle: &Self) -> f64 {
        self.hostile + (self.daemon - idle.daemon).max(0.0)
    }
}

/// Measures the good guests while the hostile one follows an order: a TCP stream first, then round trips. Together,
/// the stream's own queues would be most of a round trip's time. If the guest's first attempt may be its last, the
/// round trips come first, until that attempt is over.
pub fn measure(attacked: &mut Attacked, order: Order, seconds: u32) -> Result<Sample> {
    let before = attacked.order(order)?;
    Interrupt::sleep(SETTLE)?;
    let pids = attacked.pids();
    let meter = CpuMeter::start(&pids, Children::Ignored)?;
    let length = Duration::from_secs(seconds.into());
    let first = attacked.class.attacks_once();
    let first = first.then(|| round_trips(attacked, &before, length)).transpose()?;
    let (mbps, no_stream) = match throughput(attacked, seconds) {
        Ok(mbps) => (mbps, None),
        // A stream that cannot even connect or end while attacked has no throughput.
        Err(error @ (lab::Error::Iperf { .. } | lab::Error::TimedOut { .. }))
            if order == Order::Attack =>
        {
            (0.0, Some(error.to_string()))
        }
        Err(error) => return Err(error.into()),
    };
    let times = first.map_or_else(|| round_trips(attacked, &before, length), Ok)?;
    let [p99, latest] = [99.0, 100.0].map(|percent| times.percentile(percent).unwrap_or(0.0));
    let usage = meter.read()?;
    let [daemon, hostile] = pids.map(|pid| usage.cpus(usage.of(pid)));
    // The answer to the next order has the counts until now.
    let after = attacked.order(Order::Idle)?;
    let operations = after.operations - before.operations;
    let failures = after.failures - before.failures;
    Ok(Sample { mbps, p99, latest, daemon, hostile, operations, failures, no_stream })
}

/// The good guests' TCP throughput, in 10⁶ bits per second.
fn throughput(attacked: &Attacked, seconds: u32) -> lab::Result<f64> {
    let (left, right) = (attacked.testbed.left(), attacked.testbed.right());
    let stream = Iperf::tcp(&left.namespace, &right.namespace, right.ipv4, seconds);
    Ok(stream.run()?.mbps)
}

/// Round trips of datagrams in µs, as a prober with a fixed pace would see them. `begun` is the hostile guest's
/// answer to the order.
fn round_trips(attacked: &Attacked, begun: &Report, length: Duration) -> Result<Samples> {
    let is_attack = begun.order == Order::Attack;
    let awaits_attempt = is_attack && attacked.class.attacks_once();
    let (left, right) = (attacked.testbed.left(), attacked.testbed.right());
    let probe = RttProbe::new(&left.namespace, &right.namespace, right.ipv4, CHUNK).every(PACE);
    let start = Instant::now();
    let mut times = Vec::new();
    while start.elapsed() < length
        || (awaits_attempt
            && start.elapsed() < ATTEMPT
            && attacked.report().as_ref() == Some(begun))
    {
        let chunk = Instant::now();
        match probe.udp() {
            Ok(answered) => {
                let lost = (CHUNK as usize).saturating_sub(answered.len());
                times.extend(answered);
                times.extend(std::iter::repeat_n(LOST, lost));
            }
            // The prober or its other end gave up.
            Err(lab::Error::TimedOut { .. } | lab::Error::Io { .. }) if is_attack => {
                times.push(chunk.elapsed());
            }
            Err(error) => return Err(error.into()),
        }
    }
    let times = times.into_iter().flat_map(|time| with_omitted(time, PACE));
    Ok(times.map(|time| time.as_secs_f64() * 1e6).collect())
}

/// A round trip, and those that a prober with this pace would have begun meanwhile (coordinated omission).
fn with_omitted(time: Duration, pace: Duration) -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(time), move |time| time.checked_sub(pace).filter(|t| !t.is_zero()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_counts_for_all_round_trips_that_it_held_back() {
        let ms = Duration::from_millis;
        let seen: Vec<_> = with_omitted(ms(3), ms(1)).collect();
        assert_eq!(seen, [ms(3), ms(2), ms(1)]);
        let fast = Duration::from_micros(80);
        assert_eq!(with_omitted(fast, ms(1)).collect::<Vec<_>>(), [fast]);
        // 150 ms of each 160 ms: the 99th percentile is near the stall's length.
        let stalls = std::iter::repeat_n(fast, 90).chain([ms(150)]);
        let times: Samples =
            stalls.flat_map(|time| with_omitted(time, ms(1))).map(|t| t.as_secs_f64()).collect();
        assert!(times.percentile(99.0).is_some_and(|p99| p99 > 0.14));
    }
}
