//! `ovnlab`: pvnet's guests as ports of OVN's logical switches.

#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use lab::{Interrupt, Progress};
use ovnlab::{Error, Programs, Result, STEPS, run};
use qemulab::pvnet;
use xenlab::{Suite, default_cache, scenario};

/// Starts OVN with two hosts in network namespaces, each with a pvnet whose guests have a device in the integration bridge, and does
/// with them what operators do: switches, routes, access rules, a port that moves to the other host, a pvnet that is killed. A third
/// host has a vhost-user port of an Open vSwitch with DPDK in place of devices.
///
/// Needs root, for namespaces. The first run fetches OVN and Open vSwitch from Debian; nothing is installed.
#[derive(Parser)]
#[command(version)]
struct Cli {
    /// The program pvnet [default: the one beside this program].
    #[arg(long, value_name = "FILE")]
    pvnet: Option<PathBuf>,
    /// Write the results to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where the packages are kept [default: xenlab in cargo's target folder].
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Show no progress on standard error.
    #[arg(long, short)]
    quiet: bool,
}

fn main() -> ExitCode {
    lab::exit_code("ovnlab", start(&Cli::parse()), Error::is_interrupt)
}

fn start(cli: &Cli) -> Result<ExitCode> {
    Interrupt::install()?;
    lab::preflight(&["ethtool", "ping", "nstat", "unshare"])?;
    let pvnet = pvnet(cli.pvnet.as_deref())?;
    let cache = cli.cache.clone().unwrap_or_else(default_cache);
    let cache =
        std::path::absolute(&cache).map_err(|cause| Error::Path { path: cache.clone(), cause })?;
    // Programs of another release would need its C library.
    let programs = Programs::prepare(Suite::of_this_machine(), &cache, cli.quiet)?;
    let progress = Progress::new(STEPS, cli.quiet);
    let steps = run(&programs, &pvnet, &progress)?;
    progress.finish();
    let passed = scenario::report("ovn", &steps, cli.json.as_deref())?;
    Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
