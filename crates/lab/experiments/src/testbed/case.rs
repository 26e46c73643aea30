//! The transfers to measure.

use lab::{Iperf, Offloads, Throughput, Traffic};

use super::Subject;

/// One transfer, from left to right.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name in rows.
    pub key: &'static str,
    /// Offloads of both ends.
    pub offloads: Offloads,
    protocol: Protocol,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp { streams: u32 },
    Udp,
}

/// Payload of a datagram that fills an Ethernet frame over IPv6, with 4 bytes to spare.
const DATAGRAM: u16 = 1448;

/// TCP's congestion control if only one is measured. It fills any path; BBR, the default of some systems, sends at a
/// pace of its own.
pub const CONGESTION: &str = "cubic";

/// All transfers.
const CASES: [Case; 4] = [
    Case::TCP,
    Case::tcp("tcp-4", 4),
    Case { key: "udp", offloads: Offloads::ALL, protocol: Protocol::Udp },
    Case { key: "tcp-1-no-offload", offloads: Offloads::NONE, ..Case::TCP },
];

impl Case {
    /// One TCP stream with all offloads.
    pub const TCP: Self = Self::tcp("tcp-1", 1);

    const fn tcp(key: &'static str, streams: u32) -> Self {
        Self { key, offloads: Offloads::ALL, protocol: Protocol::Tcp { streams } }
    }

    /// The case of that name.
    pub fn find(key: &str) -> Option<&'static Self> {
        CASES.iter().find(|case| case.key == key)
    }

    /// Whether TCP's congestion control matters.
    pub fn is_tcp(&self) -> bool {
        matches!(self.protocol, Protocol::Tcp { .. })
    }

    /// Whether it needs a [pace](find_pace).
    pub fn is_udp(&self) -> bool {
        self.protocol == Protocol::Udp
    }

    /// Runs it. UDP is sent at `pace`, in payload bits per second, and TCP with this congestion control, or the system's.
    pub fn run(
        &self,
        subject: &dyn Subject,
        seconds: u32,
        pace: u64,
        congestion: Option<&str>,
    ) -> lab::Result<Throughput> {
        let (left, right) = (subject.left(), subject.right());
        let tcp = Iperf::tcp(&left.namespace, &right.namespace, right.ipv4, seconds);
        let traffic = match self.protocol {
            Protocol::Tcp { streams } => Traffic::Tcp { streams },
            Protocol::Udp => Traffic::Udp { bits_per_second: pace, length: DATAGRAM },
        };
        Iperf { traffic, congestion, ..tcp }.run()
    }
}

/// Paces tried, in 10⁶ payload bits per second: each √2 times the one before.
const PACES: [u32; 8] = [350, 500, 700, 1000, 1400, 2000, 2800, 4000];
/// The share of a pace that a sender reaches if it can keep up.
const REACHED: f64 = 0.9;
/// The share of the highest rate that is good enough. The rest costs losses, or is chance.
const ENOUGH: f64 = 0.9;

/// The slowest pace, in payload bits per second, at which nearly the highest rate arrives over
/// `subject`. Beyond it, the receiver spends more time on datagrams that it drops than it gains with
/// the others, and the rate tells nothing about the path.
///
/// It is not the fastest pace without loss: on a busy machine some datagrams are lost at any pace.
pub fn find_pace(subject: &dyn Subject, udp: &Case) -> lab::Result<u64> {
    let pace = best(|mbps| {
        let seen = udp.run(subject, 1, u64::from(mbps) * 1_000_000, None)?;
        let sent = seen.packets as f64 * f64::from(DATAGRAM) * 8.0;
        let sent = sent / 1e6 / seen.seconds.max(f64::EPSILON);
        Ok::<_, lab::Error>(Probe { sent, received: seen.mbps })
    })?;
    Ok(u64::from(pace) * 1_000_000)
}

/// The result of a pace, in 10⁶ payload bits per second.
struct Probe {
    sent: f64,
    received: f64,
}

fn best<E>(mut probe: impl FnMut(u32) -> Result<Probe, E>) -> Result<u32, E> {
    let mut arrived: Vec<(u32, f64)> = Vec::new();
    let mut most = 0.0;
    for pace in PACES {
        let Probe { sent, received } = probe(pace)?;
        arrived.push((pace, received));
        most = received.max(most);
        let at_its_limit = sent < REACHED * f64::from(pace);
        let drowned = received < most / 2.0;
        if at_its_limit || drowned {
            break;
        }
    }
    let enough = arrived.iter().find(|(_, received)| *received >= ENOUGH * most);
    Ok(enough.map_or(PACES[0], |(pace, _)| *pace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    /// The pace found and the number of paces tried, over a path that carries `capacity`, and less beyond it, from a
    /// sender that manages `sender`.
    fn found(capacity: f64, sender: f64) -> (u32, usize) {
        let mut tried = 0;
        let probe = |pace| {
            tried += 1;
            let sent = f64::from(pace).min(sender);
            let received = if sent > capacity { capacity * capacity / sent } else { sent };
            Ok::<_, Infallible>(Probe { sent, received })
        };
        (best(probe).unwrap(), tried)
    }

    #[test]
    fn the_slowest_pace_at_which_most_arrives_is_found() {
        // At pace 1400, 1029 arrive: hardly more than at pace 1000, where all arrive.
        assert_eq!(found(1200.0, 1e9).0, 1000);
        assert_eq!(found(1300.0, 1e9).0, 1400);
        assert_eq!(found(700.0, 1e9).0, 700);
        assert_eq!(found(1e9, 1e9).0, PACES[PACES.len() - 1]);
        assert_eq!(found(0.0, 1e9).0, PACES[0]);
    }

    #[test]
    fn a_sender_at_its_limit_or_an_overloaded_receiver_ends_the_search() {
        assert_eq!(found(1e9, 1500.0), (1400, 6));
        assert_eq!(found(500.0, 1e9), (500, 5));
    }

    #[test]
    fn names_are_unique() {
        let keys: std::collections::BTreeSet<_> = CASES.iter().map(|case| case.key).collect();
        assert_eq!(keys.len(), CASES.len());
        assert!(Case::find("tcp-1-no-offload").is_some_and(|case| case.offloads == Offloads::NONE));
    }
}
