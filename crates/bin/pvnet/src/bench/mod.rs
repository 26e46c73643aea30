//! `pvnet bench`: numbers to compare, between runs and with the kernel's own bridge.
//!
//! Rounds are interleaved: each measures everything once, pvnet and the bridge in turn and in
//! an order that alternates, so that a machine that is slower for a while is so for both.

mod idle;
mod latency;
mod pps;
mod rows;
mod show;
mod stream;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::output;
use crate::testbed::Result;

pub use latency::round_trips;
pub use rows::Rows;

/// Which benchmark.
#[derive(Subcommand)]
pub enum BenchCommand {
    /// TCP and UDP between two guests, with iperf3, beside the kernel's veth + bridge.
    Stream(stream::StreamArgs),
    /// Frames a second between two generator guests that have no kernel stack.
    Pps(pps::PpsArgs),
    /// Round trips of a datagram between two guests, beside the kernel's veth + bridge.
    Latency(latency::LatencyArgs),
    /// What the daemon uses while two connected guests have nothing to say.
    Idle(idle::IdleArgs),
}

/// What all benchmarks can be told.
#[derive(Args)]
pub struct Common {
    /// How often everything is measured; rows are medians, with minimum and maximum.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Where to write the rows for programs.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Where to write the rows as a page with plots.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Runs a benchmark and shows and writes its result.
pub fn run(command: &BenchCommand) -> Result<()> {
    lab::Interrupt::install()?;
    let common = command.common();
    for file in common.json.iter().chain(&common.html) {
        output::prepare(file)?;
    }
    let benchmark = command.measure()?;
    show::print(&benchmark)?;
    if let Some(file) = &common.json {
        benchmark.write(file)?;
    }
    if let Some(file) = &common.html {
        show::page(&benchmark).write(file)?;
    }
    Ok(())
}

impl BenchCommand {
    fn common(&self) -> &Common {
        match self {
            Self::Stream(args) => &args.common,
            Self::Pps(args) => &args.common,
            Self::Latency(args) => &args.common,
            Self::Idle(args) => &args.common,
        }
    }

    fn measure(&self) -> Result<report::Benchmark> {
        match self {
            Self::Stream(args) => stream::run(args),
            Self::Pps(args) => pps::run(args),
            Self::Latency(args) => latency::run(args),
            Self::Idle(args) => idle::run(args),
        }
    }
}

/// Both of a pair, the first first in even rounds and last in odd ones.
fn in_turn<T>(round: u32, pair: [T; 2]) -> [T; 2] {
    let [first, second] = pair;
    if round.is_multiple_of(2) { [first, second] } else { [second, first] }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_order_alternates() {
        let orders = [0, 1, 2].map(|round| super::in_turn(round, ["a", "b"]).concat());
        assert_eq!(orders, ["ab", "ba", "ab"]);
    }
}
