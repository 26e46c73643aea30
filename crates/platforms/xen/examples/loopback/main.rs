//! Proves the crate on a real Xen, in dom0 alone: one process is frontend and backend.
//!
//! Needs root, xenstored, and the drivers xen-gntdev, xen-gntalloc and xen-evtchn; xen-netback and
//! xen-netfront must not be loaded, or they take the interfaces that are made here. Prints a line
//! for each check, and ends with PASS or FAIL.
//!
//! For what one domain alone cannot prove: run `loopback guest` in another domain, and then
//! `loopback other DOMID` here, which ends that domain.

mod events;
mod frames;
mod grants;
mod other;
mod store;

use std::error::Error;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hypervisor::DomId;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use xen::{Peer, Xen, XenGuest};
use xenstore::{Client, Store};

/// A check's result: nothing, or what was wrong.
type Outcome = Result<(), Box<dyn Error>>;

/// This domain, as both ends.
pub struct Here {
    domid: DomId,
    xen: Xen,
    guest: XenGuest,
    peer: Peer,
    store: Arc<dyn Store>,
}

/// The checks so far.
#[derive(Default)]
pub struct Checks {
    done: u32,
    failed: u32,
}

impl Checks {
    fn check(&mut self, what: &str, outcome: Outcome) {
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
fn ensure(holds: bool, what: impl Into<String>) -> Outcome {
    if holds { Ok(()) } else { Err(what.into().into()) }
}

/// An error unless two things are equal.
#[expect(
    clippy::needless_pass_by_value,
    reason = "as an assertion's arguments: nobody needs them after"
)]
fn equal<T: PartialEq + std::fmt::Debug>(found: T, expected: T) -> Outcome {
    ensure(found == expected, format!("{found:?} instead of {expected:?}"))
}

/// Whether a descriptor becomes readable in time.
fn readable(fd: &impl AsFd, patience: Duration) -> bool {
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

/// Long enough for everything that should happen.
const PATIENCE: Duration = Duration::from_secs(10);
/// Long enough to see what should not happen.
const MOMENT: Duration = Duration::from_millis(300);

fn open() -> Result<Here, Box<dyn Error>> {
    let xen = Xen::open()?;
    let store: Arc<dyn Store> = Arc::new(Client::new(xen::store::connect()?)?);
    let domid = DomId(store.read(None, "domid")?.parse()?);
    let peer = hypervisor::Hypervisor::peer(&xen, domid)?;
    Ok(Here { domid, guest: XenGuest::open(domid)?, xen, peer, store })
}

fn run(here: &Here) -> Checks {
    let mut checks = Checks::default();
    let before = open_files();
    grants::check(here, &mut checks);
    events::check(here, &mut checks);
    store::check(here, &mut checks);
    frames::check(here, &mut checks);
    checks.check("no descriptor is left open", equal(open_files(), before));
    checks
}

fn main() -> ExitCode {
    let here = match open() {
        Ok(here) => here,
        Err(error) => {
            println!("FAIL  {error}");
            return ExitCode::FAILURE;
        }
    };
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let checks = match arguments[..] {
        [] => run(&here),
        ["other", domid] => other::check(&here, domid),
        ["guest"] => return stay(other::serve(&here)),
        ["hold", gref, port, rings] => return stay(events::hold(&here, gref, port, rings)),
        _ => return stay(Err("arguments: none, `guest`, or `other DOMID`".into())),
    };
    let Checks { done, failed } = checks;
    println!("{} of {done} checks hold", done - failed);
    println!("{}", if failed == 0 { "PASS" } else { "FAIL" });
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The result of a part that runs until it is killed.
fn stay(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("FAIL  {error}");
            ExitCode::FAILURE
        }
    }
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count)
}
