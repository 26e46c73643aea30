//! `pvnet-lab bench latency`: the round-trip time of a datagram.

use clap::Args;
use lab::{Children, CpuMeter, Offloads, Progress, VethBridge};
use report::{Benchmark, human};

use super::rows::{Common, Rows, Settings, in_turn};
use crate::error::Result;
use crate::testbed::{Subject, Testbed, round_trips};

/// Options of this benchmark.
#[derive(Args)]
pub struct LatencyArgs {
    #[command(flatten)]
    pub common: Common,
    /// Round trips in each round, one after the other without a pause.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..))]
    pub count: u32,
    #[command(flatten)]
    pub settings: Settings,
}

/// The percentiles that become rows.
const PERCENTILES: [(&str, f64); 2] = [("rtt-p50", 50.0), ("rtt-p99", 99.0)];

/// Runs the benchmark.
pub fn run(args: &LatencyArgs) -> Result<Benchmark> {
    lab::preflight(&[])?;
    let rounds = args.common.rounds;
    let progress = Progress::new(1 + 2 * rounds as usize, args.common.quiet);
    progress.step("start pvnet and veth + bridge");
    let pvnet = Testbed::start(&args.settings.setup())?;
    let bridge = VethBridge::create("pvnet-veth", Offloads::ALL)?;
    let subjects: [&dyn Subject; 2] = [&pvnet, &bridge];
    let mut rows = Rows::default();
    for round in 0..rounds {
        for subject in in_turn(round, subjects) {
            progress.step(format!("round {} of {rounds}: {}", round + 1, subject.name()));
            let meter = CpuMeter::start(&[], Children::Ignored)?;
            let times = round_trips(subject, args.count)?;
            let busy = meter.read()?.busy.as_secs_f64() * 1e6 / f64::from(args.count);
            rows.push(&format!("cpu-per-trip/{}", subject.name()), "µs of CPU", busy);
            for (name, percent) in PERCENTILES {
                if let Some(time) = times.percentile(percent) {
                    rows.push(&format!("{name}/{}", subject.name()), "µs", time);
                }
            }
            progress.done(&format!("median {} µs", human(times.percentile(50.0).unwrap_or(0.0))));
        }
    }
    Ok(rows.finish("latency"))
}
