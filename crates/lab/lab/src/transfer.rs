//! A transfer that checks every byte, and notes when bytes arrive.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use host::deadline::Deadline;
use host::join;
use sha2::{Digest as _, Sha256};

use crate::{Error, Namespace, Result};

/// The slowest acceptable path, in bytes per second.
const SLOWEST: u64 = 1 << 20;
/// How long one socket call may block before the deadline is checked.
pub(crate) const SOCKET_SLICE: Duration = Duration::from_millis(100);
const CHUNK: usize = 64 * 1024;

/// A transfer that arrived unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// Bytes sent and received.
    pub bytes: u64,
    /// From the accepted connection to the last byte. Both ends compute digests meanwhile, so it does not measure the
    /// path's speed.
    pub duration: Duration,
    /// The longest time in which nothing arrived.
    pub longest_pause: Duration,
    /// The digest of both ends, in hexadecimal.
    pub sha256: String,
    /// The sender's address, as the receiver sees it.
    pub source: IpAddr,
}

/// The result at one end.
struct Seen {
    bytes: u64,
    sha256: String,
    duration: Duration,
    longest_pause: Duration,
    /// The address of the other end.
    peer: IpAddr,
}

/// Sends a file of `bytes` pseudo-random bytes, the same for the same `seed`, over TCP from one namespace to `address`
/// in another. Each end computes SHA-256 over what it sent or received.
pub fn transfer_file(
    from: &Namespace,
    to: &Namespace,
    address: impl Into<IpAddr>,
    bytes: u64,
    seed: u64,
) -> Result<Transfer> {
    RunningTransfer::start(from, to, address, bytes, seed)?.finish()
}

/// As [`transfer_file`] through a router that translates addresses: `to` listens at the first address, and `from` connects to the second.
pub fn transfer_translated_file(
    from: &Namespace,
    to: &Namespace,
    addresses: (IpAddr, IpAddr),
    bytes: u64,
    seed: u64,
) -> Result<Transfer> {
    RunningTransfer::start_translated(from, to, addresses, bytes, seed)?.finish()
}

/// A transfer under way.
#[derive(Debug)]
pub struct RunningTransfer {
    deadline: Deadline,
    /// Bytes that have arrived.
    arrived: Arc<AtomicU64>,
    sender: JoinHandle<Result<Seen>>,
    receiver: JoinHandle<Result<Seen>>,
}

impl RunningTransfer {
    /// Begins what [`transfer_file`] does.
    pub fn start(
        from: &Namespace,
        to: &Namespace,
        address: impl Into<IpAddr>,
        bytes: u64,
        seed: u64,
    ) -> Result<Self> {
        let address = address.into();
        Self::start_translated(from, to, (address, address), bytes, seed)
    }

    fn start_translated(
        from: &Namespace,
        to: &Namespace,
        (own, address): (IpAddr, IpAddr),
        bytes: u64,
        seed: u64,
    ) -> Result<Self> {
        let limit = Duration::from_secs(15 + bytes / SLOWEST);
        let deadline = Deadline::new(format!("a transfer of {bytes} bytes to {address}"), limit);

        let (ready, listening) = mpsc::channel();
        let waiting = deadline.clone();
        let arrived = Arc::default();
        let arrivals = Arrivals::new(Arc::clone(&arrived));
        let receiver = to.thread(move || {
            let listener = listen(own)?;
            announce(&ready, listener.local_addr())?;
            receive(&accept(&listener, &waiting)?, arrivals, &waiting)
        })?;
        let Ok(listener) = listening.recv() else {
            return Err(join(receiver).err().unwrap_or(Error::Interrupted));
        };
        let destination = SocketAddr::new(address, listener.port());

        let sending = deadline.clone();
        let sender = from.thread(move || {
            let sent = send(destination, bytes, seed, &sending);
            if sent.is_err() {
                sending.stop();
            }
            sent
        })?;
        Ok(Self { deadline, arrived, sender, receiver })
    }

    /// Bytes that have arrived so far.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// Whether it has ended, well or not.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.deadline.stopped() || self.receiver.is_finished()
    }

    /// Waits for its end.
    pub fn finish(self) -> Result<Transfer> {
        let sent = join(self.sender);
        let received = join(self.receiver);
        compare(&sent?, received?)
    }
}

/// Listens at any free port of `address`.
pub(crate) fn listen(address: IpAddr) -> Result<TcpListener> {
    TcpListener::bind((address, 0)).map_err(Error::io(format!("cannot listen at {address}")))
}

/// Tells the thread that starts the other end where this end listens.
pub(crate) fn announce(
    ready: &mpsc::Sender<SocketAddr>,
    address: std::io::Result<SocketAddr>,
) -> Result<()> {
    // The receiver exists: it waits for this, or for the channel to close.
    let _ = ready.send(address.map_err(Error::io("cannot learn the port"))?);
    Ok(())
}

/// The next connection, with short timeouts set.
pub(crate) fn accept(listener: &TcpListener, deadline: &Deadline) -> Result<TcpStream> {
    deadline.readable(listener)?;
    let (stream, _) = listener.accept().map_err(Error::io("cannot accept a connection"))?;
    with_timeouts(stream)
}

/// A connection, with short timeouts set.
pub(crate) fn connect(to: SocketAddr, deadline: &Deadline) -> Result<TcpStream> {
    deadline.check()?;
    let limit = deadline.left().max(SOCKET_SLICE);
    let stream = TcpStream::connect_timeout(&to, limit)
        .map_err(Error::io(format!("cannot connect to {to}")))?;
    with_timeouts(stream)
}

fn with_timeouts(stream: TcpStream) -> Result<TcpStream> {
    let set = stream
        .set_read_timeout(Some(SOCKET_SLICE))
        .and_then(|()| stream.set_write_timeout(Some(SOCKET_SLICE)));
    set.map_err(Error::io("cannot set a timeout"))?;
    Ok(stream)
}

fn send(to: SocketAddr, bytes: u64, seed: u64, deadline: &Deadline) -> Result<Seen> {
    let stream = connect(to, deadline)?;
    let start = Instant::now();
    let mut random = Random::new(seed);
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let length = usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK));
        random.fill(&mut chunk[..length]);
        digest.update(&chunk[..length]);
        let mut sent = 0;
        while sent < length {
            sent += deadline.retry(|| (&stream).write(&chunk[sent..length]))?;
        }
        left -= length as u64;
    }
    stream.shutdown(Shutdown::Write).map_err(Error::io("cannot finish sending"))?;
    let sha256 = hexadecimal(&digest.finalize());
    let (duration, longest_pause) = (start.elapsed(), Duration::ZERO);
    Ok(Seen { bytes, sha256, duration, longest_pause, peer: to.ip() })
}

fn receive(stream: &TcpStream, mut arrivals: Arrivals, deadline: &Deadline) -> Result<Seen> {
    let start = Instant::now();
    let peer = stream.peer_addr().map_err(Error::io("cannot learn the sender's address"))?.ip();
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        let count = deadline.retry(|| (&mut &*stream).read(&mut chunk))?;
        if count == 0 {
            return Ok(Seen {
                bytes: arrivals.bytes(),
                sha256: hexadecimal(&digest.finalize()),
                duration: start.elapsed(),
                longest_pause: arrivals.longest_pause(),
                peer,
            });
        }
        digest.update(&chunk[..count]);
        arrivals.note(count);
    }
}

fn compare(sent: &Seen, received: Seen) -> Result<Transfer> {
    if (sent.bytes, &sent.sha256) == (received.bytes, &received.sha256) {
        return Ok(Transfer {
            bytes: received.bytes,
            duration: received.duration,
            longest_pause: received.longest_pause,
            sha256: received.sha256,
            source: received.peer,
        });
    }
    Err(Error::Corrupted {
        sent_bytes: sent.bytes,
        sent: sent.sha256.clone(),
        received_bytes: received.bytes,
        received: received.sha256,
    })
}

/// Bytes as text, two digits each.
#[must_use]
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What has arrived at one end: the number of bytes, which others may watch, and the longest pause between two arrivals.
#[derive(Debug)]
pub(crate) struct Arrivals {
    bytes: Arc<AtomicU64>,
    last: Option<Instant>,
    longest: Duration,
}

impl Arrivals {
    pub fn new(bytes: Arc<AtomicU64>) -> Self {
        Self { bytes, last: None, longest: Duration::ZERO }
    }

    /// Notes an arrival now.
    pub fn note(&mut self, length: usize) {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.longest = self.longest.max(now - last);
        }
        self.bytes.fetch_add(length as u64, Ordering::Relaxed);
    }

    /// Bytes so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The longest time in which nothing arrived, between the first arrival and the last.
    pub fn longest_pause(&self) -> Duration {
        self.longest
    }
}

/// Random numbers by Marsaglia's xorshift64: three shifts for eight bytes. They have no pattern that a checksum could miss or a
/// compressor use.
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Equal seeds give equal numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Zero is the only state that never changes. Small seeds would begin with many zero bits.
        Self(NonZeroU64::new(seed ^ 0x9e37_79b9_7f4a_7c15).map_or(1, NonZeroU64::get))
    }

    /// Fills bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        let (words, rest) = bytes.as_chunks_mut();
        words.iter_mut().for_each(|word| *word = self.word().to_le_bytes());
        if !rest.is_empty() {
            rest.copy_from_slice(&self.word().to_le_bytes()[..rest.len()]);
        }
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u16) -> u16 {
        u16::try_from(self.word() % u64::from(n)).unwrap_or(0)
    }

    fn word(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        Random::new(seed).fill(&mut bytes);
        bytes
    }

    #[test]
    fn a_seed_decides_the_bytes() {
        assert_eq!(bytes(7), bytes(7));
        assert_ne!(bytes(7), bytes(8));
        // The seed that would begin at zero.
        assert!(bytes(0x9e37_79b9_7f4a_7c15).iter().any(|byte| *byte > 1));
    }

    #[test]
    fn the_digest_is_the_standard_one() {
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hexadecimal(&Sha256::digest(b"abc")), abc);
    }

    #[test]
    fn ends_that_differ_are_reported_with_both_digests() {
        let seen = |bytes, sha256: &str| Seen {
            bytes,
            sha256: sha256.to_owned(),
            duration: Duration::ZERO,
            longest_pause: Duration::ZERO,
            peer: IpAddr::from([192, 0, 2, 1]),
        };
        assert!(compare(&seen(5, "aa"), seen(5, "aa")).is_ok());
        for received in [seen(5, "ab"), seen(4, "aa")] {
            assert!(matches!(compare(&seen(5, "aa"), received), Err(Error::Corrupted { .. })));
        }
    }

    #[test]
    fn the_pause_is_between_two_arrivals() {
        let mut arrivals = Arrivals::new(Arc::default());
        assert_eq!((arrivals.bytes(), arrivals.longest_pause()), (0, Duration::ZERO));
        arrivals.note(3);
        // What comes before the first one is no pause.
        assert_eq!(arrivals.longest_pause(), Duration::ZERO);
        std::thread::sleep(Duration::from_millis(2));
        arrivals.note(4);
        assert_eq!(arrivals.bytes(), 7);
        assert!(arrivals.longest_pause() >= Duration::from_millis(2));
    }
}
