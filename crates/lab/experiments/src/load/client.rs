//! The client, which measures.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Args;
use lab::Interrupt;

use super::outcome::{Outcome, ResultArgs};
use super::{ByteRate, Events, Interest, PORT, failed, request, set_congestion};
use crate::error::{Error, Result};
use crate::output;

/// Options of a client.
#[derive(Args)]
pub struct ClientArgs {
    /// The servers' addresses.
    #[arg(required = true, value_name = "SERVER")]
    pub servers: Vec<IpAddr>,
    /// The servers' port.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    pub port: u16,
    /// Receive from the servers instead of sending.
    #[arg(long)]
    pub receive: bool,
    /// Connections to each server.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,
    /// The number of threads. Each has a part of the connections.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub threads: u32,
    /// The size of each thread's buffer in KiB.
    #[arg(long, value_name = "KIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub buffer: u32,
    /// TCP's congestion control [default: the system's].
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
    /// Seconds to measure.
    #[arg(long, value_name = "N", default_value_t = 5.0, value_parser = seconds)]
    pub seconds: f64,
    /// Seconds before the measured time.
    #[arg(long, value_name = "N", default_value_t = 0.5, value_parser = seconds)]
    pub warm_up: f64,
    /// The highest rate of all connections together, in 10⁶ payload bits per second [default: no limit].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub mbps: Option<u32>,
    /// Let each connection be as fast as it can, instead of keeping all at the same number of bytes.
    #[arg(long)]
    pub unbalanced: bool,
    #[command(flatten)]
    result: ResultArgs,
}

fn seconds(text: &str) -> std::result::Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    (0.0..=86_400.0).contains(&seconds).then_some(seconds).ok_or_else(|| "not 0 to 86400".into())
}

/// The beginning of the line that a client prints when its measured time begins.
pub const MEASURES: &str = "measuring for";
/// How many buffers a connection may be ahead of the slowest one.
const LEAD: u64 = 4;
/// How long a server may take to listen.
const CONNECT: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const AGAIN: Duration = Duration::from_millis(50);
/// How often a thread checks whether it should end.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How often it checks whether connections that are ahead may go on.
const BALANCE: Duration = Duration::from_millis(1);

/// Loads the servers, and prints and writes the outcome.
pub fn run(args: &ClientArgs) -> Result<()> {
    args.result.prepare()?;
    let outcome = measure(args)?;
    args.result.show(&outcome, || {
        outcome.table().print().map_err(Error::Print)?;
        output::print(&format!("\nJain's index {:.3}\n", outcome.jain))
    })
}

fn measure(args: &ClientArgs) -> Result<Outcome> {
    let mut connections = Vec::new();
    // In turn, so that servers, and threads, have nearly equal numbers of connections.
    for _ in 0..args.connections {
        for server in &args.servers {
            let socket = connect(SocketAddr::new(*server, args.port), args.receive)?;
            set_congestion(&socket, args.congestion.as_deref())?;
            connections.push((server.to_string(), socket));
        }
    }
    let lead = (!args.unbalanced).then_some(LEAD * u64::from(args.buffer) * 1024);
    let balance = Balance::new(connections.len(), lead);
    let (names, sockets): (Vec<_>, Vec<_>) = connections.into_iter().unzip();
    let mut parts: Vec<Vec<(usize, TcpStream)>> = (0..args.threads).map(|_| Vec::new()).collect();
    for (number, socket) in sockets.into_iter().enumerate() {
        parts[number % args.threads as usize].push((number, socket));
    }
    let rate = args.mbps.map(|mbps| u64::from(mbps) * 125_000 / u64::from(args.threads));
    let is_ended = Arc::new(AtomicBool::new(false));
    let (bytes, seconds) = std::thread::scope(|scope| {
        let start = |part| {
            let (balance, is_ended) = (&balance, is_ended.clone());
            scope.spawn(move || {
                let result = Thread::new(part, balance, args, rate)
                    .and_then(|mut thread| thread.run(&is_ended));
                // If a thread ends early, the others notice it.
                is_ended.store(true, Ordering::Relaxed);
                result
            })
        };
        let threads: Vec<_> = parts.into_iter().map(start).collect();
        let measured = window(args, &balance, &is_ended);
        is_ended.store(true, Ordering::Relaxed);
        for thread in threads {
            let result = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.map_err(failed("a connection"))?;
        }
        measured
    })?;
    Ok(Outcome::new(!args.receive, seconds, names.into_iter().zip(bytes).collect()))
}

/// Waits for the measured time to pass. Returns each connection's bytes within it, and its length in seconds.
fn window(args: &ClientArgs, balance: &Balance, is_ended: &AtomicBool) -> Result<(Vec<u64>, f64)> {
    sleep(args.warm_up, is_ended)?;
    let (before, begin) = (balance.snapshot(), Instant::now());
    eprintln!("{MEASURES} {} s", args.seconds);
    sleep(args.seconds, is_ended)?;
    let (after, seconds) = (balance.snapshot(), begin.elapsed().as_secs_f64());
    let bytes = after.iter().zip(before).map(|(after, before)| after - before);
    Ok((bytes.collect(), seconds))
}

/// Sleeps for `seconds`, or until a thread has ended.
fn sleep(seconds: f64, is_ended: &AtomicBool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || is_ended.load(Ordering::Relaxed) {
            return Ok(());
        }
        Interrupt::sleep(left.min(CHECK_INTERVAL))?;
    }
}

/// Connects as soon as the server listens.
fn connect(server: SocketAddr, receive: bool) -> Result<TcpStream> {
    let end = Instant::now() + CONNECT;
    let mut socket = loop {
        match TcpStream::connect_timeout(&server, CONNECT) {
            Ok(socket) => break socket,
            Err(error) if Instant::now() > end => {
                return Err(failed(&format!("cannot connect to {server}"))(error));
            }
            Err(_) => Interrupt::sleep(AGAIN)?,
        }
    };
    let asked = if receive { request::SEND } else { request::READ };
    let sent = socket.write_all(&[asked]).and_then(|()| socket.set_nonblocking(true));
    sent.map_err(failed(&server.to_string()))?;
    Ok(socket)
}

/// One thread with its connections and its buffer.
struct Thread<'a> {
    connections: Vec<Connection>,
    events: Events,
    balance: &'a Balance,
    interest: Interest,
    rate: ByteRate,
    buffer: Vec<u8>,
}

struct Connection {
    /// Its number among all connections.
    number: usize,
    socket: TcpStream,
    /// Whether it is ahead of others and waits for them.
    waits: bool,
}

impl<'a> Thread<'a> {
    fn new(
        part: Vec<(usize, TcpStream)>,
        balance: &'a Balance,
        args: &ClientArgs,
        rate: Option<u64>,
    ) -> io::Result<Self> {
        let interest = if args.receive { Interest::Read } else { Interest::Write };
        let events = Events::new()?;
        let mut connections = Vec::new();
        for (index, (number, socket)) in part.into_iter().enumerate() {
            events.add(&socket, index as u64, interest)?;
            connections.push(Connection { number, socket, waits: false });
        }
        let rate = ByteRate::new(rate, Instant::now());
        let buffer = vec![0; args.buffer as usize * 1024];
        Ok(Self { connections, events, balance, interest, rate, buffer })
    }

    fn run(&mut self, is_ended: &AtomicBool) -> io::Result<()> {
        let mut ready = Vec::new();
        while !is_ended.load(Ordering::Relaxed) {
            let wait = self.rate.wait(Instant::now());
            if !wait.is_zero() {
                std::thread::sleep(wait.min(CHECK_INTERVAL));
                continue;
            }
            let bound = self.balance.bound();
            let some_wait = self.resume(bound)?;
            self.events.wait(if some_wait { BALANCE } else { CHECK_INTERVAL }, &mut ready)?;
            for index in &ready {
                self.go_on(usize::try_from(*index).unwrap_or(usize::MAX), bound)?;
            }
        }
        Ok(())
    }

    /// Lets waiting connections go on if others have caught up. Returns whether some still wait.
    fn resume(&mut self, bound: u64) -> io::Result<bool> {
        let mut some_wait = false;
        for (index, connection) in self.connections.iter_mut().enumerate() {
            if connection.waits {
                connection.waits = self.balance.is_ahead(connection.number, bound);
                some_wait |= connection.waits;
                if !connection.waits {
                    self.events.change(&connection.socket, index as u64, self.interest)?;
                }
            }
        }
        Ok(some_wait)
    }

    /// Sends or receives at most a buffer, unless the connection is ahead.
    fn go_on(&mut self, index: usize, bound: u64) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(index) else { return Ok(()) };
        if self.balance.is_ahead(connection.number, bound) {
            connection.waits = true;
            return self.events.change(&connection.socket, index as u64, Interest::Nothing);
        }
        let done = match self.interest {
            Interest::Write => connection.socket.write(&self.buffer),
            Interest::Read | Interest::Nothing => connection.socket.read(&mut self.buffer),
        };
        match done {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                self.balance.add(connection.number, bytes);
                self.rate.spend(bytes);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The bytes that each connection has carried. All threads share it.
#[derive(Debug)]
pub struct Balance {
    bytes: Box<[AtomicU64]>,
    /// A connection this many bytes ahead of the slowest one waits; none waits if absent.
    lead: Option<u64>,
}

impl Balance {
    /// For `connections` connections. With a lead, no connection gets further ahead of the slowest one.
    pub fn new(connections: usize, lead: Option<u64>) -> Self {
        Self { bytes: (0..connections).map(|_| AtomicU64::new(0)).collect(), lead }
    }

    /// Counts bytes of a connection.
    pub fn add(&self, connection: usize, bytes: usize) {
        if let Some(sum) = self.bytes.get(connection) {
            sum.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// The bytes that a connection may have carried before it has to wait for others.
    pub fn bound(&self) -> u64 {
        let slowest = || self.snapshot().into_iter().min().unwrap_or(0);
        self.lead.map_or(u64::MAX, |lead| slowest().saturating_add(lead))
    }

    /// Whether a connection is ahead of a [bound](Self::bound).
    pub fn is_ahead(&self, connection: usize, bound: u64) -> bool {
        self.bytes.get(connection).is_some_and(|bytes| bytes.load(Ordering::Relaxed) >= bound)
    }

    /// The bytes of all connections.
    pub fn snapshot(&self) -> Vec<u64> {
        self.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::server::{ServerArgs, serve_until};
    use super::*;

    /// The outcome of a client with these options, over the loopback.
    fn outcome(options: &[&str]) -> Outcome {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        let is_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let args =
                ServerArgs { listen: ([0; 4], 0).into(), threads: 2, buffer: 16, congestion: None };
            let is_ended = &is_ended;
            let server = scope.spawn(move || serve_until(listener, &args, is_ended));
            let words = [&["127.0.0.1", "--port", &port, "--warm-up", "0.1"], options].concat();
            let outcome = measure(&crate::options(&words).unwrap());
            is_ended.store(true, Ordering::Relaxed);
            server.join().unwrap().unwrap();
            outcome.unwrap()
        })
    }

    #[test]
    fn all_connections_carry_the_same_in_both_directions() {
        for direction in [&["--seconds", "1"][..], &["--seconds", "1", "--receive"]] {
            let options = [direction, &["--connections", "6", "--threads", "2"]].concat();
            let outcome = outcome(&options);
            assert_eq!(outcome.connections.len(), 6);
            assert!(outcome.mbps > 0.0 && outcome.jain > 0.9, "{outcome:?}");
            assert_eq!(outcome.sends, direction.len() == 2);
        }
    }

    #[test]
    fn a_limit_is_kept() {
        let outcome = outcome(&["--seconds", "2", "--mbps", "8", "--buffer", "4"]);
        // More than 8 Mb/s, because of a burst of 2 ms and a buffer.
        assert!(outcome.mbps < 10.0, "{outcome:?}");
    }

    #[test]
    fn a_time_below_zero_is_refused() {
        assert!(crate::options::<ClientArgs>(&["127.0.0.1", "--seconds", "-1"]).is_err());
    }

    #[test]
    fn a_connection_ahead_of_the_slowest_waits_until_that_has_caught_up() {
        let balance = Balance::new(2, Some(100));
        balance.add(0, 100);
        assert!(balance.is_ahead(0, balance.bound()) && !balance.is_ahead(1, balance.bound()));
        balance.add(1, 1);
        assert!(!balance.is_ahead(0, balance.bound()));
        assert_eq!(balance.snapshot(), [100, 1]);
    }

    #[test]
    fn without_a_lead_no_connection_waits() {
        let balance = Balance::new(2, None);
        balance.add(0, 1 << 40);
        assert!(!balance.is_ahead(0, balance.bound()));
    }
}
