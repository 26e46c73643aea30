//! `pvnet-lab bench queues`: numbers of workers and queues, compared in one run.

use clap::Args;
use lab::{Offloads, Progress};
use report::{Benchmark, human};

use super::rows::{Common, Rows, in_turn};
use crate::error::Result;
use crate::testbed::{CONGESTION, Case, Setup, Testbed, measure, round_trips};

/// Options of this benchmark.
#[derive(Args)]
pub struct QueuesArgs {
    #[command(flatten)]
    pub common: Common,
    /// Seconds of each transfer.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub seconds: u32,
    /// Workers of the daemon and queues of each guest, as WORKERSxQUEUES. The others are compared with the first.
    #[arg(long, value_name = "WxQ", value_delimiter = ',', default_values = ["1x1", "1x2", "2x1", "2x2"], value_parser = variant)]
    pub variants: Vec<Variant>,
    /// TCP's congestion control at both ends.
    #[arg(long, value_name = "NAME", default_value = CONGESTION)]
    pub congestion: String,
}

/// A number of workers, and of queues of each guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variant {
    workers: usize,
    queues: u32,
}

fn variant(text: &str) -> std::result::Result<Variant, String> {
    let parts = text.split_once('x').and_then(|(workers, queues)| {
        Some(Variant { workers: workers.parse().ok()?, queues: queues.parse().ok()? })
    });
    let sound = |variant: &Variant| {
        (1..=64).contains(&variant.workers) && (1..=64).contains(&variant.queues)
    };
    parts
        .filter(sound)
        .ok_or_else(|| format!("{text:?} is not WORKERSxQUEUES, each 1 to 64; for example 2x2"))
}

/// The transfers.
const KEYS: [&str; 2] = ["tcp-1", "tcp-4"];
const ROUND_TRIPS: u32 = 2000;

/// Runs the benchmark.
pub fn run(args: &QueuesArgs) -> Result<Benchmark> {
    lab::preflight(&["iperf3"])?;
    let QueuesArgs { common, variants, congestion, .. } = args;
    let cases: Vec<&Case> = KEYS.into_iter().filter_map(Case::find).collect();
    let steps = variants.len() * (1 + common.rounds as usize);
    let progress = Progress::new(steps, common.quiet);
    let mut testbeds = Vec::new();
    for (number, variant) in variants.iter().enumerate() {
        let Variant { workers, queues } = *variant;
        progress.step(format!("start pvnet with {workers} workers and {queues} queues"));
        let setup = Setup {
            workers: Some(workers),
            queues: Some(queues),
            offloads: Offloads::ALL,
            meter: true,
            ..Setup::default()
        };
        // The first variant's rows have plain names: the others are compared with them.
        let suffix = match number {
            0 => String::new(),
            _ => format!("+{workers} workers, {queues} queues"),
        };
        testbeds.push((suffix, Testbed::start(&setup)?));
    }
    let mut rows = Rows::default();
    for round in 0..common.rounds {
        for (suffix, testbed) in in_turn(round, &testbeds) {
            progress.step(format!("round {} of {}{suffix}", round + 1, common.rounds));
            for case in &cases {
                let transfer = || case.run(testbed, args.seconds, 0, Some(congestion));
                let measured = measure(testbed, transfer)?;
                let name = format!("{}-{congestion}{suffix}", case.key);
                rows.push_with_cpu(&name, "Mb/s", measured.result.mbps, measured.cpu);
                progress.done(&format!("{name}: {} Mb/s", human(measured.result.mbps)));
            }
            if let Some(time) = round_trips(testbed, ROUND_TRIPS)?.percentile(50.0) {
                rows.push(&format!("rtt-p50{suffix}"), "µs", time);
            }
        }
    }
    Ok(rows.finish("queues"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_two_numbers() {
        assert_eq!(variant("4x8"), Ok(Variant { workers: 4, queues: 8 }));
        for text in ["", "2", "2x", "x2", "0x1", "1x0", "65x1", "2x2x2"] {
            assert!(variant(text).is_err(), "{text}");
        }
    }
}
