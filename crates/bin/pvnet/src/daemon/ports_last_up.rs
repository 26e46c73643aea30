//! The ports that were up last, for the next daemon: it carries no frame before they are back.
//!
//! A frame to a port that is not back yet is lost, and its sender waits for longer than the restart takes: 200 ms for TCP,
//! a second for ARP.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ports that take longer to come back are not waited for.
const WAIT: Duration = Duration::from_millis(150);
/// The file in the daemon's folder: a name per line.
const FILE: &str = "ports";

/// The names of the ports that are up, in a file, and those that the last daemon has left in it.
#[derive(Debug)]
pub(super) struct PortsLastUp {
    file: PathBuf,
    up: Vec<String>,
    /// The ports that were up under the last daemon, until all of them are.
    awaited: Vec<String>,
    until: Option<Instant>,
}

impl PortsLastUp {
    /// Reads what the last daemon has left.
    pub(super) fn open(folder: &Path) -> Self {
        let file = folder.join(FILE);
        // There is none before the first daemon.
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let up: Vec<_> = text.lines().map(str::to_owned).collect();
        Self { file, awaited: up.clone(), up, until: None }
    }

    /// Whether ports are awaited.
    pub(super) fn is_waiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// From `now` on, ports can come back.
    pub(super) fn begin(&mut self, now: Instant) {
        self.until = Some(now + WAIT);
    }

    /// How long ports are awaited at most from `now` on.
    pub(super) fn left(&self, now: Instant) -> Option<Duration> {
        let until = self.until.filter(|_| self.is_waiting())?;
        Some(until.saturating_duration_since(now))
    }

    /// Records these ports as up. Returns whether the wait for others ends now.
    pub(super) fn note(&mut self, mut up: Vec<&str>, now: Instant) -> bool {
        up.sort_unstable();
        if up != self.up {
            self.up = up.into_iter().map(str::to_owned).collect();
            // Without it the next daemon waits for none.
            let _ = std::fs::write(&self.file, self.up.join("\n"));
        }
        let is_back = |name: &String| self.up.binary_search(name).is_ok();
        let ends = self.is_waiting()
            && (self.awaited.iter().all(is_back) || self.left(now) == Some(Duration::ZERO));
        if ends {
            self.awaited.clear();
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use host::TempDir;

    use super::*;

    #[test]
    fn the_next_daemon_waits_for_the_ports_of_the_last_one() {
        let folder = TempDir::new().unwrap();
        let now = Instant::now();
        let mut first = PortsLastUp::open(folder.path());
        first.begin(now);
        assert!(!first.is_waiting() && first.left(now).is_none());
        assert!(!first.note(vec!["red", "blue"], now));
        let mut second = PortsLastUp::open(folder.path());
        assert!(second.is_waiting());
        second.begin(now);
        assert_eq!(second.left(now), Some(WAIT));
        assert!(!second.note(vec![], now));
        assert!(!second.note(vec!["red", "green"], now));
        assert!(second.note(vec!["red", "green", "blue"], now), "all are back");
        assert!(!second.is_waiting());
        assert!(!second.note(vec!["green"], now), "it waits once");
        assert_eq!(PortsLastUp::open(folder.path()).awaited, ["green"]);
    }

    #[test]
    fn it_does_not_wait_for_ever() {
        let folder = TempDir::new().unwrap();
        let now = Instant::now();
        PortsLastUp::open(folder.path()).note(vec!["red"], now);
        let mut next = PortsLastUp::open(folder.path());
        assert!(!next.note(vec![], now + WAIT), "no port can have come");
        next.begin(now);
        assert!(!next.note(vec![], now));
        assert!(next.note(vec![], now + WAIT));
        assert_eq!(next.left(now + WAIT), None);
    }
}
