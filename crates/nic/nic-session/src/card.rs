//! The card's end of its connection to the daemon.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::net::{SocketAddrUnix, connect};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::Settings;
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
            Ok(Some(answer)) => answer,
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
        let Some((bytes, files)) = seqpacket::receive_with_descriptors(&self.socket)? else {
            return Ok(None);
        };
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

/// The version of this crate's packets, which both sides must share.
pub(crate) const VERSION: u32 = 1;
/// Bytes of the longest name.
const NAME_MAX: usize = 32;
/// Bytes of the longest answer.
const TEXT_MAX: usize = 4088;

/// A card's first packet: which one it is.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Join {
    pub(crate) version: u32,
    name: [u8; NAME_MAX],
}

impl Join {
    /// None if the name is too long to be any card's.
    pub(crate) fn new(text: &str) -> Option<Self> {
        let mut name = [0; NAME_MAX];
        name.get_mut(..text.len())?.copy_from_slice(text.as_bytes());
        Some(Self { version: VERSION, name })
    }

    pub(crate) fn name(&self) -> String {
        text(&self.name)
    }
}

/// The daemon's answer: settings, or a refusal.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Answer {
    is_refused: u32,
    version: u32,
    text: [u8; TEXT_MAX],
}

impl Answer {
    /// A refusal with a sentence for an operator.
    pub(crate) fn refused(why: &str) -> Self {
        Self::new(1, why)
    }

    /// None if the settings are too long.
    pub(crate) fn accepted(settings: &Settings) -> Option<Self> {
        let text = serde_json::to_string(settings).ok()?;
        (text.len() <= TEXT_MAX).then(|| Self::new(0, &text))
    }

    fn new(is_refused: u32, text: &str) -> Self {
        let mut answer = Self { is_refused, version: VERSION, text: [0; TEXT_MAX] };
        let len = text.floor_char_boundary(TEXT_MAX);
        answer.text[..len].copy_from_slice(&text.as_bytes()[..len]);
        answer
    }

    /// The settings, or why there are none.
    pub(crate) fn settings(&self) -> Result<Settings, String> {
        let text = text(&self.text);
        match self.is_refused {
            0 => serde_json::from_str(&text).map_err(|error| format!("its settings: {error}")),
            _ => Err(text),
        }
    }
}

/// The text up to its first NUL; invalid UTF-8 is replaced.
fn text(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::WireSettings;

    #[test]
    fn a_name_and_settings_survive_the_socket() {
        assert_eq!(Join::new("card0").unwrap().name(), "card0");
        let longest = "c".repeat(NAME_MAX);
        assert_eq!(Join::new(&longest).unwrap().name(), longest);
        assert!(Join::new(&"c".repeat(NAME_MAX + 1)).is_none());
        let wire = WireSettings { tap: "w0".to_owned(), ..WireSettings::default() };
        let mut settings = Settings { contexts: 32, rate_mbps: 1000, tso: true, wire };
        let answer = Answer::accepted(&settings).unwrap();
        assert_eq!(answer.settings(), Ok(settings.clone()));
        settings.wire.addresses = vec!["x".repeat(TEXT_MAX)];
        assert!(Answer::accepted(&settings).is_none());
        assert_eq!(Answer::refused("no").settings(), Err("no".to_owned()));
    }
}
