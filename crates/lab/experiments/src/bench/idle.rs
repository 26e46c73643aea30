//! `pvnet-lab bench idle`: what an idle daemon costs.

use std::time::Duration;

use clap::Args;
use lab::{Children, CpuMeter, Interrupt, Progress, Rss};
use report::{Benchmark, human};

use super::rows::{Common, Rows};
use crate::error::Result;
use crate::testbed::{Case, Setup, Testbed};

/// Options of this benchmark.
#[derive(Args)]
pub struct IdleArgs {
    #[command(flatten)]
    pub common: Common,
    /// Seconds of each round.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
}

/// The pause after a transfer, for its last frames.
const PAUSE: Duration = Duration::from_secs(1);

/// Runs the benchmark.
pub fn run(args: &IdleArgs) -> Result<Benchmark> {
    lab::preflight(&["iperf3"])?;
    let rounds = args.common.rounds;
    let progress = Progress::new(2 + rounds as usize, args.common.quiet);
    progress.step("start pvnet");
    let testbed = Testbed::start(&Setup::default())?;
    // Memory is resident only after its first use, so let the daemon work first.
    progress.step("let the guests talk for a second");
    Case::TCP.run(&testbed, 1, 0, None)?;
    Interrupt::sleep(PAUSE)?;
    let mut rows = Rows::default();
    for round in 0..rounds {
        progress.step(format!("round {} of {rounds}", round + 1));
        let idle = Idle::measure(&testbed, Duration::from_secs(args.seconds.into()))?;
        rows.push("idle-cpu", "%", idle.daemon);
        rows.push("idle-cpu-guests", "%", idle.guests);
        rows.push("idle-rss", "MiB", idle.rss);
        progress.done(&format!("{} % of a core", human(idle.daemon)));
    }
    Ok(rows.finish("idle"))
}

/// The CPU time and memory that processes use while nothing is sent.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// The daemon's share of a CPU, in per cent.
    pub daemon: f64,
    /// Both guests' share of a CPU, in per cent.
    pub guests: f64,
    /// The daemon's resident memory, in MiB.
    pub rss: f64,
}

impl Idle {
    /// Measures for `duration`.
    pub fn measure(testbed: &Testbed, duration: Duration) -> Result<Self> {
        let guests = testbed.guests();
        let processes = [&[testbed.pid()], &*guests].concat();
        let meter = CpuMeter::start(&processes, Children::Ignored)?;
        Interrupt::sleep(duration)?;
        let usage = meter.read()?;
        let percent = |pid: u32| 100.0 * usage.cpus(usage.of(pid));
        let rss = Rss::of(testbed.pid())?.bytes as f64 / f64::from(1 << 20);
        let guests = guests.into_iter().map(percent).sum();
        Ok(Self { daemon: percent(testbed.pid()), guests, rss })
    }
}
