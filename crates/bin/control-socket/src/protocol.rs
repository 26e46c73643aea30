//! Requests, and the answers that are not a status.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::change::ChangeRequest;
use crate::worker::WorkerRequest;

/// How long each side waits for the other.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest request in bytes, its newline included: most of it is a capture's filter, or the tables of new ports.
pub const REQUEST_MAX: u64 = 16 << 10;
/// How long a client waits for a [change](Request::Change): devices are opened meanwhile.
pub const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
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
    /// The contexts of a card taken from a guest, until the guest starts again. An empty answer grants
    /// it; the card touches none of their memory then.
    Revoke {
        /// The card's name.
        card: String,
        /// The guest's name.
        guest: String,
    },
    /// The frames of a port, as a pcapng stream that goes on until the client closes its side.
    Capture(capture::CaptureRequest),
    /// A change of the daemon's ports. It answers with a [`ChangeReport`](crate::ChangeReport), or a [`Refusal`] if nothing was
    /// changed.
    Change(ChangeRequest),
    /// Queues at other workers. It answers with a [`MoveReport`](crate::MoveReport), or a [`Refusal`] if nothing was moved.
    Worker(WorkerRequest),
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status => f.write_str("status"),
            Self::Meter => f.write_str("meter"),
            Self::Balloon { guest, mib } => write!(f, "balloon {guest} {mib}"),
            Self::Revoke { card, guest } => write!(f, "revoke {card} {guest}"),
            Self::Capture(request) => {
                let json = serde_json::to_string(request).map_err(|_| fmt::Error)?;
                write!(f, "capture {json}")
            }
            Self::Change(request) => {
                let json = serde_json::to_string(request).map_err(|_| fmt::Error)?;
                write!(f, "change {json}")
            }
            Self::Worker(request) => {
                let json = serde_json::to_string(request).map_err(|_| fmt::Error)?;
                write!(f, "worker {json}")
            }
        }
    }
}

impl FromStr for Request {
    type Err = Refusal;

    fn from_str(line: &str) -> Result<Self, Refusal> {
        if let Some(json) = line.strip_prefix("capture ") {
            let malformed = |error| Refusal::new(format!("capture: {error}"));
            return serde_json::from_str(json).map(Self::Capture).map_err(malformed);
        }
        if let Some(json) = line.strip_prefix("change ") {
            let malformed = |error| Refusal::new(format!("change: {error}"));
            return serde_json::from_str(json).map(Self::Change).map_err(malformed);
        }
        if let Some(json) = line.strip_prefix("worker ") {
            let malformed = |error| Refusal::new(format!("worker: {error}"));
            return serde_json::from_str(json).map(Self::Worker).map_err(malformed);
        }
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        match words[..] {
            ["status"] => Ok(Self::Status),
            ["meter"] => Ok(Self::Meter),
            ["balloon", guest, mib] => {
                let number = |error| Refusal::new(format!("{mib:?} MiB: {error}"));
                Ok(Self::Balloon { guest: guest.to_owned(), mib: mib.parse().map_err(number)? })
            }
            ["revoke", card, guest] => {
                Ok(Self::Revoke { card: card.to_owned(), guest: guest.to_owned() })
            }
            ["revoke", ..] => Err(Refusal::new("revoke takes a card and a guest")),
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
    use crate::change::Change;

    #[test]
    fn requests_survive_the_socket() {
        let balloon = Request::Balloon { guest: "red".to_owned(), mib: 48 };
        let options = capture::Options {
            filter: "tcp and\n\"port 80\"".to_owned(),
            ..capture::Options::default()
        };
        let capture =
            Request::Capture(capture::CaptureRequest { port: "a red".to_owned(), options });
        let revoke = Request::Revoke { card: "card0".to_owned(), guest: "red".to_owned() };
        let set = Change::Set {
            name: "red".to_owned(),
            set: vec![("limit.egress".to_owned(), "{ mbps = 5 }\n".to_owned())],
            unset: vec!["guard".to_owned()],
        };
        let changes = [
            Change::Reload { candidate: false },
            Change::Reload { candidate: true },
            Change::Add { toml: "[[guest]]\nname = \"red\"\n".to_owned() },
            Change::Delete { name: "red".to_owned() },
            set,
        ];
        let changes = changes.map(|change| Request::Change(ChangeRequest::new(change)));
        let workers = [
            WorkerRequest::Move { port: "a red".to_owned(), queue: 3, worker: 1 },
            WorkerRequest::Rebalance { dry_run: true },
        ];
        let requests = [Request::Status, Request::Meter, balloon, revoke, capture];
        for request in requests.into_iter().chain(changes).chain(workers.map(Request::Worker)) {
            assert_eq!(request.to_string().lines().count(), 1);
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
            ("revoke card0", "a card and a guest"),
            ("capture", "unknown request"),
            ("capture red", "capture: "),
            ("capture {\"port\":\"red\",\"options\":{\"colour\":1}}", "colour"),
            ("change reload", "change: "),
            ("change {\"change\":{\"reload\":{\"colour\":1}}}", "colour"),
            ("change {\"change\":{\"paint\":{}}}", "paint"),
            ("worker {\"stop\":{}}", "stop"),
        ] {
            let refusal = line.parse::<Request>().unwrap_err();
            assert!(refusal.error.contains(reason), "{line}: {refusal:?}");
        }
    }
}
