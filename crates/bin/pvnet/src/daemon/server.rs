//! The control socket: a line with a request, an answer in JSON.
//!
//! `status` is answered with a [`Status`]. `meter` switches the meter on for as long as the
//! connection is open, however its client ends.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::daemon::control::Event;
use crate::daemon::leases::{Lease, Leases};
use crate::daemon::status::Status;
use crate::daemon::{Error, spawn};

/// How long a client may take to say what it wants, or the daemon to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The answer to `meter`.
const METERED: &str = r#"{"meter":true}"#;

/// Adds to a status what takes its time to find out.
pub(super) type Measure = Arc<dyn Fn(&mut Status) + Send + Sync>;

/// The listening socket; its file goes with it.
pub(super) struct Server {
    path: PathBuf,
}

impl Server {
    pub(super) fn start(
        config: &Config,
        measure: Measure,
        events: mpsc::Sender<Event>,
        leases: Leases,
    ) -> Result<Self, Error> {
        let path = config.control_socket();
        // Whoever left it is gone: the machine's socket, bound before, is ours.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(Error::path(&path))?;
        spawn("control socket", move || {
            for stream in listener.incoming().flatten() {
                let (measure, events, leases) = (measure.clone(), events.clone(), leases.clone());
                // Each by itself: a slow answer to one (it may depend on a guest) holds up no
                // other. Without a thread for it, a client sees its connection end.
                let _ = spawn("control client", move || {
                    // A client that went away needs no answer.
                    let _ = answer(&stream, &measure, &events, &leases);
                });
            }
        })?;
        Ok(Self { path })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer(
    mut stream: &UnixStream,
    measure: &Measure,
    events: &mpsc::Sender<Event>,
    leases: &Leases,
) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut line = String::new();
    BufReader::new(stream.take(64)).read_line(&mut line)?;
    let gone = |_| io::Error::from(io::ErrorKind::BrokenPipe);
    match line.trim() {
        "status" => {
            let (sender, receiver) = mpsc::channel();
            events.send(Event::Status(sender)).map_err(gone)?;
            let mut status = receiver.recv_timeout(PATIENCE).map_err(io::Error::other)?;
            // Here and not by the control thread, which has better to do than to read /proc.
            measure(&mut status);
            serde_json::to_writer(stream, &status)?;
        }
        other if other.starts_with("balloon ") => match balloon(other, events) {
            Ok(()) => {}
            Err(why) => serde_json::to_writer(stream, &Refusal { error: why })?,
        },
        "meter" => hold(stream, leases.take())?,
        other => writeln!(stream, "{{\"error\":\"unknown request {other:?}\"}}")?,
    }
    Ok(())
}

/// The answer to a request that was not granted.
#[derive(Serialize, Deserialize)]
struct Refusal {
    error: String,
}

/// Serves `balloon NAME MIB`.
fn balloon(request: &str, events: &mpsc::Sender<Event>) -> Result<(), String> {
    let words: Vec<_> = request.split_ascii_whitespace().collect();
    let [_, name, mib] = words[..] else { return Err("balloon takes a name and MiB".into()) };
    let mib = mib.parse().map_err(|error| format!("{mib:?} MiB: {error}"))?;
    let (answer, receiver) = mpsc::channel();
    let event = Event::Balloon { name: name.to_owned(), mib, answer };
    events.send(event).map_err(|_| "the daemon is stopping")?;
    receiver.recv_timeout(PATIENCE).map_err(|error| error.to_string())?
}

/// Says that the meter is on, and keeps the lease until the client goes.
fn hold(mut stream: &UnixStream, lease: Lease) -> io::Result<()> {
    writeln!(stream, "{METERED}")?;
    stream.set_read_timeout(None)?;
    // It has no more to say; what counts is its end.
    let end = io::copy(&mut stream, &mut io::sink());
    drop(lease);
    end.map(drop)
}

/// Sends a request to a daemon.
fn request(socket: &Path, request: &str) -> Result<UnixStream, String> {
    let no_daemon = |error| {
        format!(
            "no daemon at {}: {error}; start one with `pvnet run --config FILE`",
            socket.display()
        )
    };
    let mut stream = UnixStream::connect(socket).map_err(no_daemon)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
    writeln!(stream, "{request}").map_err(no_daemon)?;
    Ok(stream)
}

fn unclear(error: impl std::fmt::Display) -> String {
    format!("the daemon's answer: {error}")
}

/// Asks a daemon to do something that it answers only when it does not.
pub fn command(socket: &Path, command: &str) -> Result<(), String> {
    let mut answer = String::new();
    request(socket, command)?.read_to_string(&mut answer).map_err(unclear)?;
    if answer.is_empty() {
        return Ok(());
    }
    let refusal: Refusal = serde_json::from_str(&answer).map_err(unclear)?;
    Err(refusal.error)
}

/// Asks a daemon for its status.
pub fn status(socket: &Path) -> Result<Status, String> {
    let mut answer = String::new();
    request(socket, "status")?.read_to_string(&mut answer).map_err(unclear)?;
    serde_json::from_str(&answer).map_err(unclear)
}

/// Switches a daemon's meter on; it is on for at least as long as the answer is open.
pub fn meter(socket: &Path) -> Result<UnixStream, String> {
    let stream = request(socket, "meter")?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer).map_err(unclear)?;
    match answer.trim() {
        METERED => Ok(stream),
        other => Err(unclear(other)),
    }
}
