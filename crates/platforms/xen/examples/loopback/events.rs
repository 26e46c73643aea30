//! Event channels, and what a killed process leaves behind.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hypervisor::{DomId, Error, EventChannel, GrantRef, Guest, Hypervisor, Port};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use crate::{Checks, Here, MOMENT, Outcome, PATIENCE, ensure, readable};

pub fn check(here: &Here, checks: &mut Checks) {
    checks.check("events ring both ways, and are taken", both_ways(here));
    checks.check("every event after a look makes a new edge", edges(here));
    checks.check("10,000 events in a row are neither lost nor stuck", ping_pong(here));
    checks.check("ports that are not offered are refused", refused(here));
    checks.check("a closed end can be bound again", again(here));
    checks.check("a backend that is killed still rings", killed(here, true));
    checks.check("and without notify_on_unmap it would not", killed(here, false));
}

fn both_ways(here: &Here) -> Outcome {
    let (theirs, port) = here.guest.alloc_unbound(here.domid)?;
    ensure(!readable(&theirs, MOMENT), "an event before anybody is bound")?;
    let ours = here.xen.bind_interdomain(&here.peer, port)?;
    // Xen sends an event at binding: one may have been missed before.
    ensure(readable(&ours, PATIENCE), "no event with the binding")?;
    ours.take()?;
    for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
        ensure(!readable(to, Duration::ZERO), "an event too early")?;
        from.notify()?;
        ensure(readable(to, PATIENCE), "no event")?;
        to.take()?;
        ensure(!readable(to, MOMENT), "an event that was taken")?;
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

    fn next(&self, patience: Duration) -> bool {
        let mut events = Vec::with_capacity(4);
        let timeout = Timespec::try_from(patience).ok();
        epoll::wait(&self.0, spare_capacity(&mut events), timeout.as_ref()).is_ok_and(|n| n > 0)
    }
}

fn edges(here: &Here) -> Outcome {
    let (theirs, port) = here.guest.alloc_unbound(here.domid)?;
    let ours = here.xen.bind_interdomain(&here.peer, port)?;
    let edges = Edges::of(&ours)?;
    ensure(edges.next(PATIENCE), "no edge with the binding")?;
    ours.take()?;
    theirs.notify()?;
    ensure(edges.next(PATIENCE), "no edge")?;
    // This one comes while the port is masked: it must not be lost.
    theirs.notify()?;
    ensure(!edges.next(MOMENT), "an edge before the look")?;
    ours.take()?;
    ensure(edges.next(PATIENCE), "no edge for an event that came before the look")?;
    ours.take()?;
    ensure(!edges.next(MOMENT), "an edge for nothing")
}

fn ping_pong(here: &Here) -> Outcome {
    const ROUNDS: u32 = 10_000;
    let (theirs, port) = here.guest.alloc_unbound(here.domid)?;
    let ours = here.xen.bind_interdomain(&here.peer, port)?;
    let wait = |edges: &Edges| ensure(edges.next(PATIENCE), "an event was lost");
    std::thread::scope(|scope| {
        let back = scope.spawn(move || {
            let edges = Edges::of(&ours).map_err(|error| error.to_string())?;
            // And one for the binding.
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

fn refused(here: &Here) -> Outcome {
    let (_theirs, port) = here.guest.alloc_unbound(here.domid)?;
    let bind = |port| here.xen.bind_interdomain(&here.peer, port);
    let bound = bind(port)?;
    for port in [port, Port(3), Port(u32::MAX)] {
        let result = bind(port);
        ensure(matches!(result, Err(Error::BadPort { .. })), format!("{port}: {result:?}"))?;
    }
    drop(bound);
    let nobody = here.xen.peer(DomId(0x7000))?;
    let result = here.xen.bind_interdomain(&nobody, port);
    ensure(matches!(result, Err(Error::NoDomain(_))), format!("{result:?}"))
}

fn again(here: &Here) -> Outcome {
    let (theirs, port) = here.guest.alloc_unbound(here.domid)?;
    for _ in 0..50 {
        let ours = here.xen.bind_interdomain(&here.peer, port)?;
        ours.notify()?;
        ensure(readable(&theirs, PATIENCE), "no event")?;
        theirs.take()?;
        drop(ours);
        theirs.notify()?;
    }
    Ok(())
}

/// A child that binds a port and maps a page, and is killed.
fn killed(here: &Here, rings: bool) -> Outcome {
    let (_page, grefs) = here.guest.share(here.domid, 1)?;
    let (event, port) = here.guest.alloc_unbound(here.domid)?;
    let mut child = Command::new(std::env::current_exe()?)
        .args(["hold", &grefs[0].to_string(), &port.to_string(), &rings.to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let outcome =
        while_held(&mut child, || ensure(!readable(&event, MOMENT), "an event before the kill"));
    child.kill()?;
    child.wait()?;
    outcome?;
    match rings {
        true => ensure(readable(&event, PATIENCE), "no event"),
        false => ensure(!readable(&event, MOMENT), "an event"),
    }
}

fn while_held(child: &mut Child, check: impl FnOnce() -> Outcome) -> Outcome {
    let mut line = String::new();
    BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    ensure(line == "held\n", format!("the child says {line:?}"))?;
    check()
}

/// The child: holds a port and a page until it or its parent is killed.
pub fn hold(here: &Here, gref: &str, port: &str, rings: &str) -> Outcome {
    let mapping = here.xen.map(&here.peer, &[GrantRef(gref.parse()?)])?;
    let event = here.xen.bind_interdomain(&here.peer, Port(port.parse()?))?;
    if rings.parse()? {
        here.xen.notify_on_unmap(&mapping, &event);
    }
    println!("held");
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}
