//! `pvnet load`: the benchmark program of Willmann et al. 2007, §5.1.
//!
//! ```text
//!  client: threads ─┬─ connections ─┬─ server: threads
//!                   │  balanced     │  read or write what comes
//!                   └───────────────┴─ another server
//! ```
//!
//! Each thread waits for events of its connections and has one buffer for all of them. The client keeps all
//! connections at the same number of bytes, whichever end sends.

mod balance;
mod client;
mod events;
mod outcome;
mod pace;
mod server;
mod socket;

use clap::Subcommand;

use crate::error::Result;

pub use client::{ClientArgs, MEASURES};
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
    ///   pvnet load server &                                  in a guest, or anywhere
    ///   pvnet load client 10.77.0.1 --seconds 5              send to it
    ///   pvnet load client 10.77.0.1 10.77.0.2 --receive      two servers send
    #[command(verbatim_doc_comment)]
    Client(ClientArgs),
}

/// Runs one end.
pub fn run(command: &LoadCommand) -> Result<()> {
    lab::Interrupt::install()?;
    match command {
        LoadCommand::Server(args) => server::run(args),
        LoadCommand::Client(args) => client::run(args),
    }
}
