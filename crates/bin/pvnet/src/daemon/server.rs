//! Serves the control socket; crate `control-socket` has its protocol.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Weak, mpsc};
use std::time::Duration;

use capture::Capture;
use control_socket::{
    CHANGE_TIMEOUT, Change, ChangeReport, ChangeRequest, METERED, REQUEST_MAX, Refusal, Request,
    TIMEOUT,
};
use machine::{Accepted, Acceptor, listen_at};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Gid;
use rustix::net::SocketType;
use rustix::process::getgroups;
use rustix::thread::set_thread_groups;
use seqpacket::remove_socket;
use serde::Serialize;
use tracing::{info, warn};

use crate::config::{Config, ConfigFile};
use crate::daemon::clients::{Clients, Timed};
use crate::daemon::error::Error;
use crate::daemon::event::{ConfigSource, Event, NewConfig, request};
use crate::daemon::leases::{Lease, Leases};
use crate::daemon::platform::Platform;
use crate::daemon::socket_file::give_to_group;
use crate::daemon::status::StatusReader;
use crate::daemon::thread::{spawn, spawn_for_client};
use crate::log::OPERATOR;

/// Clients at a time. Captures and `pvnet top` stay connected.
const CLIENTS_MAX: usize = 64;
/// How long the control thread has for a status: less than its client waits.
const BUSY: Duration = TIMEOUT.saturating_sub(Duration::from_secs(1));

/// Joins the groups that sockets will have, if the process may: whoever owns a file may give it to a group that they are in, without the
/// capability that the sandbox takes.
pub(super) fn join_groups(config: &Config) {
    let mut groups = getgroups().unwrap_or_default();
    let own = groups.len();
    for group in config.socket_groups().map(Gid::from_raw) {
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    if groups.len() > own {
        // If it may not, the socket's group says so, unless it is the process's own.
        let _ = set_thread_groups(&groups);
    }
}

/// The listening socket. Dropping it removes its file.
pub(super) struct Server {
    path: PathBuf,
}

/// What clients are answered from.
pub(super) struct Services {
    pub(super) file: ConfigFile,
    /// The server's thread never ends, so it must not own the platform, which removes its socket when dropped.
    pub(super) platform: Weak<dyn Platform>,
    pub(super) status: StatusReader,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) leases: Leases,
}

impl Server {
    pub(super) fn start(config: &Config, services: Services) -> Result<Self, Error> {
        let path = config.control_socket();
        // A socket here is left from a daemon that has ended: only one daemon can have the join socket,
        // and this one has bound it before.
        remove_socket(&path).map_err(Error::path(&path))?;
        let listening = listen_at(&path, SocketType::STREAM, config.daemon.control_mode);
        let listener = UnixListener::from(listening.map_err(Error::path(&path))?);
        if let Some(group) = config.daemon.control_group {
            give_to_group(&path, group, "control_group").map_err(Error::path(&path))?;
        }
        let (clients, services) = (Clients::new(CLIENTS_MAX), Arc::new(services));
        spawn("control socket", move || {
            let mut acceptor = Acceptor::new("clients of the control socket");
            loop {
                let stream = match acceptor.accept(&listener) {
                    Accepted::Connection(stream) => UnixStream::from(stream),
                    Accepted::Excess(stream) => {
                        refuse(&stream.into(), "the daemon is out of descriptors");
                        continue;
                    }
                    Accepted::Stopped => return,
                };
                let Some(client) = clients.enter() else {
                    refuse(&stream, &format!("{CLIENTS_MAX} clients are connected; try later"));
                    continue;
                };
                let services = services.clone();
                // One thread per client, so that a slow answer, which may depend on a guest, delays no other.
                // If no thread starts, the client sees its connection end.
                let _ = spawn_for_client("control", move || {
                    // A client that has gone needs no answer.
                    let _ = services.answer(&stream);
                    drop(client);
                });
            }
        })?;
        Ok(Self { path })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        let _ = remove_socket(&self.path);
    }
}

impl Services {
    fn answer(&self, stream: &UnixStream) -> io::Result<()> {
        let mut line = String::new();
        BufReader::new(Timed::new(stream, TIMEOUT).take(REQUEST_MAX)).read_line(&mut line)?;
        // For answers; a capture and the meter go on for as long as their client wants.
        let reply = Timed::new(stream, 2 * TIMEOUT);
        let events = &self.events;
        // Nobody who stays, for a capture or the meter, may keep the platform.
        let nics = || self.platform.upgrade()?.nics().cloned();
        let done = match line.parse() {
            Ok(Request::Status) => match self.status.whole(BUSY) {
                Ok(status) => return respond(reply, Ok(status)),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    Err(format!("the daemon was busy for {} s; try later", BUSY.as_secs()))
                }
                Err(error) => return Err(io::Error::other(error)),
            },
            Ok(Request::Balloon { guest: name, mib }) => {
                let with_contexts = nics().and_then(|nics| nics.domain(&name));
                let balloon = |answer| Event::Balloon { name, with_contexts, mib, answer };
                request(events, TIMEOUT, balloon)
            }
            Ok(Request::Revoke { card, guest }) => match nics() {
                Some(nics) => nics.revoke(&card, &guest),
                None => Err("this daemon has no cards".to_owned()),
            },
            Ok(Request::Capture(capture)) => {
                let capture = |answer| Event::Capture { request: capture, answer };
                match request(events, TIMEOUT, capture) {
                    Ok(capture) => return send(capture, stream),
                    Err(why) => Err(why),
                }
            }
            Ok(Request::Change(change)) => {
                let changed = self::change(change, &self.file, events);
                // Changes take longer than other requests.
                return respond(Timed::new(stream, TIMEOUT), changed);
            }
            Ok(Request::Worker(worker)) => {
                let worker = |answer| Event::Workers { request: worker, answer };
                return respond(reply, request(events, TIMEOUT, worker));
            }
            Ok(Request::Meter) => return hold(stream, self.leases.take()),
            Err(refusal) => return Ok(serde_json::to_writer(reply, &refusal)?),
        };
        done.or_else(|why| Ok(serde_json::to_writer(reply, &Refusal::new(why))?))
    }
}

/// Has the control thread make a change. The file is read here: the control thread must not wait for a disk.
fn change(
    asked: ChangeRequest,
    file: &ConfigFile,
    events: &mpsc::Sender<Event>,
) -> Result<ChangeReport, String> {
    let ChangeRequest { change, dry_run, reconnect } = asked;
    let source = match change {
        Change::Reload { candidate: true } if !dry_run => {
            return Err(
                "a configuration that the daemon has not read yet can only be tried".to_owned()
            );
        }
        Change::Reload { candidate } => {
            let loaded = match candidate {
                true => file.candidate().and_then(|file| file.read()),
                false => file.read_again(),
            };
            ConfigSource::File(Box::new(loaded.map_err(|error| error.to_string())?))
        }
        change => ConfigSource::Command(change),
    };
    let change = Box::new(NewConfig { source, dry_run, reconnect });
    request(events, CHANGE_TIMEOUT, |answer| Event::Change { change, answer })
}

/// Reads the file again, and logs what that did.
pub(super) fn reload(file: &ConfigFile, events: &mpsc::Sender<Event>) {
    match change(ChangeRequest::new(Change::Reload { candidate: false }), file, events) {
        Ok(report) if report.steps.is_empty() => {
            info!(target: OPERATOR, "reloaded: nothing has changed");
        }
        // The control thread has logged each step.
        Ok(report) => info!(target: OPERATOR, steps = report.steps.len(), "reloaded"),
        Err(error) => warn!(target: OPERATOR, error, "not reloaded: nothing was changed"),
    }
}

/// Answers with a report, or why there is none. At once: each write to a client has a limit of its own to be set.
fn respond(mut reply: impl Write, answer: Result<impl Serialize, String>) -> io::Result<()> {
    let answer = match answer {
        Ok(report) => serde_json::to_vec(&report)?,
        Err(why) => serde_json::to_vec(&Refusal::new(why))?,
    };
    reply.write_all(&answer)
}

/// Answers a client before its request is read. It has a fresh socket, so nothing waits.
fn refuse(stream: &UnixStream, why: &str) {
    // It may have gone.
    let _ = serde_json::to_writer(Timed::new(stream, TIMEOUT), &Refusal::new(why));
}

/// Sends a capture until the client has closed its side.
fn send(capture: Capture, mut stream: &UnixStream) -> io::Result<()> {
    // A viewer may pause. Packets that it misses are counted as lost.
    stream.set_write_timeout(None)?;
    let mut has_closed = || {
        let mut fds = [PollFd::new(stream, PollFlags::RDHUP)];
        // After an error, such as a signal, the next call asks again.
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    };
    capture.run(&mut stream, &mut has_closed).map(drop)
}

/// Confirms that the meter is on, and keeps the lease until the client goes.
fn hold(mut stream: &UnixStream, lease: Lease) -> io::Result<()> {
    writeln!(Timed::new(stream, TIMEOUT), "{METERED}")?;
    stream.set_read_timeout(None)?;
    // The client sends nothing more; the read ends when it closes.
    let end = io::copy(&mut stream, &mut io::sink());
    drop(lease);
    end.map(drop)
}
