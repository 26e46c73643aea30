//! `pvnet-lab load`: the benchmark program of Willmann et al. 2007, §5.1.
//!
//! ```text
//!  client: threads ─┬─ connections ─┬─ server: threads
//!                   │  balanced     │  read or write what comes
//!                   └───────────────┴─ another server
//! ```
//!
//! Each thread waits for events of its connections, and has one buffer for all of them. The client keeps all
//! connections at the same number of bytes, whichever end sends.
//!
//! A source sends datagrams in bursts to a sink, for experiments on coalescing.

mod client;
mod datagrams;
mod outcome;
mod server;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use clap::Subcommand;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use token_bucket::TokenBucket;

use crate::error::{Error, Result};

pub use client::{ClientArgs, MEASURES};
pub use datagrams::{Arrived, LISTENS, Sent, SinkArgs, SourceArgs};
pub use outcome::{Outcome, jain};
pub use server::ServerArgs;

/// The ends.
#[derive(Subcommand)]
pub enum LoadCommand {
    /// Serve clients until SIGINT or SIGTERM: read what they send, or send to them.
    Server(ServerArgs),
    /// Load one or more servers over many TCP connections, and print what each connection carried.
    ///
    ///   pvnet-lab load server &                                  in a guest, or anywhere
    ///   pvnet-lab load client 10.77.0.1 --seconds 5              send to it
    ///   pvnet-lab load client 10.77.0.1 10.77.0.2 --receive      two servers send
    #[command(verbatim_doc_comment)]
    Client(ClientArgs),
    /// Send datagrams in bursts at equal distances, and print how many were sent in how much time.
    ///
    ///   pvnet-lab load sink &                                    in a guest, or anywhere
    ///   pvnet-lab load source 10.77.0.1 --burst 16 --pps 20000   send to it
    #[command(verbatim_doc_comment)]
    Source(SourceArgs),
    /// Receive datagrams of a source until SIGINT or SIGTERM, and print how many arrived.
    Sink(SinkArgs),
}

/// Runs one end.
pub fn run(command: &LoadCommand) -> Result<()> {
    lab::Interrupt::install()?;
    match command {
        LoadCommand::Server(args) => server::run(args),
        LoadCommand::Client(args) => client::run(args),
        LoadCommand::Source(args) => datagrams::source(args),
        LoadCommand::Sink(args) => datagrams::sink(args),
    }
}

/// The port of a server.
pub const PORT: u16 = 5301;

/// The first byte of a connection, which asks the server to do something.
mod request {
    /// To read.
    pub const READ: u8 = b'r';
    /// To send.
    pub const SEND: u8 = b's';
}

/// Chooses a socket's congestion control, if one is given.
fn set_congestion(socket: impl AsFd, name: Option<&str>) -> Result<()> {
    let Some(name) = name else { return Ok(()) };
    let set = rustix::net::sockopt::set_tcp_congestion(socket, name);
    set.map_err(|errno| failed(&format!("cannot use congestion control {name}"))(errno.into()))
}

/// Makes an error of a failed system call.
fn failed(what: &str) -> impl Fn(std::io::Error) -> Error + '_ {
    move |error| Error::Failed(format!("{what}: {error}"))
}

/// After a pause, as many bytes may go at once as the rate allows in this part of a second.
const BURSTS_PER_SECOND: u64 = 500;

/// A rate of bytes.
#[derive(Debug)]
pub(crate) struct ByteRate {
    /// No limit if absent.
    bucket: Option<TokenBucket>,
    /// The beginning of its clock.
    start: Instant,
}

impl ByteRate {
    /// A rate in bytes per second; no limit if absent.
    pub fn new(rate: Option<u64>, now: Instant) -> Self {
        let bucket = rate.map(|rate| TokenBucket::new(rate, rate / BURSTS_PER_SECOND));
        Self { bucket, start: now }
    }

    /// Takes account of bytes that were sent or received.
    pub fn spend(&mut self, bytes: usize) {
        self.bucket.iter_mut().for_each(|bucket| bucket.take(bytes as u64));
    }

    /// How long to wait until the rate allows more bytes.
    pub fn wait(&mut self, now: Instant) -> Duration {
        let Some(bucket) = &mut self.bucket else { return Duration::ZERO };
        let nanos = now.saturating_duration_since(self.start).as_nanos();
        bucket.fill(u64::try_from(nanos).unwrap_or(u64::MAX));
        Duration::from_nanos(bucket.time_until(0))
    }
}

/// Bursts at equal distances. After a late burst, the next one waits for at least three quarters of the distance, so that
/// two bursts never become one. A longer delay shifts all later bursts.
#[derive(Debug)]
pub(crate) struct Bursts {
    distance: Duration,
    next: Instant,
}

impl Bursts {
    /// The first one begins now.
    pub fn new(distance: Duration, now: Instant) -> Self {
        Self { distance, next: now }
    }

    /// How long to wait for the next burst.
    pub fn wait(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// A burst begins.
    pub fn begin(&mut self, now: Instant) {
        self.next = (self.next + self.distance).max(now + self.distance * 3 / 4);
    }
}

/// The kind of event to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interest {
    /// Bytes to read.
    Read,
    /// Room to write.
    Write,
    /// Only the connection's end.
    Nothing,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Self::Read => epoll::EventFlags::IN,
            Self::Write => epoll::EventFlags::OUT,
            Self::Nothing => epoll::EventFlags::empty(),
        }
    }
}

/// Waits for events of several sockets, each with a number.
#[derive(Debug)]
pub(crate) struct Events {
    epoll: OwnedFd,
}

impl Events {
    /// Without sockets.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Adds a socket.
    pub fn add(&self, socket: impl AsFd, number: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::add(&self.epoll, socket, data, interest.flags())?)
    }

    /// Changes the kind of event to wait for of a socket.
    pub fn change(&self, socket: impl AsFd, number: u64, interest: Interest) -> io::Result<()> {
        let data = epoll::EventData::new_u64(number);
        Ok(epoll::modify(&self.epoll, socket, data, interest.flags())?)
    }

    /// Waits for `limit` at most, and fills `ready` with the numbers of ready sockets.
    pub fn wait(&self, limit: Duration, ready: &mut Vec<u64>) -> io::Result<()> {
        let timeout = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut space = [MaybeUninit::uninit(); 64];
        ready.clear();
        match epoll::wait(&self.epoll, &mut space, Some(&timeout)) {
            Ok((events, _)) => ready.extend(events.iter().map(|event| { event.data }.u64())),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_is_as_long_as_what_went_takes() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut rate = ByteRate::new(Some(1000), start);
        assert_eq!(rate.wait(start), Duration::ZERO);
        rate.spend(502);
        assert_eq!(rate.wait(after(100)).as_millis(), 400);
        assert_eq!(rate.wait(after(500)), Duration::ZERO);
        // A long pause does not allow a long burst.
        assert_eq!(rate.wait(after(60_000)), Duration::ZERO);
        rate.spend(1002);
        assert_eq!(rate.wait(after(60_000)).as_millis(), 1000);
        assert_eq!(ByteRate::new(None, start).wait(start), Duration::ZERO);
    }

    #[test]
    fn a_little_delay_is_made_up_for_and_a_long_one_is_not() {
        let start = Instant::now();
        let at = |us| start + Duration::from_micros(us);
        let mut bursts = Bursts::new(Duration::from_micros(400), start);
        bursts.begin(start);
        assert_eq!(bursts.wait(start).as_micros(), 400);
        // 50 µs late: the next is on time.
        bursts.begin(at(450));
        assert_eq!(bursts.wait(at(450)).as_micros(), 350);
        // A whole burst late: no two begin at once.
        bursts.begin(at(1200));
        assert_eq!(bursts.wait(at(1200)).as_micros(), 300);
        bursts.begin(at(1500));
        assert_eq!(bursts.wait(at(1500)).as_micros(), 400);
    }
}
