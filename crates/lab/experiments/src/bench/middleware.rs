//! `pvnet-lab bench middleware`: what the wrappers around a port cost, between two generator guests.
//!
//! Each setting has a daemon, which sleeps while another one is measured. The rows of a frame length are compared
//! with the first, whose ports have no wrapper.

use std::time::Duration;

use clap::Args;
use lab::Progress;
use report::{Benchmark, human};

use super::pps::{Cpus, Extra, Pair};
use super::rows::{Common, Rows};
use crate::error::Result;

/// Options of this benchmark.
#[derive(Args)]
pub struct MiddlewareArgs {
    #[command(flatten)]
    pub common: Common,
    /// Seconds of each measurement.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Frame lengths in bytes, without the checksum that a wire would add.
    #[arg(long, value_name = "LEN,…", value_delimiter = ',', default_values_t = [64, 1514], value_parser = clap::value_parser!(u16).range(60..=4096))]
    pub sizes: Vec<u16>,
}

/// No wrapper.
const OFF: Extra<'static> = Extra { daemon: "capture = false", guest: GUARD_OFF };
const GUARD_OFF: &str = "guard = \"off\"";
/// A limit that is never reached.
const LIMIT: &str = "limit = { ingress = { mbps = 1000000 }, egress = { mbps = 1000000 } }";

/// Slices per second of a measurement. The pairs take turns slice by slice, so a machine whose speed changes affects
/// all of them.
const SLICES_PER_SECOND: u32 = 20;

/// Runs the benchmark.
pub fn run(args: &MiddlewareArgs) -> Result<Benchmark> {
    let guard_off_and_limit = format!("{GUARD_OFF}\n{LIMIT}");
    let settings = [
        ("", OFF),
        ("+may-capture", Extra { daemon: "", ..OFF }),
        ("+guard", Extra { guest: "", ..OFF }),
        ("+limit", Extra { guest: &guard_off_and_limit, ..OFF }),
        ("+all", Extra { daemon: "", guest: LIMIT }),
    ];
    let cpus = Cpus::take_two()?;
    let rounds = args.common.rounds;
    let progress = Progress::new(1 + rounds as usize * args.sizes.len(), args.common.quiet);
    progress.step(format!("start {} daemons, each with two generator guests", settings.len()));
    let config = netfront::Config { persistent_grants: true, ..netfront::Config::default() };
    let mut pairs = Vec::new();
    for (name, extra) in settings {
        pairs.push((name, Pair::start(&cpus, extra, &config)?));
    }
    let mut rows = Rows::default();
    for round in 0..rounds {
        for len in &args.sizes {
            progress.step(format!("round {} of {rounds}: {len} bytes", round + 1));
            let mpps = in_slices(&mut pairs, *len, args.seconds)?;
            let mut seen = Vec::new();
            for ((name, _), mpps) in pairs.iter().zip(mpps) {
                let row = format!("gen-{len}{name}");
                rows.push(&row, "Mpps", mpps);
                seen.push(format!("{row} {}", human(mpps)));
            }
            progress.done(&seen.join(", "));
        }
    }
    cpus.leave()?;
    Ok(rows.finish("middleware"))
}

/// Millions of frames per second of each pair, in slices that alternate.
fn in_slices(pairs: &mut [(&str, Pair)], len: u16, seconds: u32) -> Result<Vec<f64>> {
    let slices = seconds * SLICES_PER_SECOND;
    let mut sums = vec![0.0; pairs.len()];
    for _ in 0..slices {
        for (sum, (_, pair)) in sums.iter_mut().zip(&mut *pairs) {
            *sum += pair.slice(len, Duration::from_secs(1) / SLICES_PER_SECOND)?;
        }
    }
    Ok(sums.into_iter().map(|sum| sum / f64::from(slices)).collect())
}
