//! `pvnet-lab ovn`: pvnet's guests as ports of OVN's logical switches.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::{Error, Form, Programs, Result, STEPS, cost, run as run_steps};
use clap::{Args, Subcommand};
use lab::{Interrupt, Progress};
use qemulab::pvnet;
use xenlab::{Suite, default_cache, scenario};

/// The arguments of `pvnet-lab ovn`.
#[derive(Args)]
pub struct OvnArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// The program pvnet [default: the one beside this program].
    #[arg(long, value_name = "FILE", global = true)]
    pvnet: Option<PathBuf>,
    /// Write the results to this file, as JSON.
    #[arg(long, value_name = "FILE", global = true)]
    json: Option<PathBuf>,
    /// Where packages are kept [default: xenlab in cargo's target folder].
    #[arg(long, value_name = "DIR", global = true)]
    cache: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short, global = true)]
    quiet: bool,
}

#[derive(Subcommand)]
enum What {
    /// Measure a TCP stream between guests, through OVN and within one pvnet's switch: throughput, and processor time per gigabyte of
    /// the machine, of pvnet, and of Open vSwitch.
    ///
    /// Other load distorts the throughput and the machine's processor time.
    Cost {
        /// Number of rounds; results are medians, with minimum and maximum.
        #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Duration of each measurement, in seconds.
        #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=3600))]
        seconds: u32,
    },
}

/// Runs the steps, or measures.
///
/// # Errors
/// Something is missing, or a host fails.
pub fn run(args: &OvnArgs) -> Result<ExitCode> {
    Interrupt::install()?;
    lab::preflight(&["ethtool", "ping", "nstat", "unshare"])?;
    let pvnet = pvnet(args.pvnet.as_deref())?;
    let cache = args.cache.clone().unwrap_or_else(default_cache);
    let cache =
        std::path::absolute(&cache).map_err(|cause| Error::Path { path: cache.clone(), cause })?;
    // Programs of another release would need its C library.
    let suite = Suite::of_this_machine();
    let programs = Programs::prepare(pvnet, suite, &cache, Form::Whole, args.quiet)?;
    let json = args.json.as_deref();
    if let Some(What::Cost { rounds, seconds }) = args.what {
        lab::preflight(&["iperf3"])?;
        let progress = Progress::new(cost::steps(rounds), args.quiet);
        let benchmark = cost::measure(&programs, rounds, seconds, &progress)?;
        progress.finish();
        cost::show(&benchmark, json)?;
        return Ok(ExitCode::SUCCESS);
    }
    let programs = programs.with_machines(suite, &cache, args.quiet)?;
    let progress = Progress::new(STEPS, args.quiet);
    let steps = run_steps(&programs, Form::Whole, &progress)?;
    progress.finish();
    let passed = scenario::report("ovn", &steps, json)?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
