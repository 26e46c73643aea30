//! All interfaces of a process, from when they are up until they are closed.

use std::os::fd::{AsFd, BorrowedFd};

use control_socket::GuestReport;
use rustix::event::{PollFd, PollFlags, poll};
use tracing::{info, warn};

use super::link::Link;
use crate::program::{Signals, text};

/// What a process follows beside its interfaces.
pub(super) trait Follow {
    /// Readable when there may be something to follow.
    fn changes(&self) -> Option<BorrowedFd<'_>>;

    /// Called with the interfaces once, and again after each change. Returns whether to go on.
    fn follow(&mut self, links: &mut [Link]) -> bool;
}

/// Waits until there is a signal, no interface is left or `follow` ends it, and closes what is open then. An interface
/// that ends earlier is closed, or waits until its device comes back, and the others go on. When a report is asked for, it
/// prints one. The error is why an interface ended early.
pub(super) fn run(
    mut links: Vec<Link>,
    signals: &Signals,
    mut follow: impl Follow,
) -> Result<(), String> {
    let mut result = Ok(());
    while !links.is_empty() {
        links.iter().for_each(Link::take_changes);
        let goes_on = follow.follow(&mut links);
        for link in links.iter_mut().filter(|link| !link.is_open() && link.may_reopen()) {
            reopen(link);
        }
        let is_over = |link: &mut Link| !link.is_open() && !link.may_reopen();
        let mut closing: Vec<_> = links.extract_if(.., is_over).collect();
        let ends = !goes_on || (closing.is_empty() && wait(&links, signals, &follow)?);
        if ends {
            closing.append(&mut links);
        }
        for link in closing {
            let name = link.name().to_owned();
            let closed = link.close();
            if !links.is_empty() {
                let reason = closed.as_ref().err().map_or("the other end has closed it", |s| s);
                warn!(interface = name, reason, "closed; the others stay up");
            }
            result = result.and(closed);
        }
    }
    result
}

/// Suspends a link whose device has ended, and starts it again if the device is back.
fn reopen(link: &mut Link) {
    let was_running = link.is_running();
    if let Err(reason) = link.suspend() {
        warn!(interface = link.name(), reason, "its device ended");
    }
    match (was_running, link.reopen()) {
        (_, Ok(true)) => info!(interface = link.name(), "up"),
        (true, Ok(false)) => warn!(interface = link.name(), "down until a card serves it again"),
        (false, Ok(false)) => {}
        (_, Err(reason)) => {
            warn!(interface = link.name(), reason, "it does not come back");
            link.give_up();
        }
    }
}

/// Waits for a signal or a change, and prints a report if one was asked for. Returns whether it is a signal.
fn wait(links: &[Link], signals: &Signals, follow: &impl Follow) -> Result<bool, String> {
    let Signals { stop, report: asked } = signals;
    let changes = links.iter().flat_map(Link::changes).chain(follow.changes());
    let fds = [stop.as_fd(), asked.as_fd()].into_iter().chain(changes);
    let mut fds: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
    rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(text)?;
    if !fds[1].revents().is_empty() {
        // A report for each of several signals would be no newer.
        rustix::io::read(asked, &mut [0; 64]).map_err(text)?;
        report(links)?;
    }
    Ok(!fds[0].revents().is_empty())
}

/// Prints what all queues have sent, as a line of JSON.
fn report(links: &[Link]) -> Result<(), String> {
    let report = GuestReport { interfaces: links.iter().map(Link::report).collect() };
    print!("{}", document::line(&report).map_err(text)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::fd::OwnedFd;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use netdev::Device;
    use offload::Features;
    use rustix::event::{EventfdFlags, eventfd};
    use wire::ethernet::MacAddr;

    use super::*;

    /// What devices share.
    struct Shared {
        changes: OwnedFd,
        open: Mutex<HashSet<&'static str>>,
        closed: Mutex<Vec<&'static str>>,
        /// The device that ends after all were asked whether they are open.
        ends_late: Mutex<Option<&'static str>>,
    }

    impl Shared {
        fn end(&self, name: &str) {
            self.open.lock().unwrap().remove(name);
            ring(&self.changes);
        }
    }

    struct Fake {
        name: &'static str,
        shared: Arc<Shared>,
    }

    impl Device for Fake {
        fn mac(&self) -> MacAddr {
            MacAddr::BROADCAST
        }

        fn features(&self) -> Features {
            Features::NONE
        }

        fn changes(&self) -> BorrowedFd<'_> {
            self.shared.changes.as_fd()
        }

        fn take_changes(&self) {
            // It may be clear.
            let _ = rustix::io::read(&self.shared.changes, &mut [0; 8]);
        }

        fn is_open(&self) -> bool {
            let is_open = self.shared.open.lock().unwrap().contains(self.name);
            if self.name == "b"
                && let Some(late) = self.shared.ends_late.lock().unwrap().take()
            {
                self.shared.end(late);
            }
            is_open
        }

        fn close(self: Box<Self>, _: Duration) {
            self.shared.closed.lock().unwrap().push(self.name);
        }
    }

    fn event() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
    }

    fn ring(event: &OwnedFd) {
        rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
    }

    /// Each call gets its number.
    struct Turns<F>(usize, F);

    impl<F: FnMut(usize) -> bool> Follow for Turns<F> {
        fn changes(&self) -> Option<BorrowedFd<'_>> {
            None
        }

        fn follow(&mut self, _: &mut [Link]) -> bool {
            self.0 += 1;
            (self.1)(self.0 - 1)
        }
    }

    /// Runs devices `a` and `b`. Each call of `follow` gets its number and what was closed until then. The call with the
    /// number `end` ends the run.
    fn run_two(
        end: usize,
        follow: impl Fn(usize, &Shared, &OwnedFd, &[&str]),
    ) -> Vec<&'static str> {
        run_two_with(&Signals { stop: event(), report: event() }, end, follow)
    }

    /// The same with these signals.
    fn run_two_with(
        signals: &Signals,
        end: usize,
        follow: impl Fn(usize, &Shared, &OwnedFd, &[&str]),
    ) -> Vec<&'static str> {
        let shared = Arc::new(Shared {
            changes: event(),
            open: Mutex::new(["a", "b"].into()),
            closed: Mutex::default(),
            ends_late: Mutex::default(),
        });
        let device = |name| Link::without_tap(name, Fake { name, shared: shared.clone() });
        let turns = Turns(0, |turn| {
            let closed = shared.closed.lock().unwrap().clone();
            follow(turn, &shared, &signals.stop, &closed);
            turn != end
        });
        let result = run(vec![device("a"), device("b")], signals, turns);
        assert_eq!(result, Ok(()));
        let closed = shared.closed.lock().unwrap();
        closed.clone()
    }

    #[test]
    fn an_interface_that_ends_is_closed_and_the_others_go_on() {
        let closed = run_two(usize::MAX, |turn, shared, signals, closed| {
            if turn == 0 {
                shared.end("b");
            } else {
                assert_eq!(closed, ["b"]);
                ring(signals);
            }
        });
        assert_eq!(closed, ["b", "a"]);
    }

    #[test]
    fn a_report_ends_nothing() {
        let signals = Signals { stop: event(), report: event() };
        ring(&signals.report);
        let closed = run_two_with(&signals, usize::MAX, |turn, _, stop, closed| {
            assert_eq!(closed, [""; 0]);
            if turn == 1 {
                ring(stop);
            }
        });
        assert_eq!(closed, ["a", "b"]);
    }

    #[test]
    fn the_end_of_all_interfaces_is_the_end() {
        let closed = run_two(usize::MAX, |turn, shared, _, _| match turn {
            0 => shared.end("a"),
            _ => shared.end("b"),
        });
        assert_eq!(closed, ["a", "b"]);
    }

    #[test]
    fn the_end_of_the_toolstack_is_the_end() {
        assert_eq!(run_two(0, |_, _, _, _| {}), ["a", "b"]);
    }

    #[test]
    fn an_interface_that_ends_while_others_are_asked_is_noticed() {
        let closed = run_two(usize::MAX, |turn, shared, _, closed| match turn {
            0 => *shared.ends_late.lock().unwrap() = Some("a"),
            _ if closed == ["a"] => shared.end("b"),
            _ => {}
        });
        assert_eq!(closed, ["a", "b"]);
    }
}
