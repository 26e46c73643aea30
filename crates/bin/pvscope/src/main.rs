//! `pvscope`: where a packet's cycles go.

#![forbid(unsafe_code)]

mod bench;
mod calibrate;
mod call_graph;
mod calls;
mod check;
mod command_line;
mod custom;
mod diff;
mod entries;
mod error;
mod export;
mod filter;
mod guest_report;
mod image_symbols;
mod link;
mod list;
mod mark;
mod model_args;
mod names;
mod packet;
mod probes;
mod programs;
mod provenance;
mod record;
mod report;
mod report_data;
mod repro;
mod run;
mod schema;
mod snapshot;
mod source_lines;
mod summary;
mod train;
mod watch;
mod workload;

use std::path::PathBuf;
use std::process::ExitCode;

use ::report::SchemaArgs;
use clap::{CommandFactory, Parser, Subcommand};
use error::{Error, Result};
use lab::Interrupt;

/// Runs a whole machine (Xen, dom0, guests) in QEMU, and shows what every function of it costs in
/// instructions, cache misses and TLB misses, for every packet.
///
/// Needs no root, no virtualisation and no performance counters: caches and TLBs are models, and a second run gives the same
/// counts, bit for bit.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Boot a machine, record a part of its execution, and write the recording to a file.
    Run(Box<run::RunArgs>),
    /// Show a recording as tables and as a page with plots.
    Report(report::ReportArgs),
    /// Measure how much the plugin slows QEMU down.
    Bench(bench::BenchArgs),
    /// Show the path of one packet: every function that worked for it, in order.
    Packet(packet::PacketArgs),
    /// Show the call graph: inclusive costs, callers and callees.
    Calls(calls::CallsArgs),
    /// Write a recording in the format of another tool: KCachegrind, flame graphs, the Firefox Profiler.
    Export(export::ExportArgs),
    /// Compare two recordings per frame.
    Diff(diff::DiffArgs),
    /// Record the windows of `pvnet-lab bench pps --lockstep` and compare their counts with a baseline; a difference gives exit status 3.
    Check(check::CheckArgs),
    /// Compare model cycles with those of this host, by small programs.
    Calibrate(calibrate::CalibrateArgs),
    /// Compare a paper's figures with today's system, or pvnet with the kernel's netback.
    Repro(repro::ReproArgs),
    /// Run pvnet, compiled to count its branches, under ready-made workloads, and write the counts for the compiler: `make profile`.
    Train(train::TrainArgs),
    /// Write the programs that mark a recording in your own guest, and the script that prints its report.
    Marks(mark::MarksArgs),
    /// Show or remove the machines that are saved at their first marks.
    Snapshots(snapshot::SnapshotsArgs),
    /// Show what can be profiled.
    List(list::ListArgs),
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
    let outcome = execute(&Cli::parse().command);
    lab::exit_code("pvscope", outcome, Error::is_interrupt)
}

fn execute(command: &Command) -> Result<ExitCode> {
    Interrupt::install()?;
    let done = match command {
        Command::Check(args) => return check::run(args),
        Command::Repro(args) => return repro::run(args),
        Command::Run(args) => run::run(args),
        Command::Report(args) => report::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Packet(args) => packet::run(args),
        Command::Calls(args) => calls::run(args),
        Command::Export(args) => export::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Calibrate(args) => calibrate::run(args),
        Command::Train(args) => train::run(args),
        Command::Marks(args) => mark::run(args),
        Command::Snapshots(args) => snapshot::run(args),
        Command::List(args) => list::run(args),
        Command::Schema(args) => schema(args),
        Command::Manual { folder } => {
            ::report::write_manual(Cli::command(), folder, schema::KINDS.into_iter())
                .map_err(Error::path(folder))
        }
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn schema(args: &SchemaArgs) -> Result<()> {
    report::show(&args.text(schema::KINDS.into_iter()).map_err(Error::Usage)?)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::Cli;

    #[test]
    fn the_commands_of_all_documents_are_known() {
        lab::documents::check_calls("pvscope", 11, |words| Cli::try_parse_from(words).err());
    }
}
