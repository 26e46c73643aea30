//! The client's side.

use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::change::{ChangeReport, ChangeRequest};
use crate::protocol::{CHANGE_TIMEOUT, METERED, REQUEST_MAX, Refusal, Request, TIMEOUT};
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

/// Changes the daemon's ports.
///
/// # Errors
/// As [`command`]; then nothing was changed.
pub fn change(socket: &Path, request: &ChangeRequest) -> Result<ChangeReport, String> {
    let mut stream = send(socket, &Request::Change(request.clone()))?;
    stream.set_read_timeout(Some(CHANGE_TIMEOUT)).map_err(unclear)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(unclear)?;
    match serde_json::from_str::<Refusal>(&answer) {
        Ok(refusal) => Err(refusal.error),
        Err(_) => serde_json::from_str(&answer).map_err(unclear),
    }
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

/// Asks for the frames of a port. Returns the pcapng stream. It ends after the client has shut down
/// its writing side, or with the port.
///
/// # Errors
/// As [`command`], or the request is too long.
pub fn capture(
    socket: &Path,
    request: &::capture::Request,
) -> Result<BufReader<UnixStream>, String> {
    let mut stream = BufReader::new(send(socket, &Request::Capture(request.clone()))?);
    match stream.fill_buf().map_err(unclear)? {
        [] => Err(unclear("it is empty")),
        [b'{', ..] => {
            let refusal: Refusal = serde_json::from_reader(stream).map_err(unclear)?;
            Err(refusal.error)
        }
        _ => {
            // Packets come when they come.
            stream.get_ref().set_read_timeout(None).map_err(unclear)?;
            Ok(stream)
        }
    }
}

fn send(socket: &Path, request: &Request) -> Result<UnixStream, String> {
    let no_daemon = |error| {
        format!(
            "no daemon at {}: {error}; start one with `pvnet run --config FILE`",
            socket.display()
        )
    };
    let line = format!("{request}\n");
    if line.len() as u64 > REQUEST_MAX {
        return Err(format!("the request is longer than {REQUEST_MAX} bytes"));
    }
    let mut stream = UnixStream::connect(socket).map_err(no_daemon)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(|error| error.to_string())?;
    stream.write_all(line.as_bytes()).map_err(no_daemon)?;
    Ok(stream)
}

fn unclear(error: impl fmt::Display) -> String {
    format!("the daemon's answer: {error}")
}
