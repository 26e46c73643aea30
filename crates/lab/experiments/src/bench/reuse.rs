//! `pvnet-lab bench reuse`: what keeping guests' pages mapped between packets saves.
//!
//! TCP and UDP between two guests, with each way to choose the pages that stay mapped, for packets whose headers are copied and
//! for packets that are mapped. Every round measures all ways in turn.

use std::time::Duration;

use clap::Args;
use control_socket::{KeptPages, Status};
use hypervisor::Counted;
use lab::{Children, CpuMeter, Interrupt, Iperf, Progress, thread_times};
use report::{Benchmark, human};

use super::rows::{Common, Rows, in_turn};
use crate::error::{Error, Result};
use crate::repro::shares::{Shares, Times, shares};
use crate::testbed::{CONGESTION, Setup, Subject as _, Testbed};

/// Options of this benchmark.
#[derive(Args)]
pub struct ReuseArgs {
    #[command(flatten)]
    pub common: Common,
    /// Seconds of each transfer that are measured.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
    /// Payload of UDP in Mb/s. All ways must keep up.
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub udp_mbps: u32,
    /// TCP's congestion control at both ends.
    #[arg(long, value_name = "NAME", default_value = CONGESTION)]
    pub congestion: String,
}

/// Bytes of a datagram's payload: its frame has 1490.
const DATAGRAM: u16 = 1448;
/// How long a transfer runs before the measured time, so that pages are mapped by then, and after it.
const MARGIN: Duration = Duration::from_millis(500);

/// How the daemon reaches packets from the guest.
const CHANNELS: [&str; 2] = ["header", "remap"];

/// Which pages stay mapped: the suffix in rows, and lines of each guest's configuration. The others are compared with the first.
const REUSES: [(&str, &str); 3] = [
    ("", "persistent_grants = 0\n"),
    ("+agreed", "grant_reuse = \"agreed\"\n"),
    ("+on-demand", "grant_reuse = \"on-demand\"\n"),
];

/// Guests with one channel and one way of reuse.
struct Variant {
    channel: &'static str,
    reuse: &'static str,
    testbed: Testbed,
}

#[derive(Clone, Copy)]
enum Transfer {
    Tcp,
    Udp,
}

impl Transfer {
    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Runs the benchmark.
pub fn run(args: &ReuseArgs) -> Result<Benchmark> {
    lab::preflight(&["iperf3"])?;
    let rounds = args.common.rounds;
    let variants = CHANNELS.len() * REUSES.len();
    let progress = Progress::new(variants * (1 + rounds as usize), args.common.quiet);
    let mut all = Vec::new();
    for channel in CHANNELS {
        for (reuse, lines) in REUSES {
            progress.step(format!("start pvnet with tx = {channel}{reuse}"));
            let guest = format!("tx = \"{channel}\"\n{lines}");
            let testbed = Testbed::start(&Setup { meter: true, guest, ..Setup::default() })?;
            all.push(Variant { channel, reuse, testbed });
        }
    }
    let mut rows = Rows::default();
    for round in 0..rounds {
        for variant in in_turn(round, &all) {
            let Variant { channel, reuse, .. } = variant;
            progress.step(format!("round {} of {rounds}: {channel}{reuse}", round + 1));
            for transfer in [Transfer::Udp, Transfer::Tcp] {
                let sample = measure(&variant.testbed, transfer, args)?;
                let cost = sample.driver + sample.hypervisor;
                progress.done(&format!("{}: {} ns per packet", transfer.name(), human(cost)));
                sample.add_to(&mut rows, &format!("{}-{channel}", transfer.name()), reuse);
            }
        }
    }
    Ok(rows.finish("reuse"))
}

/// The figures of a transfer, per packet that the daemon carried.
struct Sample {
    /// The kept pages of both guests, in both directions.
    kept: KeptPages,
    hypercalls: f64,
    /// The hypercalls that are not notifications.
    grant_hypercalls: f64,
    /// Nanoseconds of CPU time of the driver domain; `hypervisor` has the hypervisor's.
    driver: f64,
    hypervisor: f64,
}

impl Sample {
    fn add_to(&self, rows: &mut Rows, case: &str, reuse: &str) {
        let Self { kept, hypercalls, grant_hypercalls, driver, hypervisor } = self;
        let mut push = |what, unit, value: f64| {
            rows.push(&format!("{case}-{what}{reuse}"), unit, value);
        };
        push("driver", "ns/packet", *driver);
        push("hypervisor", "ns/packet", *hypervisor);
        push("total", "ns/packet", driver + hypervisor);
        push("hypercalls", "/packet", *hypercalls);
        push("grant-hypercalls", "/packet", *grant_hypercalls);
        if let Some(rate) = kept.hit_rate() {
            push("hit-rate", "", rate);
            push("active-set", "pages", kept.mapped as f64);
        }
    }
}

fn measure(testbed: &Testbed, transfer: Transfer, args: &ReuseArgs) -> Result<Sample> {
    let (left, right) = (testbed.left(), testbed.right());
    let margins = 2 * u32::try_from(MARGIN.as_secs() + 1).unwrap_or(1);
    let tcp = Iperf::tcp(&left.namespace, &right.namespace, right.ipv4, args.seconds + margins);
    let iperf = match transfer {
        Transfer::Tcp => tcp.congestion(Some(&args.congestion)),
        Transfer::Udp => tcp.udp(u64::from(args.udp_mbps) * 1_000_000, DATAGRAM),
    };
    let running = iperf.start()?;
    Interrupt::sleep(MARGIN)?;
    let before = reading(testbed)?;
    let meter = CpuMeter::start(&[], Children::Ignored)?;
    // This is the measured time.
    Interrupt::sleep(Duration::from_secs(args.seconds.into()))?;
    let usage = meter.read()?;
    let after = reading(testbed)?;
    running.finish()?;
    let frames = |status: &Status| status.ports.iter().map(|port| port.ingress.frames).sum::<u64>();
    let packets = frames(&after.status).saturating_sub(frames(&before.status));
    if packets == 0 {
        return Err(Error::Failed("no packet was carried".to_owned()));
    }
    let (share, _) = shares(&before.times, &after.times, &usage);
    let Shares { driver, hypervisor, .. } = share;
    let wall = usage.wall.as_secs_f64() * 1e9 / packets as f64;
    let operations = after.status.meter.counts - before.status.meter.counts;
    let hypercalls = operations.of(Counted::Hypercalls);
    let grants = hypercalls.saturating_sub(operations.of(Counted::Notifications));
    let each = |count: u64| count as f64 / packets as f64;
    Ok(Sample {
        kept: kept(&after.status) - kept(&before.status),
        hypercalls: each(hypercalls),
        grant_hypercalls: each(grants),
        driver: driver * wall,
        hypervisor: hypervisor * wall,
    })
}

struct Reading {
    status: Status,
    times: Times,
}

fn reading(testbed: &Testbed) -> Result<Reading> {
    let status = testbed.status()?;
    let metered = Duration::from_nanos(status.meter.nanoseconds);
    let threads = thread_times(testbed.pid())?;
    let times = Times { metered, ..Times::default() }.with_daemon(&threads);
    Ok(Reading { status, times })
}

/// The pages of all ports, in both directions.
fn kept(status: &Status) -> KeptPages {
    let grants = status.ports.iter().filter_map(|port| port.persistent_grants);
    grants.fold(KeptPages::default(), |sum, grants| sum + grants.tx + grants.rx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reuse_is_compared_with_none() {
        let mut rows = Rows::default();
        let kept = KeptPages { mapped: 40, hits: 99, misses: 1, evictions: 0 };
        for (reuse, kept) in [("", KeptPages::default()), ("+agreed", kept)] {
            let hypercalls = if reuse.is_empty() { 0.5 } else { 0.0 };
            let sample = Sample {
                kept,
                hypercalls,
                grant_hypercalls: hypercalls,
                driver: 300.0,
                hypervisor: 100.0 + 100.0 * hypercalls,
            };
            sample.add_to(&mut rows, "udp-header", reuse);
        }
        let benchmark = rows.finish("reuse");
        let row = |name: &str| benchmark.row(name).unwrap();
        assert_eq!(row("udp-header-hit-rate+agreed").stats.median, 0.99);
        assert_eq!(row("udp-header-active-set+agreed").stats.median, 40.0);
        assert!(benchmark.row("udp-header-hit-rate").is_none(), "nothing stays mapped");
        let ratio = row("udp-header-total+agreed").ratio.as_ref().map(|ratio| ratio.value);
        assert_eq!(ratio, Some(400.0 / 450.0));
        assert_eq!(row("udp-header-grant-hypercalls+agreed").stats.median, 0.0);
    }
}
