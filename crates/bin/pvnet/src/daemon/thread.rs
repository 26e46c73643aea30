//! The daemon's threads, and what a panic in one of them does.

use std::panic;
use std::process;
use std::thread;

use tracing::error;

use crate::daemon::error::Error;

/// The exit code after a panic, as Rust's own.
const PANICKED: i32 = 101;
/// The names of threads that serve one client end like this.
const ONE_CLIENT: &str = " client";

/// Starts a thread. A panic in it ends the daemon, see [`end_after_panic`].
pub(super) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, Error> {
    let builder = thread::Builder::new().name(name.to_owned());
    builder.spawn(work).map_err(Error::system("start a thread"))
}

/// Starts a thread that serves one client of `service`. A panic in it ends that service only.
pub(super) fn spawn_for_client(
    service: &str,
    work: impl FnOnce() + Send + 'static,
) -> Result<thread::JoinHandle<()>, Error> {
    spawn(&client_thread(service), work)
}

/// The name of a thread that serves one client of `service`.
pub(super) fn client_thread(service: &str) -> String {
    format!("{service}{ONE_CLIENT}")
}

/// From here on, a panic in a thread that everybody depends on ends the process: a worker, the control thread, one that
/// accepts guests or reads the store. Its queues or its events would go unserved for ever, and nobody would notice. The
/// daemon that is started next takes over the rings (docs/decisions/0007-rings-survive-their-backend.md).
///
/// A thread that serves one guest or client may panic: then that one loses its connection.
pub(super) fn end_after_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        let thread = thread::current();
        if let Some(name) = thread.name().filter(|name| is_shared(name)) {
            error!(thread = name, "a thread that all guests depend on panicked: pvnet ends");
            process::exit(PANICKED);
        }
    }));
}

/// Whether everybody depends on the thread. Threads of crate `machine` that serve one guest are named so too.
fn is_shared(name: &str) -> bool {
    !name.ends_with(ONE_CLIENT)
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Output};
    use std::time::Duration;

    use datapath::{Config, Datapath};
    use port::{Outcome, Queue};
    use port_testing::{FakeEgress, supply};

    use super::*;

    /// Far above what a process takes to end.
    const LIMIT: Duration = Duration::from_secs(20);

    /// Runs an ignored test of this file in a process of its own.
    fn run(test: &str) -> Output {
        let test = format!("daemon::thread::tests::{test}");
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &test, "--ignored", "--nocapture"]).output().unwrap()
    }

    fn start_log() {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    }

    #[test]
    #[ignore = "a_worker_that_panics_ends_the_daemon runs it"]
    fn panicking_worker() {
        start_log();
        end_after_panic();
        let datapath = Datapath::start(&Config::default(), Box::new(|_| ())).unwrap();
        let ingress = supply(std::iter::from_fn(|| panic!("a bug in a port")));
        let egress = Box::new(FakeEgress::new(|_, _| Ok(Outcome::Delivered)));
        datapath.attach("red", vec![Queue { ingress, egress }], Vec::new());
        thread::sleep(LIMIT);
    }

    #[test]
    fn a_worker_that_panics_ends_the_daemon() {
        let output = run("panicking_worker");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(PANICKED), "{said}");
        assert!(said.contains("a bug in a port") && said.contains("worker-0"), "{said}");
        assert!(said.contains("pvnet ends"), "{said}");
    }

    #[test]
    #[ignore = "a_thread_of_one_client_may_panic runs it"]
    fn panicking_client() {
        start_log();
        end_after_panic();
        assert!(spawn_for_client("control", || panic!("a bug")).unwrap().join().is_err());
        assert!(thread::spawn(|| panic!("another")).join().is_err());
    }

    #[test]
    fn a_thread_of_one_client_may_panic() {
        let output = run("panicking_client");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("pvnet ends"), "{said}");
    }
}
