//! Sockets that listen: their permissions, and what happens when descriptors run out.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use seqpacket::remove_socket;
use tracing::warn;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Time until the next attempt after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);
/// Pause after a connection for which there was no descriptor: a flood of them takes no CPU.
const EXCESS_PAUSE: Duration = Duration::from_millis(10);

/// Listens at `path`, where no file may be, with these permissions of the file. To connect, a
/// process needs the permission to write.
///
/// # Errors
/// The system's.
pub fn listen_at(path: &Path, kind: SocketType, mode: u32) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    bind(&socket, &address)?;
    // Before `listen`: until then every connection is refused, so the umask does not matter.
    let listening = std::fs::set_permissions(path, Permissions::from_mode(mode))
        .and_then(|()| Ok(listen(&socket, BACKLOG)?));
    if let Err(error) = listening {
        // The first error is the one to report.
        let _ = remove_socket(path);
        return Err(error);
    }
    Ok(socket)
}

/// The result of [`Acceptor::accept`].
pub enum Accepted {
    /// A connection.
    Connection(OwnedFd),
    /// A connection beyond the process's descriptors. Say so to its client, and close it at once.
    Excess(OwnedFd),
    /// The socket was shut down.
    Stopped,
}

/// Accepts connections. When descriptors run out, it neither spins nor leaves clients waiting: it
/// has a spare descriptor for the connection that will be refused.
pub struct Acceptor {
    what: &'static str,
    spare: Option<OwnedFd>,
}

impl Acceptor {
    /// An acceptor of `what`, for messages.
    #[must_use]
    pub fn new(what: &'static str) -> Self {
        Self { what, spare: spare() }
    }

    /// Waits for the next connection.
    pub fn accept(&mut self, socket: impl AsFd) -> Accepted {
        loop {
            self.spare = self.spare.take().or_else(spare);
            match accept_with(&socket, SocketFlags::CLOEXEC) {
                Ok(connection) => return Accepted::Connection(connection),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::INVAL) => return Accepted::Stopped,
                Err(error) => {
                    let out_of_descriptors = matches!(error, Errno::MFILE | Errno::NFILE);
                    if out_of_descriptors
                        && self.spare.take().is_some()
                        && let Ok(connection) = accept_with(&socket, SocketFlags::CLOEXEC)
                    {
                        // Linux takes the descriptor before it waits for a connection, so others
                        // may be free by now.
                        self.spare = spare();
                        if self.spare.is_some() {
                            return Accepted::Connection(connection);
                        }
                        warn!(what = self.what, "out of descriptors: a connection is refused");
                        std::thread::sleep(EXCESS_PAUSE);
                        return Accepted::Excess(connection);
                    }
                    warn!(what = self.what, %error, "accepting a connection");
                    std::thread::sleep(ACCEPT_AGAIN);
                }
            }
        }
    }
}

fn spare() -> Option<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}
