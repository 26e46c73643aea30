//! Connections with front-ends, one after the other.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

/// How long after a failure the next connection is tried.
const AGAIN: Duration = Duration::from_millis(500);

/// Who makes the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// This process, and the front-end connects.
    #[default]
    Server,
    /// The front-end, and this process connects, again and again.
    Client,
}

/// A socket that front-ends come by.
#[derive(Debug)]
pub enum Socket {
    /// They connect.
    Listening(UnixListener),
    /// This process connects.
    Connecting(Box<Path>),
}

impl Socket {
    /// Opens the socket at `path`. One that nobody listens at is replaced.
    ///
    /// # Errors
    /// The system's; [`AddrInUse`](io::ErrorKind::AddrInUse) if somebody listens.
    pub fn open(mode: Mode, path: &Path) -> io::Result<Self> {
        match mode {
            Mode::Client => Ok(Self::Connecting(path.into())),
            Mode::Server => {
                match UnixStream::connect(path) {
                    Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        std::fs::remove_file(path)?;
                    }
                    Err(_) => {}
                }
                Ok(Self::Listening(UnixListener::bind(path)?))
            }
        }
    }

    /// Waits for the next connection.
    pub fn next(&self) -> UnixStream {
        loop {
            let stream = match self {
                Self::Listening(listener) => listener.accept().map(|(stream, _)| stream),
                Self::Connecting(path) => UnixStream::connect(path),
            };
            match stream {
                Ok(stream) => return stream,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
    }
}
