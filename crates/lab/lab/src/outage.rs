//! Measures the longest pause in traffic while something else happens, and counts lost datagrams.

use std::collections::HashSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use host::deadline::Deadline;
use host::join;
use rustix::net::sockopt;

use crate::transfer::{Arrivals, SOCKET_SLICE, accept, announce, connect, listen};
use crate::{Error, Interrupt, Namespace, Result};

/// Bytes of a datagram's payload, which begins with the datagram's number.
const DATAGRAM: usize = 64;
/// Bytes that are written to a stream at once.
const CHUNK: usize = 64 * 1024;
/// Traffic ends after this time in any case.
const LIMIT: Duration = Duration::from_secs(300);
/// Bytes that a receiver's socket can hold.
const RECEIVE_BUFFER: usize = 4 << 20;
/// How long datagrams may be on their way after the last one was sent.
const LATE: Duration = Duration::from_secs(1);

/// Where the receiving end announces its address.
type Ready = mpsc::Sender<SocketAddr>;

/// What happened to traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The longest time in which nothing arrived.
    pub longest: Duration,
    /// Datagrams that did not arrive.
    pub lost: u64,
    /// Datagrams that arrived more than once.
    pub repeated: u64,
}

/// Gives a socket room for datagrams that arrive while its thread does not run.
///
/// # Errors
/// The system's error.
pub fn enlarge_receive_buffer(socket: &UdpSocket) -> std::io::Result<()> {
    // Root may have more than the system's limit.
    if sockopt::set_socket_recv_buffer_size_force(socket, RECEIVE_BUFFER).is_err() {
        sockopt::set_socket_recv_buffer_size(socket, RECEIVE_BUFFER)?;
    }
    Ok(())
}

/// Traffic from one namespace to another, until [`finish`](Self::finish).
#[derive(Debug)]
pub struct OutageProbe {
    sending: Deadline,
    receiving: Deadline,
    /// Bytes that have arrived.
    bytes: Arc<AtomicU64>,
    sender: JoinHandle<Result<u64>>,
    receiver: JoinHandle<Result<Datagrams>>,
}

impl OutageProbe {
    /// Sends a small datagram to `address` in `to` every `interval`.
    pub fn datagrams(
        from: &Namespace,
        to: &Namespace,
        address: impl Into<IpAddr>,
        interval: Duration,
    ) -> Result<Self> {
        let address = address.into();
        let receive = move |ready: &Ready, arrivals: Arrivals, deadline: &Deadline| {
            let mut datagrams = Datagrams { arrivals, numbers: HashSet::new(), repeated: 0 };
            let socket = UdpSocket::bind((address, 0));
            let socket = socket.map_err(Error::io(format!("cannot bind to {address}")))?;
            enlarge_receive_buffer(&socket).map_err(Error::io("cannot enlarge a buffer"))?;
            socket
                .set_read_timeout(Some(SOCKET_SLICE))
                .map_err(Error::io("cannot set a timeout"))?;
            announce(ready, socket.local_addr())?;
            let mut datagram = [0; DATAGRAM];
            while let Some(length) = until_stopped(deadline.retry(|| socket.recv(&mut datagram)))? {
                datagrams.arrivals.note(length);
                let (number, _) = datagram.split_at(size_of::<u64>());
                datagrams.note(number.try_into().map(u64::from_le_bytes).unwrap_or(u64::MAX));
            }
            Ok(datagrams)
        };
        let send = move |to: SocketAddr, deadline: &Deadline| {
            let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
            let socket = UdpSocket::bind((any, 0)).map_err(Error::io("cannot open a socket"))?;
            let (mut datagram, mut sent) = ([0; DATAGRAM], 0u64);
            loop {
                datagram[..size_of::<u64>()].copy_from_slice(&sent.to_le_bytes());
                let done = deadline.retry(|| socket.send_to(&datagram, to));
                if until_stopped(done)?.is_none() {
                    return Ok(sent);
                }
                sent += 1;
                std::thread::sleep(interval);
            }
        };
        Self::start(from, to, receive, send)
    }

    /// Writes to a TCP connection to `address` in `to`, as fast as it accepts bytes.
    pub fn stream(from: &Namespace, to: &Namespace, address: impl Into<IpAddr>) -> Result<Self> {
        let address = address.into();
        let receive = move |ready: &Ready, mut arrivals: Arrivals, deadline: &Deadline| {
            let listener = listen(address)?;
            announce(ready, listener.local_addr())?;
            let stream = accept(&listener, deadline)?;
            let mut chunk = vec![0; CHUNK];
            while let Some(length @ 1..) =
                until_stopped(deadline.retry(|| (&stream).read(&mut chunk)))?
            {
                arrivals.note(length);
            }
            Ok(Datagrams { arrivals, numbers: HashSet::new(), repeated: 0 })
        };
        let send = move |to: SocketAddr, deadline: &Deadline| {
            let stream = connect(to, deadline)?;
            let chunk = vec![0; CHUNK];
            while until_stopped(deadline.retry(|| (&stream).write(&chunk)))?.is_some() {}
            Ok(0)
        };
        Self::start(from, to, receive, send)
    }

    /// Runs `receive` in `to` and, once it has announced its address, `send` in `from`. `send` returns how many datagrams
    /// it has sent.
    fn start<R, S>(from: &Namespace, to: &Namespace, receive: R, send: S) -> Result<Self>
    where
        R: FnOnce(&Ready, Arrivals, &Deadline) -> Result<Datagrams> + Send + 'static,
        S: FnOnce(SocketAddr, &Deadline) -> Result<u64> + Send + 'static,
    {
        let deadline = || Deadline::new("traffic under way", LIMIT);
        let (sending, receiving) = (deadline(), deadline());
        let bytes = Arc::new(AtomicU64::new(0));
        let (ready, listening) = mpsc::channel();
        let (arrivals, waiting) = (Arrivals::new(bytes.clone()), receiving.clone());
        let receiver = to.thread(move || receive(&ready, arrivals, &waiting))?;
        let Ok(destination) = listening.recv() else {
            return Err(join(receiver).err().unwrap_or(Error::Interrupted));
        };
        let until = sending.clone();
        let sender = from.thread(move || send(destination, &until))?;
        Ok(Self { sending, receiving, bytes, sender, receiver })
    }

    /// Bytes of payload that have arrived so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Ends the traffic, and returns what happened to it.
    pub fn finish(self) -> Result<Outage> {
        self.sending.stop();
        let sent = join(self.sender);
        if let Ok(1..) = sent {
            Interrupt::sleep(LATE)?;
        }
        self.receiving.stop();
        let arrivals = join(self.receiver);
        Interrupt::check()?;
        let Datagrams { arrivals, numbers, repeated } = arrivals?;
        let longest = arrivals.longest_pause();
        Ok(Outage { longest, lost: sent?.saturating_sub(numbers.len() as u64), repeated })
    }
}

/// `None` if the operation was stopped.
fn until_stopped<T>(done: Result<T>) -> Result<Option<T>> {
    match done {
        Err(Error::Interrupted) => Ok(None),
        done => done.map(Some),
    }
}

/// What has arrived. A stream has no numbers.
#[derive(Debug)]
struct Datagrams {
    arrivals: Arrivals,
    numbers: HashSet<u64>,
    repeated: u64,
}

impl Datagrams {
    fn note(&mut self, number: u64) {
        self.repeated += u64::from(!self.numbers.insert(number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_count_once() {
        let arrivals = Arrivals::new(Arc::default());
        let mut datagrams = Datagrams { arrivals, numbers: HashSet::new(), repeated: 0 };
        for number in [0, 1, 1, 3] {
            datagrams.note(number);
        }
        assert_eq!((datagrams.numbers.len(), datagrams.repeated), (3, 1));
    }
}
