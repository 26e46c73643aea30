//! Descriptors whose last close waits. A hostile process can send such descriptors.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;

/// How long the close waits, if its peer does not end the wait.
const LINGER: Duration = Duration::from_secs(60);
/// How long each of the two threads may take.
const LIMIT: Duration = Duration::from_secs(5);
/// The time between two polls.
const STEP: Duration = Duration::from_millis(1);

/// The peer of a socket whose last close waits until the peer has read what was sent. The peer never reads.
#[derive(Debug)]
pub struct SlowClose {
    peer: TcpStream,
    /// The target of the links in `/proc/self/fd` that are descriptors of the socket.
    link: PathBuf,
}

impl SlowClose {
    /// The peer, and the socket.
    ///
    /// # Errors
    /// The system's.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut socket = TcpStream::connect(listener.local_addr()?)?;
        let (peer, _) = listener.accept()?;
        set_socket_linger(&socket, Some(LINGER))?;
        socket.set_nonblocking(true)?;
        loop {
            match socket.write(&[0; 1 << 16]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                written => written?,
            };
        }
        let link = fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd()))?;
        Ok((Self { peer, link }, socket.into()))
    }

    /// Whether this process has a descriptor of the socket.
    fn is_open(&self) -> bool {
        let all = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let mut links = all.filter_map(|fd| fs::read_link(fd.path()).ok());
        links.any(|link| link == self.link)
    }

    /// Calls `close`, which closes the socket, on one thread, and `other` on a second one while the close waits. Returns whether `other`
    /// returned in time. True also if the close did not wait: a child before its `exec` may have the socket too.
    pub fn delays_not(self, close: impl FnOnce() + Send, other: impl FnOnce() + Send) -> bool {
        let until = Instant::now() + LIMIT;
        thread::scope(|scope| {
            let closing = scope.spawn(close);
            while self.is_open() && Instant::now() < until {
                thread::sleep(STEP);
            }
            let other = scope.spawn(other);
            while !other.is_finished() && !closing.is_finished() && Instant::now() < until {
                thread::sleep(STEP);
            }
            let returned = other.is_finished() || closing.is_finished();
            drop(self.peer);
            returned
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_lock_that_is_held_while_a_socket_is_closed_is_found() {
        let (slow, socket) = SlowClose::new().unwrap();
        let lock = Mutex::new(Some(socket));
        assert!(!slow.delays_not(|| *lock.lock().unwrap() = None, || drop(lock.lock().unwrap())));
        let (slow, socket) = SlowClose::new().unwrap();
        assert!(slow.delays_not(|| drop(socket), || ()));
    }
}
