//! Waits that end by success, by a time limit, by Ctrl-C or because the other side stopped.

use crate::interrupt::SLICE;
use crate::{Error, Interrupt, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A time limit for the threads of one experiment. A stop request reaches all clones.
#[derive(Clone, Debug)]
pub struct Deadline {
    what: String,
    limit: Duration,
    end: Instant,
    stopped: Arc<AtomicBool>,
}

impl Deadline {
    /// Begins now. `what` names what is waited for.
    pub fn new(what: impl Into<String>, limit: Duration) -> Self {
        Self { what: what.into(), limit, end: Instant::now() + limit, stopped: Arc::default() }
    }

    /// Makes the waits of all clones end.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
    }

    /// Whether [`stop`](Self::stop) was called on any clone.
    pub fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    /// The remaining time.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// Fails if there is a reason to stop waiting.
    pub fn check(&self) -> Result<()> {
        Interrupt::check()?;
        match (self.stopped(), self.left().is_zero()) {
            (true, _) => Err(Error::Interrupted),
            (false, true) => Err(self.expired()),
            (false, false) => Ok(()),
        }
    }

    /// The error for a passed deadline.
    pub fn expired(&self) -> Error {
        Error::TimedOut { what: self.what.clone(), limit: self.limit }
    }

    /// Waits until `fd` can be read.
    pub fn readable(&self, fd: impl AsFd) -> Result<()> {
        loop {
            self.check()?;
            if readable_within(fd.as_fd(), self.left().min(SLICE)).map_err(Error::io(&self.what))? {
                return Ok(());
            }
        }
    }

    /// Repeats a socket operation that has a short timeout until it succeeds or fails for another reason.
    pub fn retry<T>(&self, mut operation: impl FnMut() -> io::Result<T>) -> Result<T> {
        loop {
            self.check()?;
            match operation() {
                Err(cause) if is_timeout(&cause) => {}
                done => return done.map_err(Error::io(&self.what)),
            }
        }
    }
}

/// Whether a socket operation ended only because of its timeout or a signal.
pub fn is_timeout(cause: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(cause.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Whether `fd` becomes readable within `limit`; a signal ends the wait early.
pub(crate) fn readable_within(fd: impl AsFd, limit: Duration) -> io::Result<bool> {
    let timeout = Timespec::try_from(limit).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(cause) => Err(cause.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_says_what_it_was_for() {
        let message =
            Deadline::new("the tide", Duration::ZERO).check().expect_err("no time").to_string();
        assert_eq!(message, "the tide did not finish within 0 s");
    }

    #[test]
    fn stopping_one_clone_stops_all() {
        let deadline = Deadline::new("a wait", Duration::from_secs(60));
        let other = deadline.clone();
        assert!(other.check().is_ok());
        deadline.stop();
        assert!(matches!(other.check(), Err(Error::Interrupted)));
    }

    #[test]
    fn silence_is_not_readable_and_closing_is() {
        let (reader, writer) = rustix::pipe::pipe().expect("pipe");
        assert!(!readable_within(&reader, Duration::from_millis(1)).expect("poll"));
        drop(writer);
        let closed = Deadline::new("the pipe", Duration::from_secs(60)).readable(&reader);
        assert!(closed.is_ok());
    }
}
