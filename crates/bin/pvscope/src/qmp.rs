//! QEMU's monitor, as far as a snapshot needs it.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use lab::{Interrupt, Process};
use serde_json::{Value, json};

use crate::error::{Error, Result};

/// The longest that an answer may take.
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(5);

/// A connection to the monitor.
pub struct Monitor {
    stream: BufReader<UnixStream>,
}

fn failed(what: impl std::fmt::Display) -> Error {
    Error::Usage(format!("QEMU's monitor: {what}"))
}

impl Monitor {
    /// QEMU's arguments for a monitor at `socket`.
    pub fn arguments(socket: &Path) -> [String; 2] {
        ["-qmp".to_owned(), format!("unix:{},server=on,wait=off", socket.display())]
    }

    /// Connects as soon as QEMU listens.
    pub fn connect(socket: &Path, qemu: &mut Process) -> Result<Self> {
        let start = Instant::now();
        let stream = loop {
            match UnixStream::connect(socket) {
                Ok(stream) => break stream,
                Err(_) if start.elapsed() < LIMIT && qemu.ended()?.is_none() => {
                    Interrupt::sleep(POLL)?
                }
                Err(cause) => return Err(failed(format!("{cause}; {}", qemu.stderr().trim()))),
            }
        };
        stream.set_read_timeout(Some(LIMIT)).map_err(failed)?;
        let mut monitor = Self { stream: BufReader::new(stream) };
        // The greeting.
        monitor.message()?;
        monitor.ask("qmp_capabilities", json!({}))?;
        Ok(monitor)
    }

    fn message(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(failed)?;
        serde_json::from_str(&line).map_err(failed)
    }

    /// Executes a command, and returns its answer.
    pub fn ask(&mut self, command: &str, arguments: Value) -> Result<Value> {
        let question = json!({ "execute": command, "arguments": arguments });
        writeln!(self.stream.get_mut(), "{question}").map_err(failed)?;
        loop {
            let answer = self.message()?;
            if let Some(error) = answer.get("error") {
                return Err(failed(format!("{command}: {error}")));
            }
            // Events come in between.
            if let Some(value) = answer.get("return") {
                return Ok(value.clone());
            }
        }
    }

    /// Waits until a migration to or from a file has ended.
    pub fn wait_for_migration(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let answer = self.ask("query-migrate", json!({}))?;
            match answer.get("status").and_then(Value::as_str) {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => return Err(failed(answer)),
                _ if start.elapsed() > LIMIT => return Err(failed("saving takes too long")),
                _ => Interrupt::sleep(POLL)?,
            }
        }
    }
}
