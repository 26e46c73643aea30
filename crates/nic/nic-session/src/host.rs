//! The daemon's end of a card's connection.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::Shutdown;
use rustix::net::sockopt::{Timeout, set_socket_timeout};

use crate::Settings;
use crate::card::{Answer, Join, VERSION};
use crate::message::{ToCard, ToDaemon};

/// How long a connection may take to say which card it is.
const JOIN_LIMIT: Duration = Duration::from_secs(5);
/// How long a card may take to read a message. One that takes longer hangs.
const SEND_LIMIT: Duration = Duration::from_secs(2);

/// A process that wants to be a card.
#[derive(Debug)]
pub struct Applicant {
    socket: OwnedFd,
    name: String,
}

impl Applicant {
    /// Reads the first packet of an accepted connection. Refuses another version's.
    ///
    /// # Errors
    /// The system's, or it is not a card's first packet.
    pub fn receive(socket: OwnedFd) -> io::Result<Self> {
        set_socket_timeout(&socket, Timeout::Recv, Some(JOIN_LIMIT))?;
        let Some(join) = seqpacket::receive::<Join>(&socket)? else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        set_socket_timeout(&socket, Timeout::Recv, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(SEND_LIMIT))?;
        let this = Self { socket, name: join.name() };
        if join.version != VERSION {
            this.refuse(&format!("this daemon speaks version {VERSION} of the protocol of cards"));
            return Err(io::Error::other("another version"));
        }
        Ok(this)
    }

    /// The name that it claims.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Says why it is not a card, in a sentence for an operator.
    pub fn refuse(self, why: &str) {
        refuse(&self.socket, why);
    }

    /// Accepts it.
    ///
    /// # Errors
    /// The system's, or the settings are too long for a packet.
    pub fn accept(self, settings: &Settings) -> io::Result<Connection> {
        let answer = Answer::accepted(settings)
            .ok_or_else(|| io::Error::other("the card's settings are too long"))?;
        seqpacket::send(&self.socket, &answer, &[])?;
        Ok(Connection { socket: self.socket })
    }
}

/// Refuses a connection before its first packet is read.
pub fn refuse(socket: &OwnedFd, why: &str) {
    // It may have gone.
    let _ = seqpacket::send(socket, &Answer::refused(why), &[]);
}

/// The connection of a card.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
}

impl Connection {
    /// Waits for the next message; none if the card has gone.
    ///
    /// # Errors
    /// The system's, or the packet is no message.
    pub fn receive(&self) -> io::Result<Option<ToDaemon>> {
        let Some(bytes) = seqpacket::receive(&self.socket)? else { return Ok(None) };
        ToDaemon::from_bytes(bytes).map(Some).map_err(io::Error::other)
    }

    /// Sends a message and copies of descriptors.
    ///
    /// # Errors
    /// The card has gone, or does not read.
    pub fn send(&self, message: &ToCard, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        seqpacket::send(&self.socket, &message.bytes(), files)
    }

    /// Ends the connection: [`receive`](Self::receive) returns none.
    pub fn close(&self) {
        // It can only fail when it is closed already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use cdna::{Announcement, Command, Report};
    use machine::{Accepted, Acceptor, listen_at};
    use rustix::net::SocketType;

    use super::*;
    use crate::{WireSettings, card};

    #[test]
    fn a_card_joins_and_talks_to_the_daemon() {
        let folder = lab_folder();
        let path = folder.join("nic.sock");
        let listener = listen_at(&path, SocketType::SEQPACKET, 0o600).unwrap();
        let wire = WireSettings { tap: "w0".to_owned(), ..WireSettings::default() };
        let settings = Settings { contexts: 4, rate_mbps: 10, tso: false, wire };
        let expected = settings.clone();
        let daemon = std::thread::spawn(move || {
            let mut acceptor = Acceptor::new("cards");
            let mut next = || match acceptor.accept(&listener) {
                Accepted::Connection(socket) => Applicant::receive(socket).unwrap(),
                Accepted::Excess(_) | Accepted::Stopped => panic!("not accepted"),
            };
            let stranger = next();
            assert_eq!(stranger.name(), "mallory");
            stranger.refuse("no such card");
            let connection = next().accept(&settings).unwrap();
            let hello = Report::Hello(Announcement::new(4, 0));
            assert_eq!(connection.receive().unwrap(), Some(ToDaemon::Report(hello)));
            let (reader, _writer) = rustix::pipe::pipe().unwrap();
            let message = ToCard::AddMemory { base: 1 << 40, len: 4096 };
            connection.send(&message, &[reader.as_fd()]).unwrap();
            connection.send(&ToCard::Command(Command::Start), &[]).unwrap();
            assert_eq!(connection.receive().unwrap(), None);
        });
        let refused = card::Connection::join(&path, "mallory").unwrap_err();
        assert_eq!(refused.to_string(), "the daemon refused: no such card");
        let (card, settings) = card::Connection::join(&path, "card0").unwrap();
        assert_eq!(settings, expected);
        card.send(&ToDaemon::Report(Report::Hello(Announcement::new(4, 0)))).unwrap();
        let (message, files) = card.receive().unwrap().unwrap();
        assert_eq!(message, ToCard::AddMemory { base: 1 << 40, len: 4096 });
        assert_eq!(files.len(), 1);
        let (message, files) = card.receive().unwrap().unwrap();
        assert_eq!((message, files.len()), (ToCard::Command(Command::Start), 0));
        drop(card);
        daemon.join().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let error = card::Connection::join(&path, "card0").unwrap_err().to_string();
        assert!(error.contains("pvnet run") && error.contains("[[nic]]"), "{error}");
    }

    /// How long it takes until an operation fails.
    fn time_to_fail<T>(operation: impl FnOnce() -> io::Result<T>) -> Duration {
        let begin = std::time::Instant::now();
        assert!(operation().is_err());
        begin.elapsed()
    }

    #[test]
    fn a_connection_that_says_nothing_is_given_up() {
        let (ours, _theirs) = seqpacket::pair().unwrap();
        let took = time_to_fail(|| Applicant::receive(ours));
        assert!((JOIN_LIMIT..4 * JOIN_LIMIT).contains(&took), "{took:?}");
    }

    #[test]
    fn a_card_that_reads_nothing_is_given_up() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        seqpacket::send(&theirs, &Join::new("card0").unwrap(), &[]).unwrap();
        let wire = WireSettings { tap: "w0".to_owned(), ..WireSettings::default() };
        let settings = Settings { contexts: 4, rate_mbps: 10, tso: false, wire };
        let card = Applicant::receive(ours).unwrap().accept(&settings).unwrap();
        let message = ToCard::Command(Command::Start);
        let took = time_to_fail(|| (0..100_000).try_for_each(|_| card.send(&message, &[])));
        assert!((SEND_LIMIT..4 * SEND_LIMIT).contains(&took), "{took:?}");
    }

    fn lab_folder() -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("pvnet-nic-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }
}
