//! `pvscope`: where a packet's cycles go.

#![forbid(unsafe_code)]

mod bench;
mod diff;
mod error;
mod line;
mod mark;
mod names;
mod own;
mod packet;
mod programs;
mod report;
mod repro;
mod run;
mod summary;
mod tables;
mod workload;

use std::process::ExitCode;

use ::report::Table;
use clap::{Parser, Subcommand};
use error::{Error, Result};
use lab::Interrupt;
use workload::Workload;

/// Runs a whole machine (Xen, dom0, guests) in QEMU, and shows what every function of it costs in
/// instructions, cache misses and TLB misses, for every packet.
///
/// Needs no root, no virtualisation and no performance counters: caches and TLBs are models, and a second
/// run counts the same, bit for bit.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Boot a machine, record a part of what it does, and write what was found to a file.
    Run(Box<run::RunArgs>),
    /// Show what was found, as tables and as a page with plots.
    Report(report::ReportArgs),
    /// Measure what the plugin costs, beside QEMU without it.
    Bench(bench::BenchArgs),
    /// Show the life of one packet: every function that worked for it, one after the other.
    Packet(packet::PacketArgs),
    /// Compare two recordings, frame by frame.
    Diff(diff::DiffArgs),
    /// Set a paper's figures beside what today's system shows.
    Repro(repro::ReproArgs),
    /// Write the programs that a guest of your own marks with, and the script that tells what names need.
    Marks(mark::MarksArgs),
    /// Show what can be profiled.
    List,
}

fn main() -> ExitCode {
    let outcome = execute(&Cli::parse().command).map(|()| ExitCode::SUCCESS);
    lab::exit_code("pvscope", outcome, Error::is_interrupt)
}

fn execute(command: &Command) -> Result<()> {
    Interrupt::install()?;
    match command {
        Command::Run(args) => run::run(args),
        Command::Report(args) => report::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Packet(args) => packet::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Repro(args) => repro::run(args),
        Command::Marks(args) => mark::run(args),
        Command::List => list(),
    }
}

fn list() -> Result<()> {
    let table = Table::new().left("workload").left("what it is");
    let ready = Workload::ALL.iter().map(|workload| (workload.name, workload.about));
    let table = ready.chain(own::FORMS).fold(table, |mut table, (name, about)| {
        table.row([name.to_owned(), about.to_owned()]);
        table
    });
    report::show(&table.render(false))
}
