//! Datagrams in bursts, from a source to a sink.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use clap::Args;
use lab::Interrupt;
use serde::{Deserialize, Serialize};

use super::bursts::Bursts;
use super::socket::{PORT, failed};
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
}

/// Options of a sink.
#[derive(Args)]
pub struct SinkArgs {
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = SocketAddr::from(([0; 4], PORT)))]
    listen: SocketAddr,
}

/// What a sink says when it listens.
pub const LISTENS: &str = "listening on";
/// How often a sink looks whether it should end.
const LOOK: Duration = Duration::from_millis(100);
/// What a sink's socket holds: a burst of the largest must fit.
const SOCKET: usize = 4 << 20;
/// Bytes of the number that each datagram begins with.
const NUMBER: usize = 8;

/// What a sink received, from the first datagram to the last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arrived {
    /// Datagrams.
    pub received: u64,
    /// Datagrams that the source sent meanwhile.
    pub sent: u64,
}

impl Arrived {
    /// The share, 0 to 1, of the sent ones that did not arrive.
    pub fn lost(self) -> f64 {
        self.sent.saturating_sub(self.received) as f64 / self.sent.max(1) as f64
    }
}

/// Sends until the time is over, or until a signal.
pub fn source(args: &SourceArgs) -> Result<()> {
    let socket = connect(SocketAddr::new(args.sink, args.port)).map_err(failed("the source"))?;
    // Otherwise each burst begins up to 50 µs late. This is no reason to fail.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let end = Instant::now() + Duration::from_secs(args.seconds.into());
    let distance = Duration::from_secs(args.burst.into()) / args.pps;
    let mut bursts = Bursts::new(distance, Instant::now());
    let mut datagram = vec![0; args.size.into()];
    let mut number = 0_u64;
    loop {
        let now = Instant::now();
        if now >= end || Interrupt::requested() {
            return Ok(());
        }
        let wait = bursts.wait(now);
        if !wait.is_zero() {
            std::thread::sleep(wait.min(LOOK));
            continue;
        }
        bursts.begin(now);
        for _ in 0..args.burst {
            datagram[..NUMBER].copy_from_slice(&number.to_be_bytes());
            number += 1;
            send(&socket, &datagram).map_err(failed("the source"))?;
        }
    }
}

fn connect(sink: SocketAddr) -> io::Result<UdpSocket> {
    let any = if sink.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(sink)?;
    Ok(socket)
}

/// Sends a datagram. A sink that does not listen, yet or any more, loses it.
fn send(socket: &UdpSocket, datagram: &[u8]) -> io::Result<()> {
    match socket.send(datagram) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        result => result.map(drop),
    }
}

/// Receives until a signal, and prints what arrived as a line of JSON.
pub fn sink(args: &SinkArgs) -> Result<()> {
    let socket = UdpSocket::bind(args.listen).map_err(failed("cannot listen"))?;
    output::print(&format!("{LISTENS} {}\n", args.listen))?;
    let arrived = receive(&socket, Interrupt::requested).map_err(failed("the sink"))?;
    output::print(&output::json(&arrived)?)
}

fn receive(socket: &UdpSocket, is_ended: impl Fn() -> bool) -> io::Result<Arrived> {
    // Root may have more than the system's limit.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, SOCKET).is_err() {
        rustix::net::sockopt::set_socket_recv_buffer_size(socket, SOCKET)?;
    }
    socket.set_read_timeout(Some(LOOK))?;
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn a_sink_counts_what_arrived_and_what_did_not() {
        let sink = UdpSocket::bind("127.0.0.1:0").unwrap();
        let source = connect(sink.local_addr().unwrap()).unwrap();
        let is_ended = AtomicBool::new(false);
        let arrived = std::thread::scope(|scope| {
            let thread = scope.spawn(|| receive(&sink, || is_ended.load(Ordering::Relaxed)));
            for number in [5_u64, 6, 8, 9] {
                let mut datagram = [0; 72];
                datagram[..NUMBER].copy_from_slice(&number.to_be_bytes());
                send(&source, &datagram).unwrap();
            }
            std::thread::sleep(LOOK * 2);
            is_ended.store(true, Ordering::Relaxed);
            thread.join().unwrap().unwrap()
        });
        assert_eq!(arrived, Arrived { received: 4, sent: 5 });
        assert!((arrived.lost() - 0.2).abs() < 1e-9);
        assert!(Arrived::default().lost().abs() < f64::EPSILON);
    }

    #[test]
    fn a_source_goes_on_without_a_sink() {
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let source = connect(closed).unwrap();
        (0..3).for_each(|_| send(&source, &[0; 8]).unwrap());
    }
}
