//! Connections at a socket, one after the other, until there must be no further one.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use port::Doorbell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user::Socket;

/// How long after a failure the next connection is tried.
const AGAIN: Duration = Duration::from_millis(100);

/// The connections at a socket. One thread serves them; others end them.
pub(super) struct Connections {
    state: Mutex<State>,
    /// Rung when there must be no further one.
    stop: Doorbell,
}

#[derive(Default)]
struct State {
    /// The present one.
    stream: Option<UnixStream>,
    is_stopped: bool,
}

impl Connections {
    /// No connection has been made yet.
    ///
    /// # Errors
    /// The process is out of descriptors.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { state: Mutex::default(), stop: Doorbell::new()? })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What announces that there must be no further connection.
    pub(super) fn stopped(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    /// Ends the present connection.
    pub(super) fn hang_up(&self) {
        if let Some(stream) = &self.state().stream {
            // It can only fail when the session has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Ends the present connection, and lets no other begin.
    pub(super) fn stop(&self) {
        self.state().is_stopped = true;
        self.stop.ring();
        self.hang_up();
    }

    /// A session begins with this connection. Returns whether it may.
    pub(super) fn begin(&self, stream: &UnixStream) -> bool {
        let stream = stream.try_clone().ok();
        let mut state = self.state();
        state.stream = stream;
        !state.is_stopped
    }

    /// The session has ended.
    pub(super) fn end(&self) {
        self.state().stream = None;
    }

    #[cfg(test)]
    pub(super) fn is_connected(&self) -> bool {
        self.state().stream.is_some()
    }

    /// Waits for the next connection; none if there must be no further session.
    pub(super) fn next(&self, socket: &Socket) -> Option<UnixStream> {
        loop {
            if let Socket::Listening(listener) = socket {
                self.wait(Some(listener), None);
            }
            self.is_open()?;
            match socket.accept() {
                Ok(stream) => return Some(stream),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.pause(AGAIN),
            }
        }
    }

    /// Waits for so long, or until there must be no further connection.
    pub(super) fn pause(&self, time: Duration) {
        self.wait(None::<&UnixStream>, Some(time));
    }

    fn is_open(&self) -> Option<()> {
        (!self.state().is_stopped).then_some(())
    }

    /// Waits for a connection, the end, or a time.
    fn wait(&self, listener: Option<&impl AsFd>, limit: Option<Duration>) {
        let stop = PollFd::new(&self.stop, PollFlags::IN);
        let mut fds: Vec<_> =
            listener.map(|fd| PollFd::new(fd, PollFlags::IN)).into_iter().collect();
        fds.push(stop);
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // After an error, such as a signal, the caller looks for itself.
        let _ = poll(&mut fds, limit.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use std::thread;

    use lab::TempDir;
    use vhost_user::Mode;

    use super::*;

    #[test]
    fn a_listener_that_accepts_nobody_keeps_no_thread() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let socket = Socket::open(Mode::Client, &path).unwrap();
        let mut waiting = Vec::new();
        while let Ok(stream) = socket.accept() {
            waiting.push(stream);
        }
        let connections = Arc::new(Connections::new().unwrap());
        let next = thread::spawn({
            let connections = connections.clone();
            move || connections.next(&socket).is_none()
        });
        connections.stop();
        assert!(next.join().unwrap());
        assert_eq!(Socket::open(Mode::Server, &path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
