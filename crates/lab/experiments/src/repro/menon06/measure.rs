//! One transfer, and the domains' shares of the server CPU's time.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use control_socket::{Operations, Status};
use hypervisor::Counted;
use lab::{Children, CpuMeter, CpuUsage, Iperf, Throughput};
use report::CpuSplit;
use schemars::JsonSchema;
use serde::Serialize;

use super::config;
use super::paper::Program;
use super::plan::Key;
use super::topology::carried;
use crate::error::{Error, Result};
use crate::repro::cpus::Cpus;
use crate::repro::server::{PEER, Server, address};
use crate::repro::transfer::{Direction, PAYLOAD};

/// The results of one transfer.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Payload received, in 10⁶ bits per second.
    pub mbps: f64,
    /// Where the server CPU's time went, in CPU seconds per second.
    pub cpu: CpuSplit,
    /// The cost of a gigabyte.
    pub cost: Cost,
    /// Operations of the hypervisor per [`PAYLOAD`] bytes received; `None` without pvnet.
    pub per_packet: Option<BTreeMap<String, f64>>,
    /// The share of the server CPU's time, 0 to 1, that this machine's hypervisor gave to others.
    pub stolen: f64,
}

/// CPU seconds for 10⁹ bytes received.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Cost {
    /// The guest: its program, stack and frontend.
    pub guest: f64,
    /// The driver domain.
    pub driver: f64,
    /// The hypervisor.
    pub hypervisor: f64,
}

/// Runs a transfer.
pub fn measure(running: &Server, key: Key, seconds: u32, cpus: &Cpus) -> Result<Sample> {
    let daemon: Vec<u32> = running.daemon().into_iter().collect();
    let before = running.status()?;
    let meter = CpuMeter::start_on(cpus.server, &daemon, Children::Ignored)?;
    let throughput = match iperf(running, key, seconds, cpus).run() {
        // If pvnet has failed, its own error says more.
        Err(error) if !matches!(error, lab::Error::Interrupted) => {
            running.status()?;
            return Err(error.into());
        }
        throughput => throughput?,
    };
    let usage = meter.read()?;
    let activity = match (before, running.status()?) {
        (Some(before), Some(after)) => Some(Activity::between(&before, &after)),
        _ => None,
    };
    sample(key.server, &throughput, &usage, activity.as_ref())
}

fn iperf<'a>(running: &'a Server, key: Key, seconds: u32, cpus: &Cpus) -> Iperf<'a> {
    let (server, client) = ((running.first(), cpus.server), (&running.peer, cpus.client));
    let (from, to, host) = match key.direction {
        Direction::Tx => (server, client, PEER),
        Direction::Rx => (client, server, 1),
    };
    let tcp = Iperf::tcp(from.0, to.0, Ipv4Addr::from(address(0, host)), seconds);
    let pace = key.pace.map(|mbps| u64::from(mbps) * 1_000_000);
    Iperf { zerocopy: key.program == Program::Sendfile, pace, cpus: [from.1, to.1], ..tcp }
}

/// pvnet's counters during a transfer.
struct Activity {
    operations: Operations,
    /// Frames at the NIC, both ways.
    frames: u64,
    hypervisor: Duration,
    bytes: u64,
}

impl Activity {
    fn between(before: &Status, after: &Status) -> Self {
        let (frames, bytes) = carried(after);
        let (frames_before, bytes_before) = carried(before);
        let nanoseconds = after.meter.nanoseconds.saturating_sub(before.meter.nanoseconds);
        Self {
            operations: after.meter.counts - before.meter.counts,
            frames: frames.saturating_sub(frames_before),
            hypervisor: Duration::from_nanos(nanoseconds),
            bytes: bytes.saturating_sub(bytes_before),
        }
    }

    /// The counts per packet, by their names in rows.
    fn per_packet(&self, packets: f64) -> BTreeMap<String, f64> {
        let name = |what: Counted| match what {
            Counted::CopiedBytes => "bytes_copied",
            what => what.name(),
        };
        let operations = self.operations.iter().map(|(what, count)| (name(what), count as f64));
        let nanoseconds = self.hypervisor.as_secs_f64() * 1e9;
        let others = [("frames", self.frames as f64), ("hypervisor_ns", nanoseconds)];
        let all = operations.chain(others);
        all.map(|(name, count)| (name.to_owned(), count / packets)).collect()
    }
}

fn sample(
    server: config::ServerKind,
    throughput: &Throughput,
    usage: &CpuUsage,
    activity: Option<&Activity>,
) -> Result<Sample> {
    let received = throughput.bytes;
    if let Some(activity) = activity.filter(|activity| activity.bytes < received) {
        let bytes = activity.bytes;
        let text = format!("{received} bytes arrived, but pvnet's NIC carried only {bytes}");
        return Err(Error::Failed(text));
    }
    let cpu = split(server, usage, activity.map_or(Duration::ZERO, |activity| activity.hypervisor));
    let received = (received.max(1)) as f64;
    let gigabyte = usage.wall.as_secs_f64() * 1e9 / received;
    let cost = Cost {
        guest: cpu.guest * gigabyte,
        driver: cpu.driver * gigabyte,
        hypervisor: cpu.hypervisor * gigabyte,
    };
    Ok(Sample {
        mbps: throughput.mbps,
        cpu,
        cost,
        per_packet: activity.map(|activity| activity.per_packet(received / f64::from(PAYLOAD))),
        stolen: accounting::stolen(usage),
    })
}

/// Divides the time of the server's CPU. Time that is neither the daemon's nor idle belongs to the program and its
/// stack, in a guest or in the driver domain. On Linux it counts as the guest's.
fn split(server: config::ServerKind, usage: &CpuUsage, hypervisor: Duration) -> CpuSplit {
    let split = accounting::split(usage, hypervisor);
    match server {
        config::ServerKind::Driver(_) => {
            CpuSplit { guest: 0.0, driver: split.driver + split.guest, ..split }
        }
        config::ServerKind::Guest(_) | config::ServerKind::Native => split,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage() -> CpuUsage {
        let s = Duration::from_secs;
        let processes = vec![(7, s(2))];
        CpuUsage { wall: s(4), busy: s(3), idle: s(1), processes, ..CpuUsage::default() }
    }

    fn throughput() -> Throughput {
        Throughput {
            mbps: 1.0,
            bytes: 1_448_000,
            retransmits: 0,
            seconds: 4.0,
            lost_percent: 0.0,
            packets: 0,
            per_second: vec![],
            congestion: None,
            ports: vec![],
        }
    }

    fn activity() -> Activity {
        Activity {
            operations: [(Counted::Maps, 2000), (Counted::CopiedBytes, 66_000)]
                .into_iter()
                .collect(),
            frames: 1000,
            hypervisor: Duration::from_secs(1),
            bytes: 1_500_000,
        }
    }

    #[test]
    fn the_program_belongs_to_where_it_runs() {
        let parts = |server| {
            let cpu = split(server, &usage(), Duration::from_secs(1));
            (cpu.guest, cpu.driver, cpu.hypervisor, cpu.idle)
        };
        assert_eq!(parts(config::NONE), (0.25, 0.25, 0.25, 0.25));
        assert_eq!(parts(config::DRIVER_NONE), (0.0, 0.5, 0.25, 0.25));
    }

    #[test]
    fn a_packet_is_what_a_frame_of_the_mtu_holds() {
        let sample = sample(config::NONE, &throughput(), &usage(), Some(&activity())).unwrap();
        let per_packet = sample.per_packet.unwrap();
        assert_eq!((per_packet["maps"], per_packet["bytes_copied"]), (2.0, 66.0));
        assert_eq!(per_packet["hypervisor_ns"], 1e6);
        // A second for 1448000 bytes.
        assert_eq!(sample.cost.hypervisor.round(), 691.0);
        let native =
            super::sample(config::ServerKind::Native, &throughput(), &usage(), None).unwrap();
        assert_eq!(native.per_packet, None);
    }

    #[test]
    fn bytes_that_pvnet_did_not_carry_are_an_error() {
        let activity = Activity { bytes: 1_447_999, ..activity() };
        assert!(sample(config::NONE, &throughput(), &usage(), Some(&activity)).is_err());
    }
}
