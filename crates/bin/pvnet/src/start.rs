//! Programs that are started one after the other without a pause, as in a script or a pasted block: those that need another one wait
//! for it a moment.

use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use host::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::statfs;

/// How long they wait.
const LIMIT: Duration = Duration::from_secs(5);
/// How often they try.
const AGAIN: Duration = Duration::from_millis(20);

/// Whether a socket refuses because its server has not started yet.
pub fn is_early(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

/// Tries until it succeeds, or fails for another reason than that it is too early. None after a signal.
pub fn retry<T, E>(
    signals: &impl AsFd,
    mut attempt: impl FnMut() -> Result<T, E>,
    is_early: impl Fn(&E) -> bool,
) -> Result<Option<T>, E> {
    let end = Instant::now() + LIMIT;
    loop {
        match attempt() {
            Ok(done) => return Ok(Some(done)),
            Err(error) if !is_early(&error) || Instant::now() > end => return Err(error),
            Err(_) => {}
        }
        let mut fds = [PollFd::new(signals, PollFlags::IN)];
        if poll(&mut fds, Some(&Timespec::try_from(AGAIN).unwrap_or_default())).is_ok_and(|n| n > 0)
        {
            return Ok(None);
        }
    }
}

/// The file system of namespaces (`NSFS_MAGIC`). `ip netns add` makes a file before it mounts the namespace over it.
const NAMESPACES: i64 = 0x6e73_6673;

/// Waits until there is a network namespace of this name.
pub fn await_namespace(name: &str) {
    let is_mounted = |namespace: Namespace| {
        statfs(namespace.path()).is_ok_and(|system| system.f_type == NAMESPACES)
    };
    await_that(|| Namespace::open(name).is_ok_and(is_mounted));
}

/// Waits until this process's network namespace has an interface that is up, beside the loopback. One that gets none is as it is.
pub fn await_interface() {
    await_that(|| has_interface(&read("/proc/thread-self/net/dev"), &is_up));
}

fn await_that(ready: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !ready() && Instant::now() < end {
        std::thread::sleep(AGAIN);
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// An interface that is up has a link-local or a configured address: this is asked without a `/sys` of the namespace.
fn is_up(name: &str) -> bool {
    let named = |line: &str| line.split_whitespace().any(|word| word == name);
    read("/proc/thread-self/net/route").lines().any(named)
        || read("/proc/thread-self/net/if_inet6").lines().any(named)
}

/// Whether a table of `/proc/net/dev` has an interface beside the loopback that is up.
fn has_interface(table: &str, is_up: &dyn Fn(&str) -> bool) -> bool {
    let names = table.lines().filter_map(|line| Some(line.split_once(':')?.0.trim()));
    names.filter(|name| *name != "lo").any(is_up)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_is_early_is_tried_again_and_all_else_is_an_error() {
        let (signals, _other) = UnixStream::pair().unwrap();
        let early = |error: &io::Error| is_early(error.kind());
        let mut attempts = 0;
        let third = || {
            attempts += 1;
            if attempts < 3 { Err(io::Error::from(ErrorKind::NotFound)) } else { Ok(attempts) }
        };
        assert_eq!(retry(&signals, third, early).unwrap(), Some(3));
        let denied = || Err::<(), _>(io::Error::from(ErrorKind::PermissionDenied));
        let error = retry(&signals, denied, early).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_signal_ends_the_wait() {
        let (signals, other) = UnixStream::pair().unwrap();
        io::Write::write_all(&mut &other, b"x").unwrap();
        let absent = || Err::<(), _>(io::Error::from(ErrorKind::ConnectionRefused));
        assert!(retry(&signals, absent, |_| true).unwrap().is_none());
    }

    #[test]
    fn the_loopback_alone_is_no_interface() {
        const HEAD: &str = "Inter-| Receive\n face |bytes\n";
        let table = |names: &str| format!("{HEAD}    lo: 0 0\n{names}");
        assert!(!has_interface(&table(""), &|_| true));
        assert!(has_interface(&table("  eth0: 0 0\n"), &|name| name == "eth0"));
        assert!(!has_interface(&table("  eth0: 0 0\n"), &|_| false));
    }
}
