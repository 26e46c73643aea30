//! How often front-ends may come, and have work done.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use token_bucket::Pace;

use crate::lock;

/// Sessions that may begin at once.
const SESSIONS: u32 = 20;
/// Sessions per second after that.
const SESSIONS_PER_SECOND: u32 = 10;

/// How often sessions may begin: a front-end that connects and goes, again and again, costs its own time and no more
/// lines in the log.
#[must_use]
pub fn session_pace(now: Instant) -> Pace {
    Pace::new(SESSIONS, SESSIONS_PER_SECOND, now)
}

/// Messages that a front-end may send at once, each with one more for each of its descriptors: with 64 pairs of rings QEMU sends some 1500.
const MESSAGES: u32 = 8192;
/// Messages and descriptors per second after that. A message costs what a front-end asks of it, such as 32 mappings.
const MESSAGES_PER_SECOND: u32 = 1000;
/// How often rings may be started at once: a guest may enable 64 pairs one by one. Starts and stops are the work of a thread that all ports share.
const STARTS: u32 = 128;
/// Starts per second after that.
const STARTS_PER_SECOND: u32 = 10;

/// How often the front-ends of a port may have work done. A session has what those before it left: one that began anew with each session would
/// be no pace for a front-end that connects again and again.
#[derive(Debug)]
pub struct Paces {
    messages: Mutex<Pace>,
    starts: Mutex<Pace>,
}

impl Paces {
    /// Those of a port that no front-end has come to.
    #[must_use]
    pub fn new() -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            messages: Mutex::new(Pace::new(MESSAGES, MESSAGES_PER_SECOND, now)),
            starts: Mutex::new(Pace::new(STARTS, STARTS_PER_SECOND, now)),
        })
    }

    /// How long the next message must wait.
    pub(crate) fn until_message(&self) -> Duration {
        lock(&self.messages).wait(Instant::now())
    }

    /// Counts messages, and descriptors.
    pub(crate) fn count_messages(&self, count: u32) {
        lock(&self.messages).count(count, Instant::now());
    }

    /// How long the next start of rings must wait.
    pub(crate) fn until_start(&self) -> Duration {
        lock(&self.starts).wait(Instant::now())
    }

    /// Counts a start.
    pub(crate) fn count_start(&self) {
        lock(&self.starts).count(1, Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_begin_at_once_until_there_are_too_many() {
        let start = Instant::now();
        let mut pace = session_pace(start);
        for _ in 0..SESSIONS {
            assert_eq!(pace.begin(start), Duration::ZERO);
        }
        let late = pace.begin(start);
        assert!(late > Duration::ZERO && late <= Duration::from_secs(1) / SESSIONS_PER_SECOND);
        assert!(pace.begin(start) > late);
        assert_eq!(pace.begin(start + Duration::from_secs(60)), Duration::ZERO);
    }
}
