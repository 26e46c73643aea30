//! `pvnet-lab bench idle`: what an idle daemon costs.

use std::time::Duration;

use clap::Args;
use lab::{Children, CpuMeter, Interrupt, Progress, Rss};
use report::{Benchmark, human};

use super::common::Common;
use super::rows::Rows;
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
    // Memory is resident only after its first use, so the daemon works first.
    progress.step("let the guests talk for a second");
    if let Some(case) = Case::find("tcp-1") {
        case.run(&testbed, 1, 0, None)?;
    }
    Interrupt::sleep(PAUSE)?;
    let mut rows = Rows::default();
    for round in 0..rounds {
        progress.step(format!("round {} of {rounds}", round + 1));
        let guests = testbed.guests();
        let processes = [&[testbed.pid()], &*guests].concat();
        let meter = CpuMeter::start(&processes, Children::Ignored)?;
        Interrupt::sleep(Duration::from_secs(args.seconds.into()))?;
        let usage = meter.read()?;
        let percent = 100.0 * usage.cpus(usage.of(testbed.pid()));
        rows.push("idle-cpu", "%", percent);
        let of_guests: f64 = guests.iter().map(|pid| 100.0 * usage.cpus(usage.of(*pid))).sum();
        rows.push("idle-cpu-guests", "%", of_guests);
        let rss = Rss::of(testbed.pid())?;
        rows.push("idle-rss", "MiB", rss.bytes as f64 / f64::from(1 << 20));
        progress.done(&format!("{} % of a core", human(percent)));
    }
    Ok(rows.finish("idle"))
}
