//! QEMU's monitor, as far as a snapshot needs it.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use lab::{Interrupt, Process};
use serde_json::{Value, json};
use xenlab::Monitor;

use crate::error::{Error, Result};

/// The longest that QEMU may take to listen, or to save a machine.
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

/// QEMU's arguments for a monitor at `socket`.
pub fn arguments(socket: &Path) -> [String; 2] {
    ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", socket.display())]
}

/// Connects as soon as QEMU listens.
pub fn connect(socket: &Path, qemu: &mut Process) -> Result<Monitor> {
    let start = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(Monitor::new(stream)?),
            Err(_) if start.elapsed() < LIMIT && qemu.ended()?.is_none() => {
                Interrupt::sleep(POLL)?;
            }
            Err(cause) => return Err(failed(format!("{cause}; {}", qemu.stderr().trim()))),
        }
    }
}

/// Waits until a migration to or from a file has ended.
pub fn wait_for_migration(monitor: &mut Monitor, qemu: &mut Process) -> Result<()> {
    let start = Instant::now();
    loop {
        // QEMU ends if it cannot load a machine.
        if qemu.ended()?.is_some() {
            return Err(failed(qemu.stderr().trim()));
        }
        let answer = monitor.execute("query-migrate", json!({}))?;
        match answer.get("status").and_then(Value::as_str) {
            Some("completed") => return Ok(()),
            Some("failed" | "cancelled") => return Err(failed(answer)),
            _ if start.elapsed() > LIMIT => return Err(failed("saving takes too long")),
            _ => Interrupt::sleep(POLL)?,
        }
    }
}

fn failed(what: impl std::fmt::Display) -> Error {
    Error::Usage(format!("QEMU's monitor: {what}"))
}
