//! Clients of the daemon's servers: how many there may be at a time, and how long one may take.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};

/// A server's clients.
pub(super) struct Clients {
    most: usize,
    count: AtomicUsize,
}

impl Clients {
    /// No clients yet, and never more than `most`.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, count: AtomicUsize::new(0) })
    }

    /// Counts a client until the result is dropped; none if there are too many.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Client> {
        let more = |count| (count < self.most).then_some(count + 1);
        self.count.try_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Client(self.clone()))
    }
}

/// A client that is served.
pub(super) struct Client(Arc<Clients>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A client's stream. All reads and writes together must end in time: a limit for each of them would
/// let a client that sends one byte at a time hold its place for hours.
pub(super) struct Timed<'a, S> {
    stream: &'a S,
    end: Instant,
}

impl<'a, S: AsFd> Timed<'a, S> {
    /// Time runs from now.
    pub(super) fn new(stream: &'a S, limit: Duration) -> Self {
        Self { stream, end: Instant::now() + limit }
    }

    /// Bounds the next operation by the time that is left.
    fn bound(&self, operation: Timeout) -> io::Result<()> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(set_socket_timeout(self.stream, operation, Some(left))?)
    }
}

impl<'a, S: AsFd> Read for Timed<'a, S>
where
    &'a S: Read,
{
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.bound(Timeout::Recv)?;
        let mut stream = self.stream;
        stream.read(bytes)
    }
}

impl<'a, S: AsFd> Write for Timed<'a, S>
where
    &'a S: Write,
{
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bound(Timeout::Send)?;
        let mut stream = self.stream;
        stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn clients_are_counted() {
        let clients = Clients::new(2);
        let held = [clients.enter(), clients.enter()];
        assert!(held.iter().all(Option::is_some) && clients.enter().is_none());
        drop(held);
        assert!(clients.enter().is_some());
    }

    #[test]
    fn a_stream_that_trickles_ends_in_time() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let trickle = std::thread::spawn(move || {
            // Until the other end closes.
            while (&theirs).write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let read = Timed::new(&ours, Duration::from_millis(100)).read_to_end(&mut Vec::new());
        // The kernel's timeout is WouldBlock.
        use io::ErrorKind::{TimedOut, WouldBlock};
        assert!(matches!(read.unwrap_err().kind(), TimedOut | WouldBlock));
        drop(ours);
        trickle.join().unwrap();
    }

    #[test]
    fn a_stream_that_is_not_read_ends_in_time() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let written = Timed::new(&ours, Duration::from_millis(100)).write_all(&[0; 16 << 20]);
        assert!(written.is_err());
    }
}
