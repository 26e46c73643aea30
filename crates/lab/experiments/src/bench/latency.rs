//! `pvnet-lab bench latency`: the round-trip times of datagrams and of lone echoes.

use std::time::Duration;

use clap::Args;
use lab::{Children, CpuMeter, Offloads, Progress, VethBridge, ping};
use report::{Benchmark, human};

use super::rows::{Common, Rows, Settings, in_turn};
use crate::error::Result;
use crate::testbed::{SameShape, Subject, Testbed, round_trips};

/// Options of this benchmark.
#[derive(Args)]
pub struct LatencyArgs {
    #[command(flatten)]
    pub common: Common,
    /// Round trips in each round, one after the other without a pause.
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..))]
    pub count: u32,
    /// Echoes in each round, one every 200 ms: all sleep between them.
    #[arg(long, value_name = "N", default_value_t = 15)]
    pub echoes: u32,
    /// Also measure the least program with pvnet's threads and copies, which never polls.
    #[arg(long)]
    pub same_shape: bool,
    #[command(flatten)]
    pub settings: Settings,
}

/// The percentiles that become rows.
const PERCENTILES: [(&str, f64); 2] = [("rtt-p50", 50.0), ("rtt-p99", 99.0)];

/// The pause between two echoes.
const PAUSE: Duration = Duration::from_millis(200);

/// Runs the benchmark.
pub fn run(args: &LatencyArgs) -> Result<Benchmark> {
    lab::preflight(if args.echoes > 0 { &["ping"] } else { &[] })?;
    let rounds = args.common.rounds;
    let subjects = 2 + usize::from(args.same_shape);
    let progress = Progress::new(1 + subjects * rounds as usize, args.common.quiet);
    progress.step("start pvnet and veth + bridge");
    let pvnet = Testbed::start(&args.settings.setup())?;
    let bridge = VethBridge::create("pvnet-veth", Offloads::ALL)?;
    let same_shape = args.same_shape.then(|| SameShape::create("pvnet-shape")).transpose()?;
    let mut subjects: Vec<&dyn Subject> = vec![&pvnet, &bridge];
    subjects.extend(same_shape.iter().map(|shape| shape as &dyn Subject));
    let mut rows = Rows::default();
    for round in 0..rounds {
        for subject in in_turn(round, subjects.iter().copied()) {
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
            if args.echoes > 0 {
                let (left, right) = (subject.left(), subject.right());
                let echoes = ping(&left.namespace, right.ipv4, args.echoes, PAUSE)?;
                if let Some(rtt) = echoes.rtt {
                    rows.push(
                        &format!("echo/{}", subject.name()),
                        "µs",
                        rtt.avg.as_secs_f64() * 1e6,
                    );
                }
            }
            progress.done(&format!("median {} µs", human(times.percentile(50.0).unwrap_or(0.0))));
        }
    }
    Ok(rows.finish("latency"))
}
