//! Connections at a socket, one after the other, until there must be no further one.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use port::Doorbell;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use vhost_user::Socket;

use crate::daemon::thread::client_thread;

/// How long after a connection was refused the next one is: QEMU without `reconnect` comes again at once, for ever.
const REFUSED_AGAIN: Duration = Duration::from_millis(250);

/// Rings a doorbell when it is dropped, after a panic too.
struct RingAtEnd<'a>(&'a Doorbell);

impl Drop for RingAtEnd<'_> {
    fn drop(&mut self) {
        self.0.ring();
    }
}

/// How long after a failure the next connection is tried.
const AGAIN: Duration = Duration::from_millis(100);

/// The connections at a socket. One thread serves them; others end them.
pub(super) struct Connections {
    state: Mutex<State>,
    /// Rung when there must be no further one.
    stop: Doorbell,
    /// Connections that were closed at once, because another one was there.
    refused: AtomicU64,
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
        Ok(Self { state: Mutex::default(), stop: Doorbell::new()?, refused: AtomicU64::new(0) })
    }

    /// What announces that there must be no further connection.
    pub(super) fn stopped(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    /// Ends the present connection.
    pub(super) fn hang_up(&self) {
        if let Some(stream) = &self.state.lock().stream {
            // It can only fail when the session has ended already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Ends the present connection, and lets no other begin.
    pub(super) fn stop(&self) {
        self.state.lock().is_stopped = true;
        self.stop.ring();
        self.hang_up();
    }

    /// A session begins with this connection. Returns whether it may.
    pub(super) fn begin(&self, stream: &UnixStream) -> bool {
        let stream = stream.try_clone().ok();
        let mut state = self.state.lock();
        state.stream = stream;
        !state.is_stopped
    }

    /// The session has ended.
    pub(super) fn end(&self) {
        let stream = self.state.lock().stream.take();
        // Without the lock: the last close of a socket closes all descriptors that nobody has received, and may wait for each.
        drop(stream);
    }

    /// Connections that were closed at once, because another one was there.
    pub(super) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Does what is to be done with the present connection. Others that come meanwhile are closed at once, and `refused` is called: one that
    /// nobody accepts waits for ever, and its owner says nothing.
    pub(super) fn refusing_others<T>(
        &self,
        socket: &Socket,
        refused: impl Fn() + Send,
        work: impl FnOnce() -> T,
    ) -> T {
        let Socket::Listening(listener) = socket else { return work() };
        let Ok(end) = Doorbell::new() else { return work() };
        thread::scope(|scope| {
            let builder = thread::Builder::new().name(client_thread("vhost-user"));
            // Without a thread they wait.
            let _ = builder.spawn_scoped(scope, || self.refuse(listener, &end, refused));
            let _end = RingAtEnd(&end);
            work()
        })
    }

    /// Closes connections until `end` is rung, or the present one's other side has gone: the next one may be its successor.
    fn refuse(&self, listener: &UnixListener, end: &Doorbell, refused: impl Fn()) {
        loop {
            let mut fds = [PollFd::new(listener, PollFlags::IN), PollFd::new(end, PollFlags::IN)];
            // After an error, such as a signal, nobody is there.
            let is_there = poll(&mut fds, None).is_ok() && !fds[0].revents().is_empty();
            if !fds[1].revents().is_empty() || self.is_gone() {
                return;
            }
            if is_there && listener.accept().is_ok() {
                self.refused.fetch_add(1, Ordering::Relaxed);
                refused();
            }
            let limit = Timespec::try_from(REFUSED_AGAIN).ok();
            let _ = poll(&mut [PollFd::new(end, PollFlags::IN)], limit.as_ref());
        }
    }

    /// Whether the other side of the present connection has closed it.
    fn is_gone(&self) -> bool {
        let state = self.state.lock();
        let Some(stream) = &state.stream else { return true };
        let mut fds = [PollFd::new(stream, PollFlags::empty())];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1))
    }

    #[cfg(test)]
    pub(super) fn is_connected(&self) -> bool {
        self.state.lock().stream.is_some()
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

    /// Waits for `time`, or until there must be no further connection.
    pub(super) fn pause(&self, time: Duration) {
        self.wait(None::<&UnixStream>, Some(time));
    }

    fn is_open(&self) -> Option<()> {
        (!self.state.lock().is_stopped).then_some(())
    }

    /// Waits for a connection, the end, or a time.
    fn wait(&self, listener: Option<&impl AsFd>, limit: Option<Duration>) {
        let stop = PollFd::new(&self.stop, PollFlags::IN);
        let mut fds: Vec<_> =
            listener.map(|fd| PollFd::new(fd, PollFlags::IN)).into_iter().collect();
        fds.push(stop);
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        // After an error, such as a signal, the caller checks for itself.
        let _ = poll(&mut fds, limit.as_ref());
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::sync::Arc;

    use host::TempDir;
    use vhost_user::Mode;

    use super::*;

    #[test]
    fn a_listener_that_accepts_nobody_keeps_no_thread() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let socket = Socket::open(Mode::Client, &path, |_| Ok(())).unwrap();
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
        assert_eq!(
            Socket::open(Mode::Server, &path, |_| Ok(())).unwrap_err().kind(),
            io::ErrorKind::AddrInUse
        );
    }

    #[test]
    fn a_connection_that_closes_slowly_delays_nobody_who_ends_it() {
        let connections = Connections::new().unwrap();
        let (slow, socket) = lab::SlowClose::new().unwrap();
        assert!(connections.begin(&UnixStream::from(socket)));
        assert!(slow.delays_not(|| connections.end(), || connections.stop()));
    }

    #[test]
    fn a_second_connection_is_closed_and_one_after_the_first_is_served() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("socket");
        let socket = Socket::open(Mode::Server, &path, |_| Ok(())).unwrap();
        let connections = Connections::new().unwrap();
        let connect = || UnixStream::connect(&path).unwrap();
        let first = connect();
        let served = connections.next(&socket).unwrap();
        assert!(connections.begin(&served));
        let (refused, refusals) = std::sync::mpsc::channel();
        let successor = connections.refusing_others(
            &socket,
            move || refused.send(()).unwrap(),
            || {
                for count in 1..=3 {
                    let mut other = connect();
                    other.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                    // Goes on after a signal for another test.
                    assert_eq!(other.read_to_end(&mut Vec::new()).unwrap(), 0, "it is closed");
                    refusals.recv().unwrap();
                    assert_eq!(connections.refused(), count);
                }
                drop(first);
                connect()
            },
        );
        connections.end();
        let served = connections.next(&socket).unwrap();
        drop(served);
        assert_eq!((&successor).read_to_end(&mut Vec::new()).unwrap(), 0);
        assert_eq!(connections.refused(), 3, "the first one had gone");
    }
}
