//! `pvnet bench`: numbers to compare between runs, and with the kernel's own bridge.
//!
//! Rounds are interleaved: each measures everything once, pvnet and the bridge in turn and in
//! alternating order, so that a machine that is slower for a while affects both.

mod common;
mod idle;
mod latency;
mod middleware;
mod pps;
mod rows;
mod show;
mod stream;

use clap::Subcommand;

use crate::error::Result;
use crate::output;
use common::Common;

/// Which benchmark.
#[derive(Subcommand)]
pub enum BenchCommand {
    /// TCP and UDP between two guests, with iperf3, beside the kernel's veth + bridge.
    Stream(stream::StreamArgs),
    /// Frames per second between two generator guests that have no kernel stack.
    Pps(pps::PpsArgs),
    /// Round trips of a datagram between two guests, beside the kernel's veth + bridge.
    Latency(latency::LatencyArgs),
    /// What guard, limit and capture cost, between the same generator guests.
    Middleware(middleware::MiddlewareArgs),
    /// What the daemon uses while two connected guests are idle.
    Idle(idle::IdleArgs),
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
            Self::Middleware(args) => &args.common,
            Self::Idle(args) => &args.common,
        }
    }

    fn measure(&self) -> Result<report::Benchmark> {
        match self {
            Self::Stream(args) => stream::run(args),
            Self::Pps(args) => pps::run(args),
            Self::Latency(args) => latency::run(args),
            Self::Middleware(args) => middleware::run(args),
            Self::Idle(args) => idle::run(args),
        }
    }
}
