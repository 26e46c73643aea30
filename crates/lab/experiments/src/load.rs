//! `pvnet-lab load`: the benchmark program of Willmann et al. 2007, §5.1.
//!
//! ```text
//!  client: threads ─┬─ connections ─┬─ server: threads
//!                   │  balanced     │  read or write what comes
//!                   └───────────────┴─ another server
//! ```
//!
//! Each thread waits for events of its connections and has one buffer for all of them. The client keeps all
//! connections at the same number of bytes, whichever end sends.
//!
//! A source sends datagrams in bursts to a sink, for experiments on coalescing.

mod balance;
mod client;
mod datagrams;
mod events;
mod outcome;
mod pace;
mod result;
mod server;
mod socket;

use clap::Subcommand;

use crate::error::Result;

pub use client::{ClientArgs, MEASURES};
pub use datagrams::{Arrived, LISTENS, Sent, SinkArgs, SourceArgs};
pub use outcome::Outcome;
pub use server::ServerArgs;
pub use socket::PORT;

/// Which end.
#[derive(Subcommand)]
pub enum LoadCommand {
    /// Serve clients until SIGINT or SIGTERM: read what they send, or send to them.
    Server(ServerArgs),
    /// Load one or more servers over many TCP connections, and print what each connection carried.
    ///
    ///   pvnet-lab load server &                                  in a guest, or anywhere
    ///   pvnet-lab load client 10.77.0.1 --seconds 5              send to it
    ///   pvnet-lab load client 10.77.0.1 10.77.0.2 --receive      two servers send
    #[command(verbatim_doc_comment)]
    Client(ClientArgs),
    /// Send datagrams in bursts with pauses of equal length, and print how many were sent in which time.
    ///
    ///   pvnet-lab load sink &                                    in a guest, or anywhere
    ///   pvnet-lab load source 10.77.0.1 --burst 16 --pps 20000   send to it
    #[command(verbatim_doc_comment)]
    Source(SourceArgs),
    /// Receive datagrams of a source until SIGINT or SIGTERM, and print how many arrived.
    Sink(SinkArgs),
}

/// Runs one end.
pub fn run(command: &LoadCommand) -> Result<()> {
    lab::Interrupt::install()?;
    match command {
        LoadCommand::Server(args) => server::run(args),
        LoadCommand::Client(args) => client::run(args),
        LoadCommand::Source(args) => datagrams::source(args),
        LoadCommand::Sink(args) => datagrams::sink(args),
    }
}
