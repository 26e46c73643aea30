//! The socket where guests join: the guest's side.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use hypervisor::{DomId, Error, EvtchnPort};
use rustix::net::{SocketAddrUnix, connect};
use seqpacket::send;
use shm::PageSize;

use crate::admission::Token;
use crate::event::GuestEvent;
use crate::guest::MachineGuest;
use crate::guest::state::Hypercalls;
use crate::guest_copy::Request;
use crate::memory::MemorySize;
use crate::proto::{Packet, call, memory, receive};

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
    fn mapped(&self) -> Result<(), Error> {
        self.call(&Packet::new(call::MAPPED, 0, ""))?;
        Ok(())
    }

    fn alloc_unbound(&self, to: DomId) -> Result<(GuestEvent, EvtchnPort), Error> {
        let (reply, fds) = self.call(&Packet::new(call::ALLOC_UNBOUND, to.0.into(), ""))?;
        let fds = <[OwnedFd; 2]>::try_from(fds);
        let [incoming, outgoing] =
            fds.map_err(|_| refused("an event channel without descriptors"))?;
        Ok((GuestEvent::from_fds(incoming, outgoing), EvtchnPort(reply.arg)))
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

    fn copy_granted(&self, id: u32, requests: &[Request]) -> Result<u64, Error> {
        Ok(self.call(&Packet::about_copies(id, requests)?)?.0.done())
    }

    fn open_pool(&self, id: u32) -> Result<OwnedFd, Error> {
        let (_, fds) = self.call(&Packet::new(call::OPEN_POOL, id, ""))?;
        fds.into_iter().next().ok_or_else(|| refused("a pool without a descriptor"))
    }

    fn open_contexts(&self) -> Result<OwnedFd, Error> {
        let (_, fds) = self.call(&Packet::new(call::OPEN_CONTEXTS, 0, ""))?;
        fds.into_iter().next().ok_or_else(|| refused("a channel without a descriptor"))
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
    join_with(path, name, None)
}

/// As [`join`], with the secret that the daemon wants for this name.
pub fn join_with(
    path: &Path,
    name: &str,
    token: Option<&Token>,
) -> Result<(MachineGuest, OwnedFd), ConnectError> {
    let no_daemon = |source| ConnectError::NoDaemon { path: path.to_owned(), source };
    let socket = seqpacket::socket().map_err(Error::os("socket"))?;
    let address = SocketAddrUnix::new(path).map_err(|e| no_daemon(e.into()))?;
    connect(&socket, &address).map_err(|e| no_daemon(e.into()))?;
    let sent = send(&socket, &Packet::hello(name, token), &[]);
    // A daemon that is out of resources refuses before it reads the hello. Then the send or the first
    // receive may fail, and the second receive gets the reason.
    let answer = receive(&socket).or_else(|_| receive(&socket));
    let (welcome, fds) = match (sent, answer) {
        (_, Ok(Some(answer))) => answer,
        (Err(error), _) | (Ok(()), Err(error)) => return Err(no_daemon(error)),
        (Ok(()), Ok(None)) => return Err(ConnectError::Broken(Error::Gone)),
    };
    if welcome.code != 0 {
        return Err(ConnectError::Refused(welcome.text()));
    }
    let Ok([file, store]) = <[OwnedFd; 2]>::try_from(fds) else {
        return Err(ConnectError::Refused("a welcome without memory".into()));
    };
    let domid = DomId(u16::try_from(welcome.arg).unwrap_or(u16::MAX));
    let [pages, grant_pages, exchange_pages] = welcome.pages.map(|n| n as usize);
    let has = |flag| welcome.flags & flag != 0;
    let page_size = if has(memory::HUGE) { PageSize::Huge } else { PageSize::Small };
    let sealed = has(memory::SEALED);
    // For the guest it makes no difference whether the file is secret.
    let secret = false;
    let size = MemorySize { pages, grant_pages, exchange_pages, page_size, sealed, secret };
    let calls = Box::new(Remote { socket: socket.into() });
    Ok((MachineGuest::new(domid, file, size, calls)?, store))
}
