//! Event channels, and what a killed process leaves.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hypervisor::{DomId, Error, EventChannel, EvtchnPort, GrantRef, Guest, Hypervisor};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::checks::{Checks, Loopback, Outcome, QUIET_PERIOD, TIMEOUT, ensure, readable};

pub fn check(here: &Loopback, checks: &mut Checks) {
    checks.check("events arrive in both directions, and can be taken", both_ways(here));
    checks.check("every event after a poll makes a new edge", edges(here));
    checks.check("10,000 events in a row are neither lost nor stuck", ping_pong(here));
    checks.check("ports that are not offered are refused", refused(here));
    checks.check("a closed end can be bound again", again(here));
    checks.check("the frontend gets an event when its backend is killed", killed(here, true));
    checks.check("without notify_on_unmap it gets none", killed(here, false));
}

fn both_ways(here: &Loopback) -> Outcome {
    let (theirs, port) = here.guest.alloc_unbound(here.domid)?;
    ensure(!readable(&theirs, QUIET_PERIOD), "an event before anybody is bound")?;
    let ours = here.xen.bind_interdomain(&here.peer, port)?;
    // Xen sends an event to the end that binds: something may have happened before.
    ensure(readable(&ours, TIMEOUT), "no event with the binding")?;
    ours.take()?;
    for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
        ensure(!readable(to, Duration::ZERO), "an event too early")?;
        from.notify()?;
        ensure(readable(to, TIMEOUT), "no event")?;
        to.take()?;
        ensure(!readable(to, QUIET_PERIOD), "an event that was taken")?;
        to.take()?;
    }
    Ok(())
}

/// Waits edge-triggered.
struct Edges(std::os::fd::OwnedFd);

impl Edges {
    fn of(fd: impl AsFd) -> rustix::io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, fd, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
        Ok(Self(epoll))
    }

    fn next(&self, timeout: Duration) -> bool {
        let mut events = Vec::with_capacity(4);
        let timeout = Timespec::try_from(timeout).ok();
        epoll::wait(&self.0, spare_capacity(&mut events), timeout.as_ref()).is_ok_and(|n| n > 0)
    }
}

fn edges(here: &Loopback) -> Outcome {
    let (theirs, port) = here.guest.alloc_unbound(here.domid)?;
    let ours = here.xen.bind_interdomain(&here.peer, port)?;
    let edges = Edges::of(&ours)?;
    ensure(edges.next(TIMEOUT), "no edge with the binding")?;
    ours.take()?;
    theirs.notify()?;
    ensure(edges.next(TIMEOUT), "no edge")?;
    // This event comes while the port is masked. It must not be lost.
    theirs.notify()?;
    ensure(!edges.next(QUIET_PERIOD), "an edge before the event is taken")?;
    ours.take()?;
    ensure(edges.next(TIMEOUT), "no edge for an event that came before the take")?;
    ours.take()?;
    ensure(!edges.next(QUIET_PERIOD), "an edge for nothing")
}

fn ping_pong(here: &Loopback) -> Outcome {
    const ROUNDS: u32 = 10_000;
    let (theirs, port) = here.guest.alloc_unbound(here.domid)?;
    let ours = here.xen.bind_interdomain(&here.peer, port)?;
    let wait = |edges: &Edges| ensure(edges.next(TIMEOUT), "an event was lost");
    std::thread::scope(|scope| {
        let back = scope.spawn(move || {
            let edges = Edges::of(&ours).map_err(|error| error.to_string())?;
            // One event more than rounds: that of the binding.
            for _ in 0..=ROUNDS {
                wait(&edges).map_err(|error| error.to_string())?;
                ours.take().and_then(|()| ours.notify()).map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        });
        let edges = Edges::of(&theirs)?;
        wait(&edges)?;
        for _ in 0..ROUNDS {
            theirs.take()?;
            theirs.notify()?;
            wait(&edges)?;
        }
        back.join().map_err(|_| "panicked")?.map_err(Into::into)
    })
}

fn refused(here: &Loopback) -> Outcome {
    let (_theirs, port) = here.guest.alloc_unbound(here.domid)?;
    let bind = |port| here.xen.bind_interdomain(&here.peer, port);
    let bound = bind(port)?;
    for port in [port, EvtchnPort(3), EvtchnPort(u32::MAX)] {
        let result = bind(port);
        ensure(matches!(result, Err(Error::BadPort { .. })), format!("{port}: {result:?}"))?;
    }
    drop(bound);
    let nobody = here.xen.peer(DomId(0x7000))?;
    let result = here.xen.bind_interdomain(&nobody, port);
    ensure(matches!(result, Err(Error::NoDomain(_))), format!("{result:?}"))
}

fn again(here: &Loopback) -> Outcome {
    let (theirs, port) = here.guest.alloc_unbound(here.domid)?;
    for _ in 0..50 {
        let ours = here.xen.bind_interdomain(&here.peer, port)?;
        ours.notify()?;
        ensure(readable(&theirs, TIMEOUT), "no event")?;
        theirs.take()?;
        drop(ours);
        theirs.notify()?;
    }
    Ok(())
}

/// A child that binds a port and maps a page, and is killed.
fn killed(here: &Loopback, rings: bool) -> Outcome {
    let (_page, grefs) = here.guest.share(here.domid, 1)?;
    let (event, port) = here.guest.alloc_unbound(here.domid)?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["hold", &grefs[0].to_string(), &port.to_string(), &rings.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let outcome = while_held(&mut child, || {
        ensure(!readable(&event, QUIET_PERIOD), "an event before the kill")
    });
    child.kill()?;
    child.wait()?;
    outcome?;
    match rings {
        true => ensure(readable(&event, TIMEOUT), "no event"),
        false => ensure(!readable(&event, QUIET_PERIOD), "an event"),
    }
}

fn while_held(child: &mut Child, check: impl FnOnce() -> Outcome) -> Outcome {
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    ensure(line == "held\n", format!("the child says {line:?}"))?;
    check()
}

/// The child: holds a mapping and a port until it or its parent is killed.
pub fn hold(here: &Loopback, gref: &str, port: &str, rings: &str) -> Outcome {
    let mapping = here.xen.map(&here.peer, &[GrantRef(gref.parse()?)])?;
    let event = here.xen.bind_interdomain(&here.peer, EvtchnPort(port.parse()?))?;
    if rings.parse()? {
        here.xen.notify_on_unmap(&mapping, &event);
    }
    println!("held");
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}
