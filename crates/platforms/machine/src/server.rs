//! The socket where guests join.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hypervisor::{DomId, Error, Hypervisor, Port};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with, socketpair,
};
use shm::PageSize;
use tracing::{debug, info, warn};

use crate::event::GuestEvent;
use crate::guest::state::Hypercalls;
use crate::guest::{MachineGuest, offer};
use crate::hypervisor::Machine;
use crate::memory::MemorySize;
use crate::proto::{Packet, VERSION, call, receive, send};
use crate::store;

/// Who may be a domain, and what happens when one comes or goes.
pub trait Toolstack: Send + Sync + 'static {
    /// A guest asks to be `name`: how much memory it gets, or why not.
    fn admit(&self, name: &str) -> Result<MemorySize, String>;
    /// The domain exists and may read the store: make its devices.
    fn created(&self, domain: DomId, name: &str) -> Result<(), String>;
    /// The domain's process has gone; its grants are refused already. Free its resources.
    fn destroyed(&self, domain: DomId, name: &str);
}

/// How long a connection may take to send its hello: each costs a thread.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// Time until the next attempt after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// The listening socket. Its file is removed when it is dropped.
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens at `path`. A socket file without a listener is replaced, any other file is an error.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let socket = seqpacket()?;
        if let Err(error) = bind(&socket, &address) {
            if connect(seqpacket()?, &address).is_ok() {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another daemon listens"));
            }
            if !std::fs::metadata(path).is_ok_and(|file| file.file_type().is_socket()) {
                return Err(error.into());
            }
            std::fs::remove_file(path).map_err(|_| error)?;
            bind(&socket, &address)?;
        }
        listen(&socket, 16)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Serves guests, one thread each, until [`stop`](Self::stop).
    pub fn serve(&self, machine: &Machine, toolstack: &Arc<impl Toolstack>) {
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => {
                    let (machine, toolstack) = (machine.clone(), toolstack.clone());
                    std::thread::spawn(move || {
                        if let Err(error) = session(&socket, &machine, &*toolstack) {
                            debug!(%error, "guest session");
                        }
                    });
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::INVAL) => return, // shut down
                Err(error) => {
                    // The process may be out of descriptors; guests that leave free some.
                    warn!(%error, "accepting guests");
                    std::thread::sleep(ACCEPT_AGAIN);
                }
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
        let _ = std::fs::remove_file(&self.path);
    }
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// One guest, from its hello to its end.
fn session(socket: &OwnedFd, machine: &Machine, toolstack: &impl Toolstack) -> io::Result<()> {
    set_socket_timeout(socket, Timeout::Recv, Some(HELLO_LIMIT))?;
    let Some((hello, _)) = receive(socket)? else { return Ok(()) };
    set_socket_timeout(socket, Timeout::Recv, None)?;
    let name = hello.text();
    let refuse = |why: &str| send(socket, &Packet::new(1, 0, why), &[]);
    if hello.code != call::HELLO || hello.arg != VERSION {
        return refuse(&format!("this daemon speaks version {VERSION} of the machine protocol"));
    }
    let size = match toolstack.admit(&name) {
        Ok(size) => size,
        Err(why) => return refuse(&why),
    };
    let domain = match machine.create(size) {
        Ok(domain) => domain,
        Err(error) => {
            toolstack.destroyed(DomId(0), &name);
            return refuse(&error.to_string());
        }
    };
    let id = domain.id();
    if let Ok(peer) = socket_peercred(socket) {
        domain.joined(peer.pid.as_raw_nonzero().get().unsigned_abs());
    }
    let _cleanup = Cleanup { machine, toolstack, id, name: &name };
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    store::serve(machine.store().clone(), id, ours);
    if let Err(why) = toolstack.created(id, &name) {
        return refuse(&why);
    }
    let mut welcome = Packet::new(0, u32::from(id.0), "");
    welcome.pages = [size.pages, size.grant_pages, size.exchange_pages]
        .map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    welcome.huge = (size.page_size == PageSize::Huge).into();
    send(socket, &welcome, &[domain.fd().as_fd(), theirs.as_fd()])?;
    drop(theirs);
    info!(guest = name, domain = id.0, "guest connected");
    while let Some((request, _)) = receive(socket)? {
        answer(socket, machine, id, &request)?;
    }
    Ok(())
}

fn answer(socket: &OwnedFd, machine: &Machine, id: DomId, request: &Packet) -> io::Result<()> {
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
        _ => failed("no such call"),
    }
}

/// The domain ends with its session: its process holds the other end of the socket, and the kernel
/// closes that however the process dies.
struct Cleanup<'a, T: Toolstack> {
    machine: &'a Machine,
    toolstack: &'a T,
    id: DomId,
    name: &'a str,
}

impl<T: Toolstack> Drop for Cleanup<'_, T> {
    fn drop(&mut self) {
        self.machine.destroy(self.id);
        self.toolstack.destroyed(self.id, self.name);
        self.machine.store().forget(self.id);
        info!(guest = self.name, domain = self.id.0, "guest gone");
    }
}

/// Calls over the session's socket, one at a time.
struct Remote {
    socket: std::sync::Mutex<OwnedFd>,
}

impl Remote {
    fn call(&self, request: &Packet) -> Result<(Packet, Vec<OwnedFd>), Error> {
        let socket = self.socket.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        send(&*socket, request, &[]).map_err(Error::os("hypercall"))?;
        let answer = receive(&*socket).map_err(Error::os("hypercall"))?;
        let (reply, fds) = answer.ok_or(Error::Gone)?;
        if reply.code == 0 { Ok((reply, fds)) } else { Err(refused(&reply.text())) }
    }
}

fn refused(why: &str) -> Error {
    Error::os("hypercall")(io::Error::other(why))
}

impl Hypercalls for Remote {
    fn alloc_unbound(&self, to: DomId) -> Result<(GuestEvent, Port), Error> {
        let (reply, fds) = self.call(&Packet::new(call::ALLOC_UNBOUND, to.0.into(), ""))?;
        let fds = <[OwnedFd; 2]>::try_from(fds);
        let [incoming, outgoing] =
            fds.map_err(|_| refused("an event channel without descriptors"))?;
        Ok((GuestEvent::from_fds(incoming, outgoing), Port(reply.arg)))
    }

    fn surrender(&self, frames: &[u32]) -> Result<(), Error> {
        self.call(&Packet::about_pages(call::SURRENDER, frames)?)?;
        Ok(())
    }

    fn decrease_reservation(&self, pages: Range<usize>) -> Result<(), Error> {
        self.call(&Packet::about_run(call::DECREASE_RESERVATION, &pages)?)?;
        Ok(())
    }

    fn increase_reservation(&self, pages: Range<usize>) -> Result<(), Error> {
        self.call(&Packet::about_run(call::INCREASE_RESERVATION, &pages)?)?;
        Ok(())
    }
}

/// Why a process could not become a domain.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No daemon listens.
    #[error("no daemon listens at {path}: {source}; start one with `pvnet run --config FILE`")]
    NoDaemon {
        /// The socket's path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The daemon refused.
    #[error("the daemon refused: {0}")]
    Refused(String),
    /// An I/O error.
    #[error(transparent)]
    Broken(#[from] Error),
}

/// Joins the machine whose daemon listens at `path` as domain `name`. Returns the guest's side of
/// the domain and its connection to the store. The domain ends with the process.
pub fn join(path: &Path, name: &str) -> Result<(MachineGuest, OwnedFd), ConnectError> {
    let no_daemon = |source| ConnectError::NoDaemon { path: path.to_owned(), source };
    let socket = seqpacket().map_err(Error::os("socket"))?;
    let address = SocketAddrUnix::new(path).map_err(|e| no_daemon(e.into()))?;
    connect(&socket, &address).map_err(|e| no_daemon(e.into()))?;
    send(&socket, &Packet::new(call::HELLO, VERSION, name), &[]).map_err(no_daemon)?;
    let (welcome, fds) =
        receive(&socket).map_err(no_daemon)?.ok_or(ConnectError::Broken(Error::Gone))?;
    if welcome.code != 0 {
        return Err(ConnectError::Refused(welcome.text()));
    }
    let Ok([memory, store]) = <[OwnedFd; 2]>::try_from(fds) else {
        return Err(ConnectError::Refused("a welcome without memory".into()));
    };
    let domid = DomId(u16::try_from(welcome.arg).unwrap_or(u16::MAX));
    let [pages, grant_pages, exchange_pages] = welcome.pages.map(|n| n as usize);
    let page_size = if welcome.huge == 1 { PageSize::Huge } else { PageSize::Small };
    let size = MemorySize { pages, grant_pages, exchange_pages, page_size };
    let calls = Box::new(Remote { socket: socket.into() });
    Ok((MachineGuest::new(domid, memory, size, calls)?, store))
}

#[cfg(test)]
mod tests;
