//! ICMP echoes, sent by `ping` of iputils.

use crate::{Error, Namespace, Process, Result};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

/// Summary of a run of echo requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ping {
    /// Requests sent.
    pub sent: u64,
    /// Replies received.
    pub received: u64,
    /// Requests without a reply, in per cent.
    pub loss_percent: f64,
    /// Round-trip times; `None` without replies.
    pub rtt: Option<RoundTrip>,
}

/// Round-trip times of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundTrip {
    /// The shortest.
    pub min: Duration,
    /// The mean.
    pub avg: Duration,
    /// The longest.
    pub max: Duration,
    /// The standard deviation.
    pub mdev: Duration,
}

/// Sends `count` requests from `namespace` to `address`, one every `interval`, and waits two seconds for late replies. More
/// requests go out meanwhile; they are not counted. No reply at all is not an error.
pub fn ping(
    namespace: &Namespace,
    address: impl Into<IpAddr>,
    count: u32,
    interval: Duration,
) -> Result<Ping> {
    let mut command = namespace.exec("ping")?;
    // Without a deadline, ping waits for the last reply only as long as for the next request, or twice the longest
    // round trip. With one, it goes on with requests until `count` were answered.
    let deadline = (interval * count).as_secs_f64().ceil() + 2.0;
    command.args(["-n", "-w", &format!("{deadline}"), "-c", &count.to_string()]);
    command.args(["-i", &format!("{:.6}", interval.as_secs_f64()), &address.into().to_string()]);
    let mut process = Process::capture(command)?;
    let status = process.wait(interval * count + Duration::from_secs(10))?;
    // Status 1: replies are missing; the summary says how many. Status 2: there is no summary.
    if status.code() != Some(1) {
        process.succeed(Duration::ZERO)?;
    }
    let text = process.stdout();
    Ok(Ping::parse(&text)?.without_spares(count.into(), &text))
}

impl Ping {
    /// Parses the output of `ping`.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |cause: &str| Error::parse("the output of ping", cause);
        let counts = text
            .lines()
            .find(|line| line.contains("packets transmitted"))
            .ok_or_else(|| bad("no summary"))?;
        let sent =
            before(counts, " packets transmitted").ok_or_else(|| bad("no number of packets"))?;
        let received = before(counts, " received").ok_or_else(|| bad("no number of replies"))?;
        let loss_percent = before(counts, "% packet loss").ok_or_else(|| bad("no loss"))?;
        let times = text.lines().find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "));
        let rtt = times
            .map(|times| round_trip(times).ok_or_else(|| bad("no round-trip times")))
            .transpose()?;
        Ok(Self { sent, received, loss_percent, rtt })
    }

    /// Counts only the first `count` requests: ping sent the others while it waited. The lines of the replies show which were
    /// answered.
    fn without_spares(self, count: u64, text: &str) -> Self {
        let answered: BTreeSet<u64> = text
            .lines()
            .filter(|line| line.contains(" time="))
            .filter_map(|line| line.split_once(" icmp_seq=")?.1.split(' ').next()?.parse().ok())
            .filter(|number| *number <= count)
            .collect();
        let received = answered.len() as u64;
        let loss_percent = (count - received) as f64 / count.max(1) as f64 * 100.0;
        Self { sent: count, received, loss_percent, ..self }
    }
}

/// The number right before `unit`.
fn before<T: std::str::FromStr>(line: &str, unit: &str) -> Option<T> {
    let (head, _) = line.split_once(unit)?;
    head.rsplit([' ', ',']).next()?.parse().ok()
}

/// `0.054/0.073/0.092/0.012 ms`, with possibly more after it.
fn round_trip(times: &str) -> Option<RoundTrip> {
    let (numbers, _) = times.split_once(" ms")?;
    let mut durations = numbers
        .split('/')
        .map(|number| Duration::try_from_secs_f64(number.parse::<f64>().ok()? / 1e3).ok());
    let mut next = || durations.next().flatten();
    Some(RoundTrip { min: next()?, avg: next()?, max: next()?, mdev: next()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // Recorded with ping of iputils 20221126.
    const REPLIES: &str = "PING 10.9.0.2 (10.9.0.2) 56(84) bytes of data.\n\n--- 10.9.0.2 ping statistics ---\n\
        5 packets transmitted, 5 received, 0% packet loss, time 815ms\n\
        rtt min/avg/max/mdev = 0.054/0.073/0.092/0.012 ms\n";
    const SILENCE: &str = "PING 10.9.0.77 (10.9.0.77) 56(84) bytes of data.\n\n--- 10.9.0.77 ping statistics ---\n\
        2 packets transmitted, 0 received, 100% packet loss, time 203ms\n\n";
    const FAST: &str = "--- 10.77.0.2 ping statistics ---\n\
        3 packets transmitted, 2 received, +1 duplicates, 33.3333% packet loss, time 2ms\n\
        rtt min/avg/max/mdev = 0.010/0.020/0.030/0.004 ms, ipg/ewma 1.050/0.029 ms\n";

    #[test]
    fn replies() {
        let us = Duration::from_micros;
        let rtt = RoundTrip { min: us(54), avg: us(73), max: us(92), mdev: us(12) };
        assert_eq!(
            Ping::parse(REPLIES).expect("recorded"),
            Ping { sent: 5, received: 5, loss_percent: 0.0, rtt: Some(rtt) }
        );
    }

    #[test]
    fn silence_is_a_result() {
        assert_eq!(
            Ping::parse(SILENCE).expect("recorded"),
            Ping { sent: 2, received: 0, loss_percent: 100.0, rtt: None }
        );
    }

    #[test]
    fn more_words_do_not_confuse() {
        let ping = Ping::parse(FAST).expect("well-formed");
        assert_eq!(
            (ping.sent, ping.received, ping.rtt.map(|rtt| rtt.max)),
            (3, 2, Some(Duration::from_micros(30)))
        );
        assert!((ping.loss_percent - 33.3333).abs() < 1e-9);
    }

    // What ping with a deadline writes when two replies are late.
    const LATE: &str = "PING 10.9.0.2 (10.9.0.2) 56(84) bytes of data.\n\
        64 bytes from 10.9.0.2: icmp_seq=1 ttl=64 time=300 ms\n\
        64 bytes from 10.9.0.2: icmp_seq=2 ttl=64 time=300 ms\n\n\
        --- 10.9.0.2 ping statistics ---\n\
        4 packets transmitted, 2 received, 50% packet loss, time 406ms\n\
        rtt min/avg/max/mdev = 300.1/300.1/300.1/0.0 ms\n";

    #[test]
    fn a_late_reply_is_none_lost_and_a_hole_is() {
        let late = Ping::parse(LATE).expect("well-formed").without_spares(2, LATE);
        assert_eq!((late.sent, late.received, late.loss_percent), (2, 2, 0.0));
        let hole = LATE.replace("icmp_seq=2", "icmp_seq=3");
        let hole = Ping::parse(&hole).expect("as above").without_spares(2, &hole);
        assert_eq!((hole.sent, hole.received), (2, 1));
        let silence = Ping::parse(SILENCE).expect("recorded").without_spares(1, SILENCE);
        assert_eq!((silence.sent, silence.received, silence.loss_percent), (1, 0, 100.0));
    }

    #[test]
    fn no_summary_is_an_error() {
        assert!(matches!(
            Ping::parse("ping: connect: Network is unreachable"),
            Err(Error::Parse { .. })
        ));
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[0-9a-z%/.,=\n -]{0,200}") {
            let _ = Ping::parse(&format!("{text} packets transmitted{text} received{text}% packet loss\nrtt min/avg/max/mdev = {text} ms"));
        }
    }
}
