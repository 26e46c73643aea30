//! The client's side.

use std::fmt;
use std::io::{BufRead as _, BufReader, Error, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::change::{ChangeReport, ChangeRequest};
use crate::protocol::{CHANGE_TIMEOUT, METERED, REQUEST_MAX, Refusal, Request, TIMEOUT};
use crate::status::Status;
use crate::worker::{MoveReport, WorkerRequest};

/// Asks the daemon at `socket` for its status.
///
/// # Errors
/// A sentence for an operator: no daemon, or an answer that is not a status.
pub fn status(socket: &Path) -> Result<Status, String> {
    parse(&answer(send(socket, &Request::Status)?)?)
}

/// Sends a request that the daemon answers only if it refuses.
///
/// # Errors
/// The daemon's reason, or a sentence that says why there is no daemon.
pub fn command(socket: &Path, request: &Request) -> Result<(), String> {
    let answer = answer(send(socket, request)?)?;
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
    let stream = send(socket, &Request::Change(request.clone()))?;
    stream.set_read_timeout(Some(CHANGE_TIMEOUT)).map_err(unclear)?;
    parse(&answer(stream)?)
}

/// Moves queues between workers.
///
/// # Errors
/// As [`command`]; then nothing was moved.
pub fn worker(socket: &Path, request: &WorkerRequest) -> Result<MoveReport, String> {
    parse(&answer(send(socket, &Request::Worker(request.clone()))?)?)
}

/// Switches the meter on. It stays on at least until the returned stream is dropped.
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
    request: &::capture::CaptureRequest,
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
    let no_daemon = |error: Error| match error.kind() {
        ErrorKind::PermissionDenied => not_permitted(socket),
        _ => format!(
            "no daemon at {}: {error}; start one with `pvnet run --config FILE`",
            socket.display()
        ),
    };
    let line = format!("{request}\n");
    if line.len() as u64 > REQUEST_MAX {
        return Err(format!("the request is longer than {REQUEST_MAX} bytes"));
    }
    let mut stream = UnixStream::connect(socket).map_err(no_daemon)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(|error| error.to_string())?;
    match stream.write_all(line.as_bytes()) {
        Ok(()) => Ok(stream),
        // A daemon with too many clients refuses before it reads. Its reason is there.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {
            let reason = answer(stream).ok().and_then(|answer| serde_json::from_str(&answer).ok());
            Err(reason.map_or_else(|| no_daemon(error), |refusal: Refusal| refusal.error))
        }
        Err(error) => Err(no_daemon(error)),
    }
}

/// What a user needs who may not use the socket. If the folder is closed to the user as well, its group is the one to be in.
fn not_permitted(socket: &Path) -> String {
    let group = socket.ancestors().find_map(|path| std::fs::metadata(path).ok());
    let groups = std::fs::read_to_string(GROUPS).unwrap_or_default();
    let group = group.map_or_else(String::new, |found| {
        format!(", or a member of the group {}", group_name(&groups, found.gid()))
    });
    format!("no permission to use {}: be root{group}", socket.display())
}

/// The groups of this machine.
const GROUPS: &str = "/etc/group";

/// The name of a group in a text as group(5) says, or its number.
fn group_name(groups: &str, number: u32) -> String {
    let mut lines = groups.lines().map(|line| line.split(':'));
    let name = lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then_some(name)
    });
    name.map_or_else(|| number.to_string(), str::to_owned)
}

/// All that the daemon answers. One that refuses without reading the request resets the connection after its reason.
fn answer(mut stream: UnixStream) -> Result<String, String> {
    let mut bytes = Vec::new();
    match stream.read_to_end(&mut bytes) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset || bytes.is_empty() => {
            Err(unclear(error))
        }
        _ => String::from_utf8(bytes).map_err(unclear),
    }
}

fn parse<T: DeserializeOwned>(answer: &str) -> Result<T, String> {
    match serde_json::from_str::<Refusal>(answer) {
        Ok(refusal) => Err(refusal.error),
        Err(_) => serde_json::from_str(answer).map_err(unclear),
    }
}

fn unclear(error: impl fmt::Display) -> String {
    format!("the daemon's answer: {error}")
}

/// The folder of the sockets unless the configuration names another.
pub const DIRECTORY: &str = "/run/pvnet";

/// The socket that guests join at, of a daemon in `directory`.
#[must_use]
pub fn join_socket(directory: &Path) -> PathBuf {
    directory.join("machine.sock")
}

/// The control socket of a daemon in `directory`.
#[must_use]
pub fn control_socket(directory: &Path) -> PathBuf {
    directory.join("control.sock")
}

/// The socket that cards join at, of a daemon in `directory`.
#[must_use]
pub fn nic_socket(directory: &Path) -> PathBuf {
    directory.join("nic.sock")
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use host::TempDir;

    use super::*;

    /// A daemon that refuses this many clients without reading what they ask, after a while.
    fn refuse(listener: &UnixListener, clients: usize, after: Duration) {
        for stream in listener.incoming().take(clients).map(Result::unwrap) {
            std::thread::sleep(after);
            serde_json::to_writer(&stream, &Refusal::new("too many clients")).unwrap();
        }
    }

    #[test]
    fn a_refusal_is_heard_before_and_after_the_request_is_written() {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("control.sock");
        let late = Duration::from_millis(200);
        for after in [Duration::ZERO, late] {
            let listener = UnixListener::bind(&socket).unwrap();
            let mut said: Vec<Result<(), String>> = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| refuse(&listener, 40, after / 40));
                said = (0..40)
                    .map(|n| match n % 2 {
                        0 => status(&socket).map(drop),
                        _ => command(&socket, &Request::Meter),
                    })
                    .collect();
            });
            assert_eq!(said, vec![Err("too many clients".to_owned()); 40]);
            std::fs::remove_file(&socket).unwrap();
        }
    }

    #[test]
    fn who_has_no_permission_hears_which_group_has() {
        let folder = TempDir::new().unwrap();
        let gid = std::fs::metadata(folder.path()).unwrap().gid();
        let said = not_permitted(&folder.path().join("closed").join("control.sock"));
        let groups = std::fs::read_to_string(GROUPS).unwrap();
        let name = group_name(&groups, gid);
        assert!(said.ends_with(&format!("be root, or a member of the group {name}")), "{said}");
        let groups = "root:x:0:\nvms:x:107:red,blue\n";
        assert_eq!([group_name(groups, 107), group_name(groups, 7)], ["vms", "7"]);
    }

    #[test]
    fn a_client_that_wrote_too_late_hears_the_reason() {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("control.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut stream = UnixStream::connect(&socket).unwrap();
        refuse(&listener, 1, Duration::ZERO);
        assert_eq!(stream.write_all(b"x").unwrap_err().kind(), ErrorKind::BrokenPipe);
        assert!(answer(stream).unwrap().contains("too many clients"));
    }
}
