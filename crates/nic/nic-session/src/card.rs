//! The card's end of its connection to the daemon.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{SocketAddrUnix, connect};

use crate::Settings;
use crate::join::{Answer, Join};
use crate::message::{ToCard, ToDaemon};

/// Why a process could not become a card.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// No daemon listens.
    #[error(
        "no daemon with cards listens at {path}: {source}; start one with `pvnet run --config FILE`, \
         whose configuration has a [[nic]]"
    )]
    NoDaemon {
        /// The socket's path.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// The daemon refused.
    #[error("the daemon refused: {0}")]
    Refused(String),
}

/// A card's connection.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
}

impl Connection {
    /// Joins the daemon that listens at `path` as the card `name`.
    ///
    /// # Errors
    /// There is no daemon, or it refuses.
    pub fn join(path: &Path, name: &str) -> Result<(Self, Settings), JoinError> {
        let no_daemon = |source| JoinError::NoDaemon { path: path.to_owned(), source };
        let join = Join::new(name)
            .ok_or_else(|| JoinError::Refused(format!("{name:?} is too long for a card's name")))?;
        let socket = seqpacket::socket().map_err(no_daemon)?;
        let address = SocketAddrUnix::new(path).map_err(|error| no_daemon(error.into()))?;
        connect(&socket, &address).map_err(|error| no_daemon(error.into()))?;
        // A daemon that is out of resources answers before it reads this.
        let sent = seqpacket::send(&socket, &join, &[]);
        let answer: Answer = match seqpacket::receive(&socket) {
            Ok(Some((answer, _))) => answer,
            Ok(None) => return Err(no_daemon(io::ErrorKind::ConnectionReset.into())),
            Err(error) => return Err(no_daemon(sent.err().unwrap_or(error))),
        };
        let settings = answer.settings().map_err(JoinError::Refused)?;
        Ok((Self { socket }, settings))
    }

    /// Takes the next message and its descriptors, waiting for it; none if the daemon has gone.
    ///
    /// # Errors
    /// The system's, or the packet is no message.
    pub fn receive(&self) -> io::Result<Option<(ToCard, Vec<OwnedFd>)>> {
        let Some((bytes, files)) = seqpacket::receive(&self.socket)? else { return Ok(None) };
        let message = ToCard::from_bytes(bytes).map_err(io::Error::other)?;
        Ok(Some((message, files)))
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The system's: the daemon has gone.
    pub fn send(&self, message: &ToDaemon) -> io::Result<()> {
        seqpacket::send(&self.socket, &message.bytes(), &[])
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
