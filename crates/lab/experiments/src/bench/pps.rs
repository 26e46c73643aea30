//! `pvnet-lab bench pps`: frames per second between two generator guests without a kernel stack.
//!
//! One CPU has the daemon's worker, another the generator, which is both guests. It measures the
//! backend, the rings, and the caches between two cores.

mod cpus;
mod generator;
pub mod lockstep;
mod pair;

use std::time::Duration;

use clap::Args;
use lab::Progress;
use report::{Benchmark, human};

use super::common::Common;
use super::rows::Rows;
use crate::error::Result;

pub use cpus::Cpus;
pub use pair::{Extra, Pair};

/// Options of this benchmark.
#[derive(Args)]
pub struct PpsArgs {
    #[command(flatten)]
    pub common: Common,
    /// Seconds of each measurement.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: u64,
    /// Frame lengths in bytes, without the checksum that a wire would add.
    #[arg(long, value_name = "LEN,…", value_delimiter = ',', default_values_t = [64, 1514], value_parser = clap::value_parser!(u16).range(60..=4096))]
    pub sizes: Vec<u16>,
    /// Keep none of the guests' pages mapped in the daemon: each frame takes grant operations.
    #[arg(long)]
    pub no_persistent_grants: bool,
    #[command(flatten)]
    pub lockstep: lockstep::LockstepArgs,
}

/// Runs the benchmark.
pub fn run(args: &PpsArgs) -> Result<Benchmark> {
    if args.lockstep.lockstep {
        return lockstep::run(&args.lockstep, args.common.quiet);
    }
    let cpus = Cpus::take_two()?;
    let steps = 1 + args.common.rounds as usize * args.sizes.len();
    let progress = Progress::new(steps, args.common.quiet);
    progress.step("start pvnet on one CPU and two generator guests on another");
    let persistent_grants = !args.no_persistent_grants;
    let config = netfront::Config { persistent_grants, ..netfront::Config::default() };
    let mut pair = Pair::start(&cpus, Extra::default(), &config)?;
    let mut rows = Rows::default();
    for round in 0..args.common.rounds {
        for len in &args.sizes {
            progress.step(format!("round {} of {}: {len} bytes", round + 1, args.common.rounds));
            let mpps = pair.sample(*len, Duration::from_secs(args.seconds))?;
            rows.push(&format!("gen-{len}/pvnet"), "Mpps", mpps);
            let calls = pair.hypercalls(*len)?;
            rows.push(&format!("hypercalls-{len}/pvnet"), "per frame", calls);
            progress.done(&format!("{} Mpps, {} hypercalls per frame", human(mpps), human(calls)));
        }
    }
    cpus.leave()?;
    Ok(rows.finish("pps"))
}
