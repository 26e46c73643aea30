//! The socket where guests join: the daemon's side.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hypervisor::{DomId, Hypervisor};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socketpair,
};
use seqpacket::{receive, remove_socket, send};
use shm::PageSize;
use tracing::{debug, info, warn};

use crate::admission::{Admitted, Applicant, Session, Toolstack};
use crate::guest::offer;
use crate::hypervisor::Machine;
use crate::proto::{Packet, VERSION, call, memory};
use crate::socket::{Accepted, Acceptor, listen_at};
use crate::store;

/// How long a connection may take to send its hello: each costs a thread.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// Connections of one user that may be without a hello at a time.
const SILENT_MAX: usize = 128;

/// The listening socket. Its file is removed when it is dropped.
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`, a file with permissions `mode`: a process that may write to it may join. A
    /// socket file without a listener is replaced, any other file is an error.
    pub fn bind(path: &Path, mode: u32) -> io::Result<Self> {
        let listening = listen_at(path, SocketType::SEQPACKET, mode).or_else(|error| {
            if connect(seqpacket::socket()?, &SocketAddrUnix::new(path)?).is_ok() {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another daemon listens"));
            }
            if error.kind() != io::ErrorKind::AddrInUse {
                return Err(error);
            }
            remove_socket(path)?;
            listen_at(path, SocketType::SEQPACKET, mode)
        });
        Ok(Self { socket: listening?, path: path.to_owned() })
    }

    /// Serves guests, one thread each, until [`stop`](Self::stop).
    pub fn serve(&self, machine: &Machine, toolstack: &Arc<impl Toolstack>) {
        let mut acceptor = Acceptor::new("guests");
        let silent = Arc::new(Silent::default());
        loop {
            match acceptor.accept(&self.socket) {
                Accepted::Connection(socket) => start(socket, machine, toolstack, &silent),
                Accepted::Excess(socket) => {
                    refuse_unheard(&socket, "the daemon is out of descriptors (RLIMIT_NOFILE)");
                }
                Accepted::Stopped => return,
            }
        }
    }

    /// Makes [`serve`](Self::serve) return.
    pub fn stop(&self) {
        // It can only fail when the socket is shut down already.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // It may be removed already.
        let _ = remove_socket(&self.path);
    }
}

/// The connections that have not said who they are, by user.
#[derive(Default)]
struct Silent(Mutex<HashMap<u32, usize>>);

/// A connection that counts as silent until this is dropped.
struct Counted {
    silent: Arc<Silent>,
    user: u32,
}

impl Silent {
    /// Counts a connection of `user`; none if it has too many.
    fn count(self: &Arc<Self>, user: u32) -> Option<Counted> {
        let mut users = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = users.entry(user).or_default();
        (*count < SILENT_MAX).then(|| {
            *count += 1;
            Counted { silent: self.clone(), user }
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut users = self.silent.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = users.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                users.remove(&self.user);
            }
        }
    }
}

/// Starts a session's thread, or refuses the connection.
fn start(
    socket: OwnedFd,
    machine: &Machine,
    toolstack: &Arc<impl Toolstack>,
    silent: &Arc<Silent>,
) {
    let Ok(peer) = socket_peercred(&socket) else { return };
    let (process, user) = (peer.pid.as_raw_nonzero().get().unsigned_abs(), peer.uid.as_raw());
    let Some(counted) = silent.count(user) else {
        let why = "too many processes of this user are joining; try again later";
        return refuse_unheard(&socket, why);
    };
    let socket = Arc::new(socket);
    let (ours, machine, toolstack) = (socket.clone(), machine.clone(), toolstack.clone());
    let session = move || {
        if let Err(error) = session(&ours, &machine, &*toolstack, process, counted) {
            debug!(%error, "guest session");
        }
    };
    let builder = std::thread::Builder::new().name("guest client".to_owned());
    if let Err(error) = builder.spawn(session) {
        warn!(user, process, %error, "no thread for a guest: refused");
        refuse_unheard(&socket, &format!("the daemon cannot start another thread: {error}"));
    }
}

/// Tells a connection that it is refused, without waiting for its hello.
fn refuse_unheard(socket: &OwnedFd, why: &str) {
    // It may have gone.
    let _ = refuse(socket, why);
    // If its hello were left unread, the client would see an error and not the reason.
    let _ = rustix::net::recv(socket, &mut [0u8; 1], RecvFlags::DONTWAIT);
}

fn refuse(socket: &OwnedFd, why: &str) -> io::Result<()> {
    send(socket, &Packet::new(1, 0, why), &[])
}

/// One guest, from its hello to its end.
fn session<T: Toolstack>(
    socket: &Arc<OwnedFd>,
    machine: &Machine,
    toolstack: &T,
    process: u32,
    silent: Counted,
) -> io::Result<()> {
    set_socket_timeout(socket, Timeout::Recv, Some(HELLO_LIMIT))?;
    let Some(hello) = receive::<Packet>(socket)? else { return Ok(()) };
    set_socket_timeout(socket, Timeout::Recv, None)?;
    let user = silent.user;
    drop(silent);
    let refuse = |name: &str, why: &str| {
        warn!(user, process, name = ?name, why, "a guest is refused");
        refuse(socket, why)
    };
    let applicant = Applicant { name: hello.text(), token: hello.token(), process, user };
    let name = applicant.name.as_str();
    if hello.code != call::HELLO || hello.arg != VERSION {
        let why = format!("this daemon speaks version {VERSION} of the machine protocol");
        return refuse(name, &why);
    }
    let Admitted { size, share, guest } = match toolstack.admit(&applicant) {
        Ok(admitted) => admitted,
        Err(why) => return refuse(name, &why),
    };
    toolstack.opened(&guest, Session::new(socket));
    let domain = match machine.create_within(size, share) {
        Ok(domain) => domain,
        Err(error) => return refuse(name, &error.to_string()),
    };
    let id = domain.id();
    domain.joined(process);
    let running = Running { machine, toolstack, id, guest, name };
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Err(error) = store::serve(machine.store().clone(), id, ours) {
        return refuse(name, &format!("the daemon cannot serve the store: {error}"));
    }
    if let Err(why) = toolstack.created(id, &running.guest) {
        return refuse(name, &why);
    }
    let mut welcome = Packet::new(0, u32::from(id.0), "");
    welcome.pages = [size.pages, size.grant_pages, size.exchange_pages]
        .map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let huge = if size.page_size == PageSize::Huge { memory::HUGE } else { 0 };
    welcome.flags = huge | if size.sealed { memory::SEALED } else { 0 };
    send(socket, &welcome, &[domain.fd().as_fd(), theirs.as_fd()])?;
    drop((theirs, domain));
    info!(guest = name, domain = id.0, "guest connected");
    while let Some(request) = receive(socket)? {
        answer(socket, &running, &request)?;
    }
    Ok(())
}

fn answer<T: Toolstack>(
    socket: &OwnedFd,
    running: &Running<'_, T>,
    request: &Packet,
) -> io::Result<()> {
    let Running { machine, toolstack, id, ref guest, .. } = *running;
    let done = |arg| Packet::new(0, arg, "");
    let failed = |why: &str| send(socket, &Packet::new(1, 0, why), &[]);
    match request.code {
        call::ALLOC_UNBOUND => {
            let to = DomId(u16::try_from(request.arg).unwrap_or(u16::MAX));
            match offer(machine, id, to) {
                Ok((event, port)) => send(socket, &done(port.0), &event.fds()),
                Err(error) => failed(&error.to_string()),
            }
        }
        call::SURRENDER => match request.frames().map(|frames| machine.surrender(id, frames)) {
            Some(Ok(())) => send(socket, &done(0), &[]),
            Some(Err(error)) => failed(&error.to_string()),
            None => failed("too many pages in one call"),
        },
        call::MAPPED => match machine.peer(id).and_then(|domain| domain.mapped()) {
            Ok(()) => send(socket, &done(0), &[]),
            Err(error) => failed(&error.to_string()),
        },
        call::DECREASE_RESERVATION | call::INCREASE_RESERVATION => {
            let pages = request.run();
            let changed = machine.peer(id).and_then(|domain| match request.code {
                call::DECREASE_RESERVATION => domain.decrease_reservation(pages),
                _ => domain.increase_reservation(pages),
            });
            match changed {
                Ok(()) => send(socket, &done(0), &[]),
                Err(error) => failed(&error.to_string()),
            }
        }
        call::COPY_GRANTED => match request.copies() {
            Some(copies) => match machine.copy_granted(id, request.pages[0], &copies) {
                Ok(bits) => send(socket, &Packet::about_done(bits), &[]),
                Err(error) => failed(&error.to_string()),
            },
            None => failed("too many copies in one call"),
        },
        call::OPEN_POOL => match machine.pool(id, request.arg) {
            Ok(copies) => match copies.pool_file() {
                Some(file) => send(socket, &done(0), &[file]),
                None => failed("no pool"),
            },
            Err(error) => failed(&error.to_string()),
        },
        call::OPEN_CONTEXTS => match toolstack.open_contexts(id, guest) {
            Ok(channel) => send(socket, &done(0), &[channel.as_fd()]),
            Err(why) => failed(&why),
        },
        _ => failed("no such call"),
    }
}

/// A domain that exists, and ends with its session: its process holds the other end of the socket,
/// and the kernel closes that however the process dies.
struct Running<'a, T: Toolstack> {
    machine: &'a Machine,
    toolstack: &'a T,
    id: DomId,
    guest: T::Guest,
    name: &'a str,
}

impl<T: Toolstack> Drop for Running<'_, T> {
    fn drop(&mut self) {
        self.machine.destroy(self.id);
        self.toolstack.destroyed(self.id, &self.guest);
        self.machine.store().forget(self.id);
        info!(guest = self.name, domain = self.id.0, "guest gone");
    }
}

#[cfg(test)]
mod tests;
