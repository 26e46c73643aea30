//! Used by every check: this domain, the count of checks, and waiting.

use std::error::Error;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::DomId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xen::{Peer, Xen, XenGuest};
use xenstore::Store;

/// A check's result: success, or the failure.
pub type Outcome = Result<(), Box<dyn Error>>;

/// This domain, as both ends.
pub struct Loopback {
    pub domid: DomId,
    pub xen: Xen,
    pub guest: XenGuest,
    pub peer: Peer,
    pub store: Arc<dyn Store>,
}

/// The checks so far.
#[derive(Default)]
pub struct Checks {
    pub done: u32,
    pub failed: u32,
}

impl Checks {
    pub fn check(&mut self, what: &str, outcome: Outcome) {
        self.done += 1;
        match outcome {
            Ok(()) => println!("ok    {what}"),
            Err(error) => {
                self.failed += 1;
                println!("FAIL  {what}: {error}");
            }
        }
    }
}

/// Fails with `what` unless `holds`.
pub fn ensure(holds: bool, what: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

/// Fails unless two values are equal.
#[expect(
    clippy::needless_pass_by_value,
    reason = "like an assertion's arguments, which callers do not need afterwards"
)]
pub fn equal<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Outcome {
    ensure(found == expected, format!("{found:?} instead of {expected:?}"))
}

/// Whether a descriptor becomes readable within `timeout`.
pub fn readable(fd: &impl AsFd, timeout: Duration) -> bool {
    let deadline = Instant::now() + timeout;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(fd, PollFlags::IN)];
        match poll(&mut fds, Timespec::try_from(left).ok().as_ref()) {
            Ok(count) => return count == 1 && fds[0].revents().contains(PollFlags::IN),
            Err(rustix::io::Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// How long to wait for something that must happen.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// How long to wait for something that must not happen.
pub const QUIET_PERIOD: Duration = Duration::from_millis(300);
