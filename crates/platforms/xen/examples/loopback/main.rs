//! Tests the crate on a real Xen, in dom0 alone: one process is frontend and backend.
//!
//! Needs root, xenstored, and the drivers xen-gntdev, xen-gntalloc and xen-evtchn; xen-netback and
//! xen-netfront must not be loaded, or they take the interfaces that are made here. Prints a line
//! for each check, and ends with PASS or FAIL.
//!
//! To test with another domain's pages, run `loopback guest` in that domain, and then
//! `loopback other DOMID` here, which destroys that domain.

mod checks;
mod events;
mod frames;
mod grants;
mod other;
mod store;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use hypervisor::DomId;
use xen::{Xen, XenGuest};
use xenstore::{Client, Store};

use checks::{Checks, Loopback, Outcome, equal};

fn open() -> Result<Loopback, Box<dyn Error>> {
    let xen = Xen::open()?;
    let store: Arc<dyn Store> = Arc::new(Client::new(xen::store::connect()?)?);
    let domid = DomId(store.read(None, "domid")?.parse()?);
    let peer = hypervisor::Hypervisor::peer(&xen, domid)?;
    Ok(Loopback { domid, guest: XenGuest::open(domid)?, xen, peer, store })
}

fn run(here: &Loopback) -> Checks {
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

/// The exit code of a helper process.
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
