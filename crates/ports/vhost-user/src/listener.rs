//! Connections with front-ends, one after the other.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use seqpacket::remove_socket;

/// Who makes the socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// This process, and the front-end connects.
    #[default]
    Server,
    /// The front-end, and this process connects, again and again.
    Client,
}

/// Connections that wait to be accepted, as the standard library has them.
const BACKLOG: i32 = 128;

/// A socket that front-ends come by.
#[derive(Debug)]
pub enum Socket {
    /// They connect.
    Listening(UnixListener),
    /// This process connects.
    Connecting(Box<Path>),
}

impl Socket {
    /// Opens the socket at `path`. One that nobody listens at is replaced; another file is left alone. A file that is made is prepared before anybody can connect.
    ///
    /// # Errors
    /// The system's, and those of `prepare`; [`AddrInUse`](io::ErrorKind::AddrInUse) if somebody listens, and
    /// [`AlreadyExists`](io::ErrorKind::AlreadyExists) if the file there is no socket.
    pub fn open(
        mode: Mode,
        path: &Path,
        prepare: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<Self> {
        match mode {
            Mode::Client => Ok(Self::Connecting(path.into())),
            Mode::Server => {
                match connect(path) {
                    Ok(_) => return Err(io::ErrorKind::AddrInUse.into()),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        return Err(io::ErrorKind::AddrInUse.into());
                    }
                    Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                        remove_socket(path)?;
                    }
                    // In a sandbox without connections the kernel's list says whether somebody does.
                    Err(error) if error.kind() == io::ErrorKind::Unsupported && path.exists() => {
                        match listens(&std::fs::read_to_string(SOCKETS)?, path) {
                            true => return Err(io::ErrorKind::AddrInUse.into()),
                            // It says nothing about files that are no sockets.
                            false => remove_socket(path)?,
                        }
                    }
                    Err(_) => {}
                }
                Ok(Self::Listening(listen(path, prepare)?))
            }
        }
    }

    /// The next connection, whose messages say who sent them. Waits for one that is accepted, but not for a listener with a full queue.
    ///
    /// # Errors
    /// The system's.
    pub fn accept(&self) -> io::Result<UnixStream> {
        match self {
            Self::Listening(listener) => listener.accept().map(|(stream, _)| stream),
            Self::Connecting(path) => connect(path),
        }
    }
}

/// The Unix sockets of this network namespace.
const SOCKETS: &str = "/proc/self/net/unix";
/// The flags of one that listens: `__SO_ACCEPTON` of the kernel.
const LISTENS: &str = "00010000";

/// Whether a list of sockets has one that listens at a path.
fn listens(sockets: &str, path: &Path) -> bool {
    let named = format!(" {}", path.display());
    let mut lines = sockets.lines().filter(|line| line.ends_with(&named));
    lines.any(|line| line.split_ascii_whitespace().nth(3) == Some(LISTENS))
}

/// Makes the socket's file, and listens.
fn listen(path: &Path, prepare: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<UnixListener> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // Connections have it from here: what is sent before one is accepted has a sender too.
    set_socket_passcred(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    // Until it listens, connections are refused.
    let listening = prepare(path).and_then(|()| Ok(rustix::net::listen(&socket, BACKLOG)?));
    if let Err(error) = listening {
        // The first error is the one to report.
        let _ = remove_socket(path);
        return Err(error);
    }
    Ok(socket.into())
}

/// Connects without waiting: a listener that accepts nobody, and so has a full queue, keeps no thread.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    // Not before: the kernel would give it a name. What is sent until then has no sender, and what comes later has one.
    set_socket_passcred(&stream, true)?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use lab::TempDir;

    use super::*;

    /// `connect` refuses a regular file as it refuses a socket that nobody listens at.
    #[test]
    fn a_socket_that_is_left_is_replaced_and_another_file_is_left_alone() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("vm.sock");
        let open = || Socket::open(Mode::Server, &path, |_| Ok(()));
        drop(open().unwrap());
        assert!(path.exists(), "the file of a daemon that was killed");
        drop(open().unwrap());
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "precious").unwrap();
        let error = open().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists, "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn the_kernels_list_says_who_listens() {
        let folder = std::env::temp_dir().join(format!("listens {}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("vm");
        let is_listed = || listens(&std::fs::read_to_string(SOCKETS).unwrap(), &path);
        assert!(!is_listed());
        let listener = UnixListener::bind(&path).unwrap();
        assert!(is_listed() && !listens(&std::fs::read_to_string(SOCKETS).unwrap(), &folder));
        drop(listener);
        assert!(path.exists() && !is_listed());
        std::fs::remove_dir_all(folder).unwrap();
    }
}
