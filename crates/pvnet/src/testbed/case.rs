//! The transfers that are shown and measured.

use lab::{Iperf, Offloads, Throughput, Traffic};

use super::Subject;

/// One transfer.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name in rows.
    pub key: &'static str,
    /// Its name for people.
    pub label: &'static str,
    /// Offloads of both ends.
    pub offloads: Offloads,
    protocol: Protocol,
    /// Whether the right end sends.
    reverse: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp { streams: u32 },
    Udp,
}

/// Payload of a datagram that fills an Ethernet frame over IPv6, with 4 bytes to spare.
const DATAGRAM: u16 = 1448;

/// All transfers; those with the same offloads follow each other.
pub const CASES: [Case; 9] = [
    Case::tcp("tcp-1", "TCP, 1 stream", 1),
    Case::tcp("tcp-1-back", "TCP, 1 stream, back", 1).reversed(),
    Case::tcp("tcp-4", "TCP, 4 streams", 4),
    Case::tcp("tcp-4-back", "TCP, 4 streams, back", 4).reversed(),
    Case {
        key: "udp",
        label: "UDP, 1448 bytes",
        offloads: Offloads::ALL,
        protocol: Protocol::Udp,
        reverse: false,
    },
    Case::tcp("tcp-1-no-tso", "TCP, no TSO", 1).with(Offloads { tso: false, ..Offloads::ALL }),
    // TSO leans on both of the others, so it goes with each of them.
    Case::tcp("tcp-1-no-csum", "TCP, no checksums", 1).with(Offloads {
        tso: false,
        csum: false,
        ..Offloads::ALL
    }),
    Case::tcp("tcp-1-no-sg", "TCP, no scatter/gather", 1).with(Offloads {
        tso: false,
        sg: false,
        ..Offloads::ALL
    }),
    Case::tcp("tcp-1-no-offload", "TCP, no offload", 1).with(Offloads::NONE),
];

impl Case {
    const fn tcp(key: &'static str, label: &'static str, streams: u32) -> Self {
        let protocol = Protocol::Tcp { streams };
        Self { key, label, offloads: Offloads::ALL, protocol, reverse: false }
    }

    const fn reversed(self) -> Self {
        Self { reverse: true, ..self }
    }

    const fn with(self, offloads: Offloads) -> Self {
        Self { offloads, ..self }
    }

    /// The case of that name among [`CASES`].
    pub fn find(key: &str) -> Option<&'static Self> {
        CASES.iter().find(|case| case.key == key)
    }

    /// Whether it needs a [pace](find_pace).
    pub fn is_udp(&self) -> bool {
        self.protocol == Protocol::Udp
    }

    /// Runs it. UDP is sent at `pace`, in payload bits per second.
    pub fn run(&self, subject: &dyn Subject, seconds: u32, pace: u64) -> lab::Result<Throughput> {
        let (left, right) = (subject.left(), subject.right());
        let tcp = Iperf::tcp(&left.namespace, &right.namespace, right.ipv4, seconds);
        let traffic = match self.protocol {
            Protocol::Tcp { streams } => Traffic::Tcp { streams },
            Protocol::Udp => Traffic::Udp { bits_per_second: pace, length: DATAGRAM },
        };
        Iperf { reverse: self.reverse, traffic, ..tcp }.run()
    }
}

/// How one pace went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Arrives,
    Drowns,
    /// All arrives, and the sender can not send more.
    Limit,
}

/// Datagrams that may be lost on a machine with other things to do, in per cent.
const LOSS: f64 = 1.0;
/// The part of a pace that a sender reaches when it can.
const REACHED: f64 = 0.95;
/// The first pace tried, in bits per second.
const START: u64 = 1_000_000_000;
/// Paces tried: to some 6 % of what is found, and for some seconds.
const PROBES: u32 = 6;

/// The fastest pace, in payload bits per second, at which datagrams arrive over `subject`:
/// beyond it the receiver has less time for what arrives than it loses on what does not, and
/// the rate says nothing about the path.
pub fn find_pace(subject: &dyn Subject, udp: &Case) -> lab::Result<u64> {
    search(|pace| {
        // A loss may be somebody else's doing; the same loss twice is ours.
        match verdict(pace, &udp.run(subject, 1, pace)?) {
            Verdict::Drowns => Ok(verdict(pace, &udp.run(subject, 1, pace)?)),
            verdict => Ok(verdict),
        }
    })
}

fn verdict(pace: u64, seen: &Throughput) -> Verdict {
    let sent = seen.packets as f64 * f64::from(DATAGRAM) * 8.0 / seen.seconds.max(f64::EPSILON);
    if seen.lost_percent > LOSS {
        Verdict::Drowns
    } else if sent < REACHED * pace as f64 {
        Verdict::Limit
    } else {
        Verdict::Arrives
    }
}

/// Doubles the pace until it is too fast, then halves the distance.
fn search<E>(mut probe: impl FnMut(u64) -> Result<Verdict, E>) -> Result<u64, E> {
    let (mut arrives, mut drowns, mut pace) = (0, None, START);
    for _ in 0..PROBES {
        match probe(pace)? {
            Verdict::Arrives => arrives = pace,
            Verdict::Drowns => drowns = Some(pace),
            Verdict::Limit => return Ok(pace),
        }
        pace = drowns.map_or(arrives * 2, |drowns| u64::midpoint(arrives, drowns));
    }
    // Where nothing arrived, the slowest pace tried is still the best known.
    Ok(if arrives > 0 { arrives } else { pace })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn found(capacity: u64, sender: u64) -> u64 {
        let probe = |pace: u64| {
            Ok::<_, Infallible>(match pace.min(sender) {
                sent if sent > capacity => Verdict::Drowns,
                _ if sender < pace => Verdict::Limit,
                _ => Verdict::Arrives,
            })
        };
        search(probe).unwrap()
    }

    #[test]
    fn the_pace_found_arrives_and_is_near_the_best() {
        for capacity in [300, 900, 1300, 3000, 5000].map(|mbps| mbps * 1_000_000) {
            let pace = found(capacity, u64::MAX);
            assert!(pace <= capacity && pace * 10 > capacity * 8, "{capacity}: {pace}");
        }
    }

    #[test]
    fn a_sender_at_its_limit_ends_the_search() {
        assert_eq!(found(u64::MAX, 1_500_000_000), 2_000_000_000);
    }

    #[test]
    fn a_path_that_carries_nothing_is_probed_slowly() {
        assert!(found(0, u64::MAX) < START / 32);
    }

    #[test]
    fn loss_and_a_slow_sender_are_told_apart() {
        let seen = |packets, lost_percent| Throughput {
            mbps: 0.0,
            bytes: 0,
            retransmits: 0,
            seconds: 1.0,
            lost_percent,
            packets,
            per_second: Vec::new(),
        };
        // 1448 bytes are 11,584 bits.
        assert_eq!(verdict(11_584_000, &seen(1000, 0.5)), Verdict::Arrives);
        assert_eq!(verdict(11_584_000, &seen(1000, 1.5)), Verdict::Drowns);
        assert_eq!(verdict(11_584_000, &seen(900, 0.5)), Verdict::Limit);
        assert_eq!(verdict(11_584_000, &seen(900, 1.5)), Verdict::Drowns);
    }

    #[test]
    fn names_are_unique() {
        let keys: std::collections::BTreeSet<_> = CASES.iter().map(|case| case.key).collect();
        assert_eq!(keys.len(), CASES.len());
        assert!(Case::find("tcp-1-no-offload").is_some_and(|case| case.offloads == Offloads::NONE));
    }
}
