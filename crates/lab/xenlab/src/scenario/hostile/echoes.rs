//! The victim's echo replies, from the output of `ping`.

use report::Samples;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{Error, Result};

/// The fields of a line with the echo's sequence number and its time.
const NUMBER: &str = "icmp_seq=";
const TIME: &str = "time=";
/// A word in the line of a repeated reply: a backend that is killed may carry a frame twice.
const REPEATED: &str = "DUP!";

/// A victim is starved beyond this multiple of the slowest quiet period. Under emulation the attack itself takes CPU
/// time from everybody, so the margin is wide.
const MARGIN: f64 = 10.0;
/// No echo below this is slow: it is a few time slices of the emulated host.
const SLOW_MS: f64 = 100.0;
/// Fewer echoes are not compared: they say nothing about the distribution.
const ECHOES_MIN: u64 = 10;
/// The percentile that is compared. A higher one would measure the emulator: of the twenty echoes in an attack of two
/// seconds, one or two are slow anyway.
const PERCENT: f64 = 90.0;

/// The replies in a period.
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Echoes {
    /// How many echoes were answered.
    pub answered: u64,
    /// How many were sent up to the last one that was answered. Replies to later ones may be on their way.
    pub asked: u64,
    /// The 90th percentile of the replies' times, in milliseconds.
    pub p90_ms: f64,
    /// The longest time of a reply, in milliseconds.
    pub longest_ms: f64,
}

/// The victim's replies without an attack, for comparison.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Baseline {
    /// Several periods of the same run: a single one may be fast or slow by chance.
    pub quiet: Vec<Echoes>,
    /// The 90th percentile that an attack may cause, in milliseconds.
    pub limit_ms: f64,
}

impl Baseline {
    /// The limit is a multiple of the slowest period's 90th percentile.
    #[must_use]
    pub fn new(quiet: Vec<Echoes>) -> Self {
        let slowest = quiet.iter().map(|echoes| echoes.p90_ms).fold(0.0, f64::max);
        Self { limit_ms: (MARGIN * slowest).max(SLOW_MS), quiet }
    }

    /// Whether an attack with these replies starved the victim.
    #[must_use]
    pub fn is_starved(&self, echoes: &Echoes) -> bool {
        echoes.answered >= ECHOES_MIN && echoes.p90_ms > self.limit_ms
    }

    /// The complaint if an attack with these replies starved the victim.
    #[must_use]
    pub fn complaint(&self, echoes: &Echoes) -> Option<String> {
        let limit = self.limit_ms;
        self.is_starved(echoes).then(|| {
            format!(
                "the victim was starved: 90 % of its echoes took up to {:.0} ms, and {limit:.0} ms is the limit",
                echoes.p90_ms
            )
        })
    }
}

impl std::fmt::Display for Baseline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let quiet = self.quiet.iter();
        let quiet: Vec<_> = quiet.map(|echoes| format!("{:.1}", echoes.p90_ms)).collect();
        write!(
            f,
            "90 % of the victim's echoes without an attack: within {} ms; with one, at most {:.0} ms",
            quiet.join(", "),
            self.limit_ms
        )
    }
}

impl Echoes {
    /// Counts the replies after sequence number `before`.
    pub fn after(before: u64, lines: &str) -> Result<Self> {
        let mut echoes = Self { answered: 0, asked: 0, p90_ms: 0.0, longest_ms: 0.0 };
        let mut times = Samples::new();
        for line in lines.lines().filter(|line| is_reply(line)) {
            let number = sequence(line)?;
            if number > before {
                echoes.answered += 1;
                echoes.asked = echoes.asked.max(number - before);
                times.push(value(line, TIME)?);
            }
        }
        echoes.p90_ms = times.percentile(PERCENT).unwrap_or(0.0);
        echoes.longest_ms = times.percentile(100.0).unwrap_or(0.0);
        Ok(echoes)
    }

    /// Whether all were answered.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.asked > 0 && self.answered == self.asked
    }
}

/// A command that prints the lines of replies in a file of `ping`'s output. While no backend runs, `ping` prints errors
/// too.
#[must_use]
pub fn replies(file: &str) -> String {
    format!("grep {TIME} {file} | grep -v '{REPEATED}'")
}

fn is_reply(line: &str) -> bool {
    line.contains(NUMBER) && line.contains(TIME) && !line.contains(REPEATED)
}

/// The sequence number in a line.
pub fn sequence(line: &str) -> Result<u64> {
    value(line, NUMBER)
}

fn value<T: std::str::FromStr>(line: &str, name: &str) -> Result<T> {
    let rest = line.split(name).nth(1).and_then(|rest| rest.split_whitespace().next());
    let missing = || Error::parse("ping", &format!("no {name}"), line);
    rest.and_then(|word| word.parse().ok()).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    // Recorded with ping of iputils 20221126.
    const LINES: &str = "PING 10.0.0.2 (10.0.0.2) 56(84) bytes of data.\n\
        64 bytes from 10.0.0.2: icmp_seq=1 ttl=64 time=3.42 ms\n\
        64 bytes from 10.0.0.2: icmp_seq=2 ttl=64 time=212 ms\n\
        64 bytes from 10.0.0.2: icmp_seq=4 ttl=64 time=0.90 ms\n";

    #[test]
    fn a_gap_in_the_sequence_is_a_lost_echo() {
        let echoes = Echoes::after(0, LINES).expect("recorded");
        assert_eq!(echoes, Echoes { answered: 3, asked: 4, p90_ms: 212.0, longest_ms: 212.0 });
        assert!(!echoes.is_complete());
    }

    #[test]
    fn only_later_echoes_count() {
        let echoes = Echoes::after(3, LINES).expect("recorded");
        assert_eq!(echoes, Echoes { answered: 1, asked: 1, p90_ms: 0.9, longest_ms: 0.9 });
        assert!(echoes.is_complete());
        assert!(!Echoes::after(4, LINES).expect("recorded").is_complete());
    }

    #[test]
    fn errors_and_repeated_replies_are_not_replies() {
        let lines = "From 10.0.0.1 icmp_seq=1 Destination Host Unreachable\n\
            ping: sendmsg: Network is unreachable\n\
            64 bytes from 10.0.0.2: icmp_seq=2 ttl=64 time=3.42 ms\n\
            64 bytes from 10.0.0.2: icmp_seq=2 ttl=64 time=5.10 ms (DUP!)\n";
        let echoes = Echoes::after(1, lines).expect("lines of ping");
        assert_eq!((echoes.answered, echoes.asked, echoes.longest_ms), (1, 1, 3.42));
        assert!(!Echoes::after(0, lines).expect("lines of ping").is_complete());
    }

    /// Twenty replies, of which the last ones took `slow` milliseconds.
    fn replies(slow: [f64; 3]) -> Echoes {
        let times = [[4.0; 17].as_slice(), &slow].concat();
        let lines =
            (1..).zip(times).map(|(n, time)| format!("icmp_seq={n} ttl=64 time={time} ms\n"));
        Echoes::after(0, &lines.collect::<String>()).expect("replies")
    }

    #[test]
    fn a_starved_victim_is_found_and_a_slow_emulator_is_not() {
        let quiet = [[4.0; 3], [12.0, 15.0, 90.0], [4.0; 3]].map(replies);
        let baseline = Baseline::new(quiet.to_vec());
        assert_eq!((quiet[1].p90_ms, baseline.limit_ms), (12.0, 120.0));
        // One or two slow echoes in twenty happen without an attack.
        assert!(!baseline.is_starved(&replies([4.0, 300.0, 900.0])));
        assert!(baseline.is_starved(&replies([121.0, 300.0, 900.0])));
        // A host that is fast when quiet does not make 50 ms a failure.
        let fast = Baseline::new(vec![replies([4.0; 3])]);
        assert!(!fast.is_starved(&replies([50.0; 3])) && fast.is_starved(&replies([101.0; 3])));
    }

    #[test]
    fn a_few_echoes_are_not_compared() {
        let few = Echoes::after(0, LINES).expect("recorded");
        assert!(!Baseline::new(vec![few]).is_starved(&Echoes { p90_ms: 9e9, ..few }));
    }

    #[test]
    fn a_line_without_a_number_is_an_error() {
        assert_eq!(sequence(LINES.lines().last().expect("a line")).expect("recorded"), 4);
        assert!(sequence("ping: connect: Network is unreachable").is_err());
    }
}
