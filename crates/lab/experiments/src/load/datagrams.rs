//! Datagrams in bursts, from a source to a sink.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use clap::Args;
use document::Document;
use lab::Interrupt;
use report::{count, human};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::outcome::ResultArgs;
use super::{Bursts, PORT, failed};
use crate::error::Result;
use crate::output;

/// Options of a source.
#[derive(Args)]
pub struct SourceArgs {
    /// The sink's address.
    #[arg(value_name = "SINK")]
    sink: IpAddr,
    /// The sink's port.
    #[arg(long, value_name = "PORT", default_value_t = PORT)]
    port: u16,
    /// Datagrams per second.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pps: u32,
    /// Datagrams in a burst, which are sent without a pause.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    burst: u32,
    /// Payload bytes of a datagram.
    #[arg(long, value_name = "BYTES", default_value_t = 1472, value_parser = clap::value_parser!(u16).range(8..=65_507))]
    size: u16,
    /// Seconds to send, unless a signal comes before.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,
    #[command(flatten)]
    result: ResultArgs,
}

/// Options of a sink.
#[derive(Args)]
pub struct SinkArgs {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from(([0; 4], PORT)))]
    listen: SocketAddr,
    #[command(flatten)]
    result: ResultArgs,
}

/// The beginning of the line that a sink prints on standard error when it listens.
pub const LISTENS: &str = "listening on";
/// How often a sink checks whether it should end.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// Bytes of the number that each datagram begins with.
const NUMBER: usize = 8;

/// A source's result.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Sent {
    /// Datagrams that the system took.
    pub datagrams: u64,
    /// Their payload in bytes.
    pub bytes: u64,
    /// Datagrams that the system refused, because the sink's host had answered that no sink listens.
    pub refused: u64,
    /// Seconds from the beginning to the end.
    pub seconds: f64,
    /// Datagrams per second.
    pub pps: f64,
}

/// A sink's result, from the first datagram to the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Arrived {
    /// Datagrams.
    pub received: u64,
    /// Datagrams that the source sent meanwhile.
    pub sent: u64,
}

impl Document for Sent {
    const SCHEMA: &str = "pvnet-load-source/1";
}

impl Document for Arrived {
    const SCHEMA: &str = "pvnet-load-sink/1";
}

impl Sent {
    fn new([datagrams, refused]: [u64; 2], size: u16, time: Duration) -> Self {
        let seconds = time.as_secs_f64();
        let bytes = datagrams * u64::from(size);
        let pps = datagrams as f64 / seconds.max(f64::EPSILON);
        Self { datagrams, bytes, refused, seconds, pps }
    }

    fn text(self) -> String {
        let Self { datagrams, bytes, refused, seconds, pps } = self;
        let refused = match refused {
            0 => String::new(),
            some => format!("; {} not sent, as no sink listened", count(some)),
        };
        format!(
            "sent {} datagrams, {} bytes, in {} s: {} datagrams/s{refused}\n",
            count(datagrams),
            count(bytes),
            human(seconds),
            human(pps)
        )
    }
}

impl Arrived {
    /// The share, 0 to 1, of sent datagrams that did not arrive.
    pub fn lost(self) -> f64 {
        self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64
    }

    fn text(self) -> String {
        let [received, sent] = [self.received, self.sent].map(count);
        format!("received {received} of {sent} datagrams: {} % lost\n", human(100.0 * self.lost()))
    }
}

/// Sends until the time is over, or until a signal, and prints what was sent.
pub fn source(args: &SourceArgs) -> Result<()> {
    args.result.prepare()?;
    let socket = connect(SocketAddr::new(args.sink, args.port)).map_err(failed("the source"))?;
    // Without this, each burst would begin up to 50 µs late. That is no reason to fail.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let end = Instant::now() + Duration::from_secs(args.seconds.into());
    let is_ended = |now| now >= end || Interrupt::requested();
    let sent = send_all(&socket, args, is_ended).map_err(failed("the source"))?;
    args.result.show(&sent, || output::print(&sent.text()))
}

fn send_all(
    socket: &UdpSocket,
    args: &SourceArgs,
    is_ended: impl Fn(Instant) -> bool,
) -> io::Result<Sent> {
    let begin = Instant::now();
    let distance = Duration::from_secs(args.burst.into()) / args.pps;
    let mut bursts = Bursts::new(distance, begin);
    let mut datagram = vec![0; args.size.into()];
    let (mut number, mut refused) = (0_u64, 0);
    loop {
        let now = Instant::now();
        if is_ended(now) {
            return Ok(Sent::new([number - refused, refused], args.size, now - begin));
        }
        let wait = bursts.wait(now);
        if !wait.is_zero() {
            std::thread::sleep(wait.min(CHECK_INTERVAL));
            continue;
        }
        bursts.begin(now);
        for _ in 0..args.burst {
            datagram[..NUMBER].copy_from_slice(&number.to_be_bytes());
            number += 1;
            refused += u64::from(!send(socket, &datagram)?);
        }
    }
}

fn connect(sink: SocketAddr) -> io::Result<UdpSocket> {
    let any = if sink.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(sink)?;
    Ok(socket)
}

/// Sends a datagram, and returns whether the system took it. It refuses one if no sink listened when an earlier one arrived.
/// That is no error of the source.
fn send(socket: &UdpSocket, datagram: &[u8]) -> io::Result<bool> {
    match socket.send(datagram) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(false),
        result => result.map(|_| true),
    }
}

/// Receives until a signal, and prints what arrived.
pub fn sink(args: &SinkArgs) -> Result<()> {
    args.result.prepare()?;
    let socket = UdpSocket::bind(args.listen).map_err(failed("cannot listen"))?;
    let address = socket.local_addr().map_err(failed("cannot listen"))?;
    eprintln!("{LISTENS} {address}");
    let arrived = receive(&socket, Interrupt::requested).map_err(failed("the sink"))?;
    args.result.show(&arrived, || output::print(&arrived.text()))
}

fn receive(socket: &UdpSocket, is_ended: impl Fn() -> bool) -> io::Result<Arrived> {
    lab::enlarge_receive_buffer(socket)?;
    socket.set_read_timeout(Some(CHECK_INTERVAL))?;
    let mut datagram = vec![0; usize::from(u16::MAX)];
    let (mut received, mut numbers) = (0, None);
    while !is_ended() {
        match socket.recv(&mut datagram) {
            Ok(_) => {
                let Some(number) = datagram.first_chunk::<NUMBER>() else { continue };
                let number = u64::from_be_bytes(*number);
                received += 1;
                let (first, last) = numbers.unwrap_or((number, number));
                numbers = Some((number.min(first), number.max(last)));
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => return Err(error),
        }
    }
    let sent = numbers.map_or(0, |(first, last)| (last - first).saturating_add(1));
    Ok(Arrived { received, sent })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A sink's result while `send` sends to it.
    fn arrived(send: impl FnOnce(&UdpSocket)) -> Arrived {
        let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
        let source = connect(sink.local_addr().unwrap()).unwrap();
        let is_ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| receive(&sink, || is_ended.load(Ordering::Relaxed)));
            send(&source);
            std::thread::sleep(CHECK_INTERVAL * 2);
            is_ended.store(true, Ordering::Relaxed);
            thread.join().unwrap().unwrap()
        })
    }

    #[test]
    fn a_sink_counts_what_arrived_and_what_did_not() {
        let arrived = arrived(|source| {
            for number in [5_u64, 6, 8, 9] {
                let mut datagram = [0; 72];
                datagram[..NUMBER].copy_from_slice(&number.to_be_bytes());
                assert!(send(source, &datagram).unwrap());
            }
        });
        assert_eq!(arrived, Arrived { received: 4, sent: 5 });
        assert!((arrived.lost() - 0.2).abs() < 1e-9);
        assert!(Arrived::default().lost().abs() < f64::EPSILON);
        assert_eq!(arrived.text(), "received 4 of 5 datagrams: 20.0 % lost\n");
        assert_eq!(document::checked(&arrived)["received"], 4);
        assert_eq!(
            serde_json::from_value::<Arrived>(document::checked(&arrived)).unwrap(),
            arrived
        );
    }

    #[test]
    fn a_source_counts_what_it_sent_in_bursts() {
        let words = ["127.0.0.1", "--burst", "8", "--pps", "8000", "--size", "100"];
        let args = crate::options(&words).unwrap();
        let mut sent = None;
        let arrived = arrived(|source| {
            let polls = Cell::new(0);
            let is_ended = |_| polls.replace(polls.get() + 1) == 5;
            sent = Some(send_all(source, &args, is_ended).unwrap());
        });
        let sent = sent.unwrap();
        assert!(sent.datagrams > 0 && sent.datagrams.is_multiple_of(8), "{sent:?}");
        assert_eq!((sent.bytes, sent.refused), (sent.datagrams * 100, 0));
        assert_eq!(arrived, Arrived { received: sent.datagrams, sent: sent.datagrams });
        assert_eq!(document::checked(&sent)["datagrams"], sent.datagrams);
    }

    #[test]
    fn what_was_sent_has_a_rate_and_what_was_not_a_reason() {
        let sent = Sent::new([3000, 2], 100, Duration::from_millis(1500));
        assert!((sent.pps - 2000.0).abs() < 1e-9, "{sent:?}");
        let text = "sent 3,000 datagrams, 300,000 bytes, in 1.50 s: 2,000 datagrams/s; 2 not sent, as no sink listened\n";
        assert_eq!(sent.text(), text);
    }

    #[test]
    fn a_source_goes_on_without_a_sink() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let source = connect(closed).unwrap();
        // The answer to the first datagram may take a moment.
        let is_refused = |_| {
            std::thread::sleep(Duration::from_millis(1));
            !send(&source, &[0; 8]).unwrap()
        };
        assert!((0..1000).any(is_refused));
    }
}
