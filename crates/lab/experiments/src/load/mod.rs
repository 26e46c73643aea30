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

use std::os::fd::AsFd;

use clap::Subcommand;

use crate::error::Result;

pub use client::{ClientArgs, MEASURES};
pub use outcome::Outcome;
pub use server::ServerArgs;

/// The port of a server.
pub const PORT: u16 = 5301;

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

/// What a connection's first byte asks the server for.
mod request {
    /// To read.
    pub(super) const READ: u8 = b'r';
    /// To send.
    pub(super) const SEND: u8 = b's';
}

/// Runs one end.
pub fn run(command: &LoadCommand) -> Result<()> {
    lab::Interrupt::install()?;
    match command {
        LoadCommand::Server(args) => server::run(args),
        LoadCommand::Client(args) => client::run(args),
    }
}

/// Chooses a socket's congestion control, if one is given.
fn set_congestion(socket: impl AsFd, name: Option<&str>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let set = rustix::net::sockopt::set_tcp_congestion(socket, name);
    set.map_err(|errno| failed(&format!("cannot use congestion control {name}"))(errno.into()))
}

/// A message about a failed system call.
fn failed(what: &str) -> impl Fn(std::io::Error) -> crate::error::Error + '_ {
    move |error| crate::error::Error::Failed(format!("{what}: {error}"))
}
