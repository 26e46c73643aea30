//! Round-trip times through ordinary sockets, as a request-response program sees them.

use crate::transfer::{SOCKET_SLICE, accept, announce, connect, listen};
use crate::{Error, Interrupt, Namespace, Result};
use host::deadline::{Deadline, is_timeout};
use host::join;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Uncounted round trips at the start: they resolve addresses and warm caches.
const WARM_UP: u32 = 5;
/// How long a reply may take before its datagram counts as lost.
const LOST: Duration = Duration::from_secs(1);
/// The bytes of a datagram's number, which comes first, so that a late reply is not taken for the next one.
const NUMBER: usize = size_of::<u64>();

/// A series of requests, each sent after the reply to the one before it.
#[derive(Clone, Copy, Debug)]
pub struct RttProbe<'a> {
    /// Where requests are sent and timed.
    pub from: &'a Namespace,
    /// Where replies are sent.
    pub to: &'a Namespace,
    /// An address in `to`.
    pub address: IpAddr,
    /// How many round trips to time.
    pub count: u32,
    /// Bytes in each direction, at least 8.
    pub payload: usize,
    /// The pause between round trips. Zero keeps the path awake; a longer one includes the cost of waking it.
    pub interval: Duration,
}

impl<'a> RttProbe<'a> {
    /// Round trips of 64 bytes without a pause.
    #[must_use]
    pub fn new(
        from: &'a Namespace,
        to: &'a Namespace,
        address: impl Into<IpAddr>,
        count: u32,
    ) -> Self {
        Self { from, to, address: address.into(), count, payload: 64, interval: Duration::ZERO }
    }

    /// The same with a pause between round trips.
    #[must_use]
    pub fn every(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    /// Times round trips of datagrams, in order. A lost one is missing from the result, so that
    /// `count` minus its length is the number lost.
    pub fn udp(&self) -> Result<Vec<Duration>> {
        let address = self.address;
        let echo = move |ready: &mpsc::Sender<SocketAddr>, deadline: &Deadline| {
            let socket = UdpSocket::bind((address, 0))
                .map_err(Error::io(format!("cannot bind to {address}")))?;
            announce(ready, socket.local_addr())?;
            echo_datagrams(&socket, deadline)
        };
        let probe = Timer::of(self);
        self.against(echo, move |to, deadline| probe.datagrams(to, deadline))
    }

    /// Times round trips over one TCP connection without Nagle's algorithm, in order.
    pub fn tcp(&self) -> Result<Vec<Duration>> {
        let address = self.address;
        let echo = move |ready: &mpsc::Sender<SocketAddr>, deadline: &Deadline| {
            let listener = listen(address)?;
            announce(ready, listener.local_addr())?;
            echo_stream(&without_delay(accept(&listener, deadline)?)?, deadline)
        };
        let probe = Timer::of(self);
        self.against(echo, move |to, deadline| probe.stream(to, deadline))
    }

    /// Runs `echo` in one namespace and, once it has announced its address, `probe` in the other.
    fn against<E, P>(&self, echo: E, probe: P) -> Result<Vec<Duration>>
    where
        E: FnOnce(&mpsc::Sender<SocketAddr>, &Deadline) -> Result<()> + Send + 'static,
        P: FnOnce(SocketAddr, &Deadline) -> Result<Vec<Duration>> + Send + 'static,
    {
        let limit = (self.interval + LOST / 10) * (self.count + WARM_UP) + Duration::from_secs(15);
        let deadline =
            Deadline::new(format!("{} round trips to {}", self.count, self.address), limit);
        let (ready, listening) = mpsc::channel();
        let waiting = deadline.clone();
        let echo = self.to.thread(move || echo(&ready, &waiting))?;
        let Ok(destination) = listening.recv() else {
            return Err(join(echo).err().unwrap_or(Error::Interrupted));
        };
        let probing = deadline.clone();
        let times = self.from.thread(move || probe(destination, &probing)).and_then(join);
        deadline.stop();
        let echoed = join(echo);
        // If both failed, the probe's error is the first cause.
        let times = times?;
        echoed.map(|()| times)
    }
}

fn without_delay(stream: TcpStream) -> Result<TcpStream> {
    stream.set_nodelay(true).map_err(Error::io("cannot switch off Nagle's delay"))?;
    Ok(stream)
}

/// Sends every datagram back until the deadline is stopped.
fn echo_datagrams(socket: &UdpSocket, deadline: &Deadline) -> Result<()> {
    socket.set_read_timeout(Some(SOCKET_SLICE)).map_err(Error::io("cannot set a timeout"))?;
    let mut datagram = vec![0; usize::from(u16::MAX)];
    while !deadline.stopped() {
        match deadline.retry(|| socket.recv_from(&mut datagram)) {
            Ok((length, from)) => {
                deadline.retry(|| socket.send_to(&datagram[..length], from))?;
            }
            Err(Error::Interrupted) => break,
            Err(cause) => return Err(cause),
        }
    }
    Ok(())
}

/// Sends every byte back until the other end closes.
fn echo_stream(stream: &TcpStream, deadline: &Deadline) -> Result<()> {
    let mut bytes = vec![0; usize::from(u16::MAX)];
    loop {
        let count = match deadline.retry(|| (&mut &*stream).read(&mut bytes)) {
            Ok(0) | Err(Error::Interrupted) => return Ok(()),
            received => received?,
        };
        write_all(stream, &bytes[..count], deadline)?;
    }
}

fn write_all(stream: &TcpStream, bytes: &[u8], deadline: &Deadline) -> Result<()> {
    let mut written = 0;
    while written < bytes.len() {
        written += deadline.retry(|| (&mut &*stream).write(&bytes[written..]))?;
    }
    Ok(())
}

/// The timing half of a probe, without the borrowed namespaces.
struct Timer {
    count: u32,
    payload: usize,
    interval: Duration,
}

impl Timer {
    fn of(probe: &RttProbe<'_>) -> Self {
        Self { count: probe.count, payload: probe.payload.max(NUMBER), interval: probe.interval }
    }

    fn datagrams(&self, to: SocketAddr, deadline: &Deadline) -> Result<Vec<Duration>> {
        let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let socket =
            UdpSocket::bind((any, 0)).and_then(|socket| socket.connect(to).map(|()| socket));
        let socket = socket.map_err(Error::io(format!("cannot open a socket to {to}")))?;
        socket.set_read_timeout(Some(SOCKET_SLICE)).map_err(Error::io("cannot set a timeout"))?;
        let mut reply = vec![0; self.payload];
        self.series(deadline, |request| {
            let start = Instant::now();
            socket.send(request).map_err(Error::io(format!("cannot send to {to}")))?;
            while start.elapsed() < LOST {
                match socket.recv(&mut reply) {
                    Ok(length) if reply[..length] == *request => return Ok(Some(start.elapsed())),
                    // The late reply to a request that counted as lost.
                    Ok(_) => {}
                    Err(cause) if is_timeout(&cause) => Interrupt::check()?,
                    Err(cause) => return Err(Error::io(format!("no reply from {to}"))(cause)),
                }
            }
            Ok(None)
        })
    }

    fn stream(&self, to: SocketAddr, deadline: &Deadline) -> Result<Vec<Duration>> {
        let stream = without_delay(connect(to, deadline)?)?;
        let mut reply = vec![0; self.payload];
        self.series(deadline, |request| {
            let start = Instant::now();
            write_all(&stream, request, deadline)?;
            let mut received = 0;
            while received < request.len() {
                match deadline.retry(|| (&mut &stream).read(&mut reply[received..]))? {
                    0 => {
                        return Err(Error::Io {
                            what: format!("no reply from {to}"),
                            cause: std::io::ErrorKind::UnexpectedEof.into(),
                        });
                    }
                    count => received += count,
                }
            }
            Ok(Some(start.elapsed()))
        })
    }

    /// Makes the round trips, each with its own request, and returns the times of the counted ones that came back.
    fn series<F>(&self, deadline: &Deadline, mut round_trip: F) -> Result<Vec<Duration>>
    where
        F: FnMut(&[u8]) -> Result<Option<Duration>>,
    {
        let mut request = vec![0x5a; self.payload];
        let mut times = Vec::new();
        for number in 0..WARM_UP + self.count {
            deadline.check()?;
            request[..NUMBER].copy_from_slice(&u64::from(number).to_le_bytes());
            let time = round_trip(&request)?;
            times.extend(time.filter(|_| number >= WARM_UP));
            if !self.interval.is_zero() {
                Interrupt::sleep(self.interval)?;
            }
        }
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timer(count: u32) -> Timer {
        Timer { count, payload: 16, interval: Duration::ZERO }
    }

    fn deadline() -> Deadline {
        Deadline::new("a test", Duration::from_secs(60))
    }

    #[test]
    fn warm_up_and_lost_round_trips_are_not_counted() {
        let mut number = 0;
        let times = timer(4).series(&deadline(), |_| {
            number += 1;
            Ok((number != WARM_UP + 2).then(|| Duration::from_secs(number.into())))
        });
        let seconds: Vec<u64> = times.expect("no failure").iter().map(Duration::as_secs).collect();
        assert_eq!(seconds, [6, 8, 9]);
    }

    #[test]
    fn every_request_differs_from_the_one_before() {
        let mut seen = std::collections::BTreeSet::new();
        let times = timer(10).series(&deadline(), |request| {
            assert_eq!(request.len(), 16);
            assert!(seen.insert(request.to_vec()));
            Ok(None)
        });
        assert!(times.expect("no failure").is_empty());
    }

    #[test]
    fn datagrams_come_back_through_the_loopback() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let to = socket.local_addr().expect("address");
        let deadline = deadline();
        let waiting = deadline.clone();
        let echo = std::thread::spawn(move || echo_datagrams(&socket, &waiting));
        let times = timer(20).datagrams(to, &deadline).expect("probe");
        deadline.stop();
        assert!(join(echo).is_ok());
        assert_eq!(times.len(), 20);
    }

    #[test]
    fn a_late_reply_is_not_taken_for_the_next() {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let to = socket.local_addr().expect("address");
        let echo = std::thread::spawn(move || -> std::io::Result<()> {
            let mut request = [0; 16];
            for _ in 1..WARM_UP + 3 {
                let (_, from) = socket.recv_from(&mut request)?;
                socket.send_to(&request, from)?;
            }
            // The last request gets the previous reply again, and no reply to itself.
            let last_but_one = request;
            let (_, from) = socket.recv_from(&mut request)?;
            socket.send_to(&last_but_one, from).map(drop)
        });
        assert_eq!(timer(3).datagrams(to, &deadline()).expect("probe").len(), 2);
        echo.join().expect("no panic").expect("echo");
    }

    #[test]
    fn a_stream_that_ends_early_is_an_error() {
        let listener = listen([127, 0, 0, 1].into()).expect("listen");
        let to = listener.local_addr().expect("address");
        let closing = std::thread::spawn(move || listener.accept().map(drop));
        let error = timer(20).stream(to, &deadline()).expect_err("closed");
        assert!(matches!(error, Error::Io { .. }), "{error}");
        closing.join().expect("thread").expect("accepted");
    }
}
