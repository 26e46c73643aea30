//! `pvnet-lab`: shows pvnet, measures it and attacks it.

#![forbid(unsafe_code)]

mod schema;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use experiments::bench::{self, BenchCommand};
use experiments::demo::{self, DemoArgs};
use experiments::load::{self, LoadCommand};
use experiments::repro::{self, ReproCommand};
use report::SchemaArgs;

/// Shows, measures and attacks pvnet: the program `pvnet` beside this one, or else in the PATH.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show in a minute what pvnet does: guests talk, a paper's mechanisms gain a factor, a kill -9 costs a pause, a hostile guest
    /// gets nothing, and what isolation costs.
    ///
    /// Each step is a sentence and a figure; a page with plots has them all. Starts daemons and guests of its own, beside those that run.
    /// Needs root (or `pvnet rootless`). Removes everything that it created, even after an error or Ctrl-C.
    Demo(DemoArgs),
    /// Measure pvnet, and for comparison the kernel's veth + bridge.
    ///
    /// Starts separate daemons and guests, and removes them afterwards. Needs root and an idle machine.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Load TCP connections evenly, as the benchmark program of a paper does (Willmann et al. 2007).
    ///
    /// Works between any two network stacks: guests, namespaces, hosts.
    #[command(subcommand)]
    Load(LoadCommand),
    /// Repeat a paper's experiments, and compare the results with the paper's.
    ///
    /// Starts separate daemons and guests, and removes them afterwards. Needs root and an idle machine.
    #[command(subcommand)]
    Repro(ReproCommand),
    /// Boot a whole Xen host in QEMU, under software emulation: the hypervisor, dom0 and paravirtual guests.
    ///
    /// Needs no root and no virtualisation. The first run makes images from Debian's packages.
    #[cfg(feature = "hosts")]
    #[command(subcommand)]
    Xen(xenlab::command::Command),
    /// Test pvnet with virtual machines, which QEMU boots under software emulation and connects by vhost-user.
    ///
    /// Does what operators do: traffic between all kinds of ports, reboots, hot-plug, restarts and crashes of both sides.
    ///
    /// Needs root, for namespaces, and tshark; no hardware virtualisation. The first run makes images from Debian's packages.
    #[cfg(feature = "hosts")]
    Qemu(qemulab::command::QemuArgs),
    /// Test pvnet's guests as ports of OVN's logical switches, on hosts that are network namespaces.
    ///
    /// Does what operators do: switches, routes, access rules, DHCP, NAT, a port that moves to the other host, a pvnet that is killed.
    /// On the first two hosts each guest has a device in the integration bridge. The third has a vhost-user port of Open vSwitch with
    /// DPDK instead. The fourth has a virtual machine in QEMU and a card.
    ///
    /// Needs root, for namespaces. The first run fetches OVN and Open vSwitch from Debian; nothing is installed.
    #[cfg(feature = "hosts")]
    Ovn(ovnlab::command::OvnArgs),
    /// Print what a command's JSON looks like, as a JSON Schema (2020-12); without a name, list all.
    Schema(SchemaArgs),
    /// Write man pages, completions of bash, zsh and fish, and the schemas of JSON documents into a folder.
    #[command(hide = true)]
    Manual {
        /// The folder; it is created if missing.
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Demo(args) => experiment(demo::run(&args)),
        Command::Bench(command) => experiment(bench::run(&command)),
        Command::Load(command) => experiment(load::run(&command)),
        Command::Repro(command) => experiment(repro::run(&command)),
        #[cfg(feature = "hosts")]
        Command::Xen(command) => lab(xenlab::command::run(&command)),
        #[cfg(feature = "hosts")]
        Command::Qemu(args) => lab(qemulab::command::run(&args)),
        #[cfg(feature = "hosts")]
        Command::Ovn(args) => lab(ovnlab::command::run(&args)),
        Command::Schema(args) => print(args.text(schema::kinds())),
        Command::Manual { folder } => {
            let written = report::write_manual(Cli::command(), &folder, schema::kinds());
            print(written.map(|()| String::new()).map_err(|error| error.to_string()))
        }
    }
}

fn print(text: Result<String, String>) -> ExitCode {
    let failed = |error: std::io::Error| format!("standard output: {error}");
    let printed =
        text.and_then(|text| std::io::stdout().write_all(text.as_bytes()).map_err(failed));
    lab::exit_code("pvnet-lab", printed.map(|()| ExitCode::SUCCESS), |_| false)
}

/// The exit code of an experiment. Everything that it created is removed by now.
fn experiment(result: experiments::Result<()>) -> ExitCode {
    let result = result.map(|()| ExitCode::SUCCESS);
    lab::exit_code("pvnet-lab", result, experiments::Error::is_interrupt)
}

/// As `experiment`, for the labs with whole hosts.
#[cfg(feature = "hosts")]
fn lab(result: xenlab::Result<ExitCode>) -> ExitCode {
    lab::exit_code("pvnet-lab", result, xenlab::Error::is_interrupt)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::Cli;

    #[test]
    fn the_commands_of_all_documents_are_known() {
        lab::documents::check_calls("pvnet-lab", 11, |words| Cli::try_parse_from(words).err());
    }
}
