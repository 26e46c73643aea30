//! The socket where cards join.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use cdna::{Command, Report};
use machine::{Accepted, Acceptor, listen_at};
use nic_session::host::{Applicant, refuse};
use nic_session::message::{ToCard, ToDaemon};
use rustix::net::SocketType;
use rustix::net::sockopt::socket_peercred;
use seqpacket::remove_socket;
use tracing::{info, warn};

use super::cards::Nics;
use super::vectors::Vectors;
use crate::config::Config;
use crate::daemon::error::Error;
use crate::daemon::thread::{spawn, spawn_for_client};

/// The listening socket. Dropping it removes its file.
pub struct Server {
    path: PathBuf,
}

impl Server {
    /// Serves cards until the process ends. None if the configuration has no card.
    pub fn start(config: &Config, nics: &Arc<Nics>) -> Result<Option<Self>, Error> {
        if config.nics.is_empty() {
            return Ok(None);
        }
        let path = config.nic_socket();
        // A socket here is left from a daemon that has ended: only one daemon can have the join socket,
        // and this one has bound it before.
        remove_socket(&path).map_err(Error::path(&path))?;
        let listening = listen_at(&path, SocketType::SEQPACKET, config.daemon.nic_mode);
        let listener = listening.map_err(Error::path(&path))?;
        info!(socket = %path.display(), "cards join here");
        let nics = nics.clone();
        spawn("nic socket", move || {
            let mut acceptor = Acceptor::new("cards");
            loop {
                match acceptor.accept(&listener) {
                    Accepted::Connection(socket) => start(socket, &nics),
                    Accepted::Excess(socket) => refuse(&socket, "the daemon is out of descriptors"),
                    Accepted::Stopped => return,
                }
            }
        })?;
        Ok(Some(Self { path }))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Somebody may have removed it already.
        let _ = remove_socket(&self.path);
    }
}

fn start(socket: OwnedFd, nics: &Arc<Nics>) {
    let nics = nics.clone();
    // If no thread starts, the card sees its connection end.
    let _ = spawn_for_client("card", move || {
        if let Err(error) = serve(socket, &nics) {
            warn!(%error, "a card's connection");
        }
    });
}

/// One card, from its join to its end.
fn serve(socket: OwnedFd, nics: &Nics) -> Result<(), Box<dyn std::error::Error>> {
    let process = socket_peercred(&socket)?.pid.as_raw_nonzero().get().unsigned_abs();
    let applicant = Applicant::receive(socket)?;
    let Some(card) = nics.card(applicant.name()) else {
        let why = format!(
            "no card {:?} in the configuration (there are: {}); add a [[nic]] and restart the daemon",
            applicant.name(),
            nics.names()
        );
        applicant.refuse(&why);
        return Ok(());
    };
    let seat = match card.take_seat(process) {
        Ok(seat) => seat,
        Err(other) => {
            let name = card.name();
            applicant.refuse(&format!("card {name:?} is process {other} already; stop that first"));
            return Ok(());
        }
    };
    let connection = applicant.accept(&card.settings())?;
    let vectors = Vectors::new()?;
    connection.send(&ToCard::Command(Command::Start), &vectors.for_card())?;
    let Some(ToDaemon::Report(Report::Hello(announcement))) = connection.receive()? else {
        return Err("the first message of the card is not its description".into());
    };
    let attached = nics.attach(card, connection, announcement)?;
    let handler = vectors.start(card.clone(), attached.clone())?;
    let result = loop {
        match attached.connection.receive() {
            Ok(Some(message)) => card.serve(&attached, message),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error.into()),
        }
    };
    // No interrupt comes after the links are down.
    drop(handler);
    drop(seat);
    result
}
