//! Descriptors whose last close waits, as one that a hostile process sends may.

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
/// How long the others may take.
const LIMIT: Duration = Duration::from_secs(5);
/// The time between two looks.
const STEP: Duration = Duration::from_millis(1);

/// The peer of a socket whose last close waits until it has taken what was sent, which it never does.
#[derive(Debug)]
pub struct SlowClose {
    peer: TcpStream,
    /// What the kernel's links to the socket say.
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

    /// Has one thread close the socket, and calls `other` on another one while the close waits. Returns whether `other` returned before the
    /// close did, or the close did not wait: it does not if a child that is about to be executed has the socket too.
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
