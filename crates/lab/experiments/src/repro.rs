//! `pvnet-lab repro`: repeats a paper's experiments.

mod cpus;
mod document;
pub(crate) mod menon06;
mod results;
mod rounds;
mod santos08;
pub(crate) mod server;
pub(crate) mod shares;
mod transfer;
pub(crate) mod willmann07;
mod xenserver7;

use clap::Subcommand;
use lab::Interrupt;

use crate::error::Result;
pub(crate) use menon06::Document as Menon06;
pub(crate) use santos08::Document as Santos08;
pub(crate) use willmann07::Document as Willmann07;
pub(crate) use xenserver7::Document as Xenserver7;

use menon06::Menon06Args;
use santos08::Santos08Args;
use willmann07::Willmann07Args;
use xenserver7::Xenserver7Args;

/// The papers.
#[derive(Subcommand)]
pub enum ReproCommand {
    /// Menon, Cox, Zwaenepoel: Optimizing Network Virtualization in Xen (2006).
    ///
    /// A TCP stream from or to a server that has one CPU, with the client on another: on Linux,
    /// in the driver domain and in a guest, without and with the paper's optimisations.
    Menon06(Menon06Args),
    /// Willmann and others: Concurrent Direct Network Access for Virtual Machine Monitors (2007).
    ///
    /// TCP from or to guests that share one CPU with the driver domain, through it or through contexts of
    /// cards with each protection. Cards and peers have another CPU.
    Willmann07(Willmann07Args),
    /// Santos, Turner, Janakiraman, Pratt: Bridging the Gap between Software and Hardware Techniques for I/O
    /// Virtualization (2008).
    ///
    /// Datagrams to a guest, by each way that the paper tries, with 6 to 64 packets per interrupt: what a packet costs
    /// the guest, the driver domain and the hypervisor.
    Santos08(Santos08Args),
    /// XenServer 7.0 performance improvements part 2: Parallelised networking datapath (2016).
    ///
    /// Eight TCP streams between two guests that have one to eight queues each: throughput, full rings, the cost of a
    /// byte, and how streams spread over queues. A model predicts the rates for which this machine has too few CPUs.
    Xenserver7(Xenserver7Args),
}

/// Runs the command.
pub fn run(command: &ReproCommand) -> Result<()> {
    Interrupt::install()?;
    match command {
        ReproCommand::Menon06(args) => menon06::run(args),
        ReproCommand::Willmann07(args) => willmann07::run(args),
        ReproCommand::Santos08(args) => santos08::run(args),
        ReproCommand::Xenserver7(args) => xenserver7::run(args),
    }
}

/// A configuration of every kind of daemon that the experiments start, as TOML.
#[must_use]
pub fn configurations() -> Vec<String> {
    [menon06::configurations(), willmann07::configurations(), santos08::configurations()].concat()
}
