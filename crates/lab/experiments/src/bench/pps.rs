//! `pvnet-lab bench pps`: frames per second between two generator guests without a kernel stack.
//!
//! The daemon's worker has one CPU, and the generator, which is both guests, another. The benchmark measures the
//! backend, the rings, and the caches between two cores.

mod generator;
pub mod lockstep;
mod pair;

use std::time::Duration;

use clap::Args;
use cpus::{CpuList, bind, bound};
use lab::Progress;
use report::{Benchmark, human};

use super::rows::{Common, Rows};
use crate::error::{Error, Result};

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

/// Two of the CPUs that this thread may use, and all of them to restore.
pub struct Cpus {
    two: [usize; 2],
    all: CpuList,
}

impl Cpus {
    /// Finds two CPUs.
    pub fn take_two() -> Result<Self> {
        let all = bound().map_err(|error| affinity(&error))?;
        let allowed: Vec<_> = all.iter().take(2).collect();
        match allowed[..] {
            [one, two] => Ok(Self { two: [one, two], all }),
            _ => {
                Err(Error::Failed("two CPUs are needed: one for pvnet, one for the guests".into()))
            }
        }
    }

    /// The number of the first CPU (0) or the second (1).
    pub fn number(&self, n: usize) -> usize {
        self.two[n]
    }

    /// Nanoseconds that a cache line takes from one to the other.
    pub fn distance(&self) -> Result<f64> {
        let [one, two] = self.two;
        let distance = cpus::distance(one, two).map_err(|error| affinity(&error))?;
        distance.ok_or_else(|| {
            Error::Failed(format!("CPUs {one} and {two} are too busy for a measurement"))
        })
    }

    /// Binds the calling thread, and the processes that it starts, to one of them.
    pub fn enter(&self, n: usize) -> Result<()> {
        bind(&CpuList::from_iter([self.two[n]])).map_err(|error| affinity(&error))
    }

    /// Lets the calling thread use all CPUs again.
    pub fn leave(&self) -> Result<()> {
        bind(&self.all).map_err(|error| affinity(&error))
    }
}

fn affinity(error: &std::io::Error) -> Error {
    Error::Failed(format!("cannot bind to a CPU: {error}"))
}
