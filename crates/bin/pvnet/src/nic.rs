//! `pvnet nic`: a card with a protected context for every guest, as a process.

mod process;
mod wire;

use std::path::Path;

use nic_session::card::Connection;

use crate::error::text;
use crate::signals::stop_signal;
use process::Process;
use wire::TapWire;

/// Runs the card `name` of the daemon that listens for cards at `socket`, until a signal or the daemon's
/// end. Prints a line when it is up.
pub fn run(name: &str, socket: &Path) -> Result<(), String> {
    // Before all else, so that a signal leaves nothing behind.
    let signals = stop_signal()?;
    let (connection, settings) = Connection::join(socket, name).map_err(text)?;
    let wire = TapWire::open(name, &settings.wire)?;
    let mut process = Process::start(connection, &settings, wire, &signals).map_err(text)?;
    println!("card {name} is up: {} contexts, wire {}", settings.contexts, settings.wire.tap);
    process.run().map_err(text)
}
