//! What both ends do with their sockets.

use std::os::fd::AsFd;

use crate::error::{Error, Result};

/// The port of a server.
pub const PORT: u16 = 5301;

/// What a connection's first byte asks the server for.
pub(super) mod request {
    /// To read.
    pub const READ: u8 = b'r';
    /// To send.
    pub const SEND: u8 = b's';
}

/// Chooses a socket's congestion control, if one is given.
pub(super) fn set_congestion(socket: impl AsFd, name: Option<&str>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let set = rustix::net::sockopt::set_tcp_congestion(socket, name);
    set.map_err(|errno| failed(&format!("cannot use congestion control {name}"))(errno.into()))
}

/// A message about a failed system call.
pub(super) fn failed(what: &str) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::Failed(format!("{what}: {error}"))
}
