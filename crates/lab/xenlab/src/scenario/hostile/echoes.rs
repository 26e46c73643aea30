//! The victim's echo replies, from the output of `ping`.

use serde::Serialize;

use crate::{Error, Result};

/// The fields of a line with the echo's sequence number and its time.
const NUMBER: &str = "icmp_seq=";
const TIME: &str = "time=";

/// The replies in a period.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Echoes {
    /// How many echoes were answered.
    pub answered: u64,
    /// How many were sent, up to the last one answered: replies to later ones may be on their way.
    pub asked: u64,
    /// The longest time of one, in milliseconds.
    pub longest_ms: f64,
}

impl Echoes {
    /// Counts those after sequence number `before`.
    ///
    /// # Errors
    /// [`Error::Parse`].
    pub fn after(before: u64, lines: &str) -> Result<Self> {
        let mut echoes = Self { answered: 0, asked: 0, longest_ms: 0.0 };
        for line in lines.lines().filter(|line| line.contains(NUMBER)) {
            let number = sequence(line)?;
            if number > before {
                echoes.answered += 1;
                echoes.asked = echoes.asked.max(number - before);
                echoes.longest_ms = echoes.longest_ms.max(value(line, TIME)?);
            }
        }
        Ok(echoes)
    }

    /// Whether all were answered.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.asked > 0 && self.answered == self.asked
    }
}

/// The sequence number in a line.
///
/// # Errors
/// [`Error::Parse`].
pub fn sequence(line: &str) -> Result<u64> {
    value(line, NUMBER)
}

fn value<T: std::str::FromStr>(line: &str, name: &str) -> Result<T> {
    let rest = line.split(name).nth(1).and_then(|rest| rest.split_whitespace().next());
    rest.and_then(|word| word.parse().ok()).ok_or_else(|| Error::Parse {
        what: "ping".to_owned(),
        cause: format!("no {name}"),
        text: line.to_owned(),
    })
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
        assert_eq!(echoes, Echoes { answered: 3, asked: 4, longest_ms: 212.0 });
        assert!(!echoes.is_complete());
    }

    #[test]
    fn only_later_echoes_count() {
        let echoes = Echoes::after(3, LINES).expect("recorded");
        assert_eq!(echoes, Echoes { answered: 1, asked: 1, longest_ms: 0.9 });
        assert!(echoes.is_complete());
        assert!(!Echoes::after(4, LINES).expect("recorded").is_complete());
    }

    #[test]
    fn a_line_without_a_number_is_an_error() {
        assert_eq!(sequence(LINES.lines().last().expect("a line")).expect("recorded"), 4);
        assert!(sequence("ping: connect: Network is unreachable").is_err());
    }
}
