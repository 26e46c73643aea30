//! `pvnet nic`: a card with a protected context for every guest, as a process.

mod process;
mod wire;

use std::path::Path;

use nic_session::card::{Connection, JoinError};
use process::Process;
use wire::TapWire;

use crate::program::{stop_signal, text};
use crate::start;

/// Runs the card `name` of the daemon that listens for cards at `socket`, until a signal or the daemon's
/// end. Prints a line when it is up.
pub fn run(name: &str, socket: &Path) -> Result<(), String> {
    // Before all else, so that a signal leaves nothing behind.
    let signals = stop_signal()?;
    let is_early = |error: &JoinError| matches!(error, JoinError::NoDaemon { source, .. } if start::is_early(source.kind()));
    let joined = start::retry(&signals, || Connection::join(socket, name), is_early);
    let Some((connection, settings)) = joined.map_err(text)? else { return Ok(()) };
    let wire = TapWire::open(name, &settings.wire)?;
    let mut process = Process::start(connection, &settings, wire, &signals).map_err(text)?;
    println!("card {name} is up: {} contexts, wire {}", settings.contexts, settings.wire.tap);
    process.run().map_err(text)
}
