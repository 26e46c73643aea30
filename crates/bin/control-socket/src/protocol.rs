//! Requests, and the answers that are not a status.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How long each side waits for the other.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest request in bytes, its newline included.
pub const REQUEST_MAX: u64 = 64;
/// The answer to [`Request::Meter`], as one line.
pub const METERED: &str = r#"{"meter":true}"#;

/// What a client asks for, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The [`Status`](crate::Status).
    Status,
    /// The meter on for as long as the connection is open, however its client ends.
    Meter,
    /// A new size of a guest's memory. An empty answer grants it.
    Balloon {
        /// The guest's name.
        guest: String,
        /// MiB that the guest is to have.
        mib: usize,
    },
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => f.write_str("status"),
            Self::Meter => f.write_str("meter"),
            Self::Balloon { guest, mib } => write!(f, "balloon {guest} {mib}"),
        }
    }
}

impl FromStr for Request {
    type Err = Refusal;

    fn from_str(line: &str) -> Result<Self, Refusal> {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["status"] => Ok(Self::Status),
            ["meter"] => Ok(Self::Meter),
            ["balloon", guest, mib] => {
                let number = |error| Refusal::new(format!("{mib:?} MiB: {error}"));
                Ok(Self::Balloon { guest: guest.to_owned(), mib: mib.parse().map_err(number)? })
            }
            ["balloon", ..] => Err(Refusal::new("balloon takes a name and MiB")),
            _ => Err(Refusal::new(format!("unknown request {:?}", line.trim()))),
        }
    }
}

/// The answer to a request that was not granted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Why, for an operator.
    pub error: String,
}

impl Refusal {
    /// A refusal for this reason.
    pub fn new(error: impl Into<String>) -> Self {
        Self { error: error.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_socket() {
        let balloon = Request::Balloon { guest: "red".to_owned(), mib: 48 };
        for request in [Request::Status, Request::Meter, balloon] {
            assert_eq!(request.to_string().parse(), Ok(request));
        }
    }

    #[test]
    fn malformed_requests_are_refused_with_a_reason() {
        for (line, reason) in [
            ("reboot", "unknown request \"reboot\""),
            ("", "unknown request"),
            ("balloon red", "a name and MiB"),
            ("balloon red many", "\"many\" MiB"),
        ] {
            let refusal = line.parse::<Request>().unwrap_err();
            assert!(refusal.error.contains(reason), "{line}: {refusal:?}");
        }
    }
}
