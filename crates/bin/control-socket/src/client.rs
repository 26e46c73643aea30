//! The client's side.

use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::protocol::{METERED, Refusal, Request, TIMEOUT};
use crate::status::Status;

/// Asks the daemon at `socket` for its status.
///
/// # Errors
/// A sentence for an operator: no daemon, or an answer that is not a status.
pub fn status(socket: &Path) -> Result<Status, String> {
    let mut answer = String::new();
    send(socket, &Request::Status)?.read_to_string(&mut answer).map_err(unclear)?;
    serde_json::from_str(&answer).map_err(unclear)
}

/// Sends a request that the daemon answers only if it refuses.
///
/// # Errors
/// The daemon's reason, or a sentence that says why there is no daemon.
pub fn command(socket: &Path, request: &Request) -> Result<(), String> {
    let mut answer = String::new();
    send(socket, request)?.read_to_string(&mut answer).map_err(unclear)?;
    if answer.is_empty() {
        return Ok(());
    }
    let refusal: Refusal = serde_json::from_str(&answer).map_err(unclear)?;
    Err(refusal.error)
}

/// Switches the meter on. It stays on at least until the returned stream is dropped.
///
/// # Errors
/// As [`status`].
pub fn meter(socket: &Path) -> Result<UnixStream, String> {
    let stream = send(socket, &Request::Meter)?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).map_err(unclear)?;
    match answer.trim() {
        METERED => Ok(stream),
        other => Err(unclear(other)),
    }
}

fn send(socket: &Path, request: &Request) -> Result<UnixStream, String> {
    let no_daemon = |error| {
        format!(
            "no daemon at {}: {error}; start one with `pvnet run --config FILE`",
            socket.display()
        )
    };
    let mut stream = UnixStream::connect(socket).map_err(no_daemon)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(|error| error.to_string())?;
    writeln!(stream, "{request}").map_err(no_daemon)?;
    Ok(stream)
}

fn unclear(error: impl fmt::Display) -> String {
    format!("the daemon's answer: {error}")
}
