//! What every check uses: this domain, the count of checks, and waiting.

use std::error::Error;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::{DomId, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xen::{Peer, Xen, XenGuest};

/// What a check answers: nothing, or what was wrong.
pub type Outcome = Result<(), Box<dyn Error>>;

/// This domain, as both ends.
pub struct Here {
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

/// An error unless something holds.
pub fn ensure(holds: bool, what: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

/// An error unless two things are equal.
#[expect(
    clippy::needless_pass_by_value,
    reason = "as an assertion's arguments: nobody needs them after"
)]
pub fn equal<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Outcome {
    ensure(found == expected, format!("{found:?} instead of {expected:?}"))
}

/// Whether a descriptor becomes readable in time.
pub fn readable(fd: &impl AsFd, patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
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

/// Long enough for anything that happens at all.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Long enough for what shall not happen to have happened.
pub const MOMENT: Duration = Duration::from_millis(300);
