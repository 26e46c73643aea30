//! The service manager: it learns when the daemon is ready, that it is alive, and that it stops (sd_notify(3)).

use std::env;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use datapath::{Datapath, LivenessCheck};
use tracing::{error, warn};

/// The socket of the service manager, if there is one.
pub(super) struct Readiness(Option<Manager>);

struct Manager {
    socket: UnixDatagram,
    /// How long the manager waits for a sign of life.
    watchdog: Option<Duration>,
}

impl Readiness {
    /// Connects with the manager of NOTIFY_SOCKET. Before the daemon gives up files: an abstract socket is out of reach then.
    pub(super) fn from_environment() -> Self {
        let Some(address) = env::var_os("NOTIFY_SOCKET") else { return Self(None) };
        let socket = connect(&address);
        let socket = socket.inspect_err(|error| warn!(?address, %error, "no service manager"));
        let for_us =
            env::var("WATCHDOG_PID").map_or(true, |pid| pid == std::process::id().to_string());
        let microseconds = env::var("WATCHDOG_USEC").ok().and_then(|text| text.parse().ok());
        let watchdog = microseconds.filter(|_| for_us).map(Duration::from_micros);
        Self(socket.ok().map(|socket| Manager { socket, watchdog }))
    }

    /// Says that all ports are there. Returns what goes on saying that the daemon is alive.
    pub(super) fn ready(self) -> Watchdog {
        let watchdog = Watchdog { manager: self.0, check: None, last: Instant::now() };
        watchdog.say("READY=1\nSTATUS=carrying frames");
        watchdog
    }
}

fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let address = match address.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    // A manager that does not read must not stop the control thread.
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Says that the daemon is alive: as long as its control thread takes events and all its workers take turns.
pub(super) struct Watchdog {
    manager: Option<Manager>,
    check: Option<LivenessCheck>,
    last: Instant,
}

/// Signs of life in the time that the manager waits for one. A check is passed one beat after it began.
const BEATS: u32 = 4;

impl Watchdog {
    /// Called about once a second, or more often.
    pub(super) fn beat(&mut self, datapath: &Datapath) {
        let limit = self.manager.as_ref().and_then(|manager| manager.watchdog);
        let Some(limit) = limit.filter(|limit| self.last.elapsed() > *limit / BEATS) else {
            return;
        };
        match self.check.as_mut().map(LivenessCheck::is_passed) {
            Some(true) => self.say("WATCHDOG=1"),
            Some(false) if self.last.elapsed() < limit / 2 => return,
            Some(false) => {
                error!(
                    "a worker takes no turns any more; the service manager ends the daemon when the watchdog's time is over"
                );
                self.last = Instant::now();
                return;
            }
            None => {}
        }
        self.check = Some(datapath.check_liveness());
        self.last = Instant::now();
    }

    /// Says that the daemon stops.
    pub(super) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    fn say(&self, state: &str) {
        let Some(Manager { socket, .. }) = &self.manager else { return };
        if let Err(error) = socket.send(state.as_bytes()) {
            warn!(%error, state, "the service manager does not listen");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::worker_check::tests::hang_one;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A manager, and the watchdog of a daemon that it watches.
    fn watched(limit: Duration) -> (UnixDatagram, Watchdog) {
        let (manager, socket) = UnixDatagram::pair().unwrap();
        manager.set_nonblocking(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let manager_of = Manager { socket, watchdog: Some(limit) };
        (manager, Readiness(Some(manager_of)).ready())
    }

    fn said(manager: &UnixDatagram) -> Vec<String> {
        let mut buffer = [0; 64];
        let next = || {
            let len = manager.recv(&mut buffer).ok()?;
            Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
        };
        std::iter::from_fn(next).collect()
    }

    fn datapath() -> Datapath {
        Datapath::start(&datapath::Config::default(), Box::new(|_| ())).unwrap()
    }

    #[test]
    fn a_daemon_whose_workers_take_turns_is_alive() {
        let (manager, mut watchdog) = watched(Duration::from_millis(40));
        assert!(said(&manager)[0].starts_with("READY=1"));
        let (datapath, start) = (datapath(), Instant::now());
        let mut beats = 0;
        while beats < 3 {
            assert!(start.elapsed() < LIMIT);
            watchdog.beat(&datapath);
            beats += said(&manager).iter().filter(|state| *state == "WATCHDOG=1").count();
            std::thread::sleep(Duration::from_millis(1));
        }
        watchdog.stopping();
        assert_eq!(said(&manager), ["STOPPING=1"]);
    }

    #[test]
    fn a_daemon_with_a_worker_that_hangs_is_not() {
        let (manager, mut watchdog) = watched(Duration::from_millis(40));
        said(&manager);
        let datapath = datapath();
        let release = hang_one(&datapath);
        // Ten times the watchdog's time.
        for _ in 0..400 {
            watchdog.beat(&datapath);
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(said(&manager), Vec::<String>::new());
        drop(release);
    }

    #[test]
    fn a_manager_is_found_by_a_path_and_by_an_abstract_name() {
        let folder = host::TempDir::new().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        connect(path.as_os_str()).unwrap().send(b"x").unwrap();
        assert_eq!(by_path.recv(&mut [0; 8]).unwrap(), 1);
        let name = format!("pvnet-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let abstract_one = UnixDatagram::bind_addr(&address).unwrap();
        connect(OsStr::new(&format!("@{name}"))).unwrap().send(b"y").unwrap();
        assert_eq!(abstract_one.recv(&mut [0; 8]).unwrap(), 1);
        assert!(connect(OsStr::new("/nonexistent/notify")).is_err());
    }

    #[test]
    fn without_a_manager_nothing_is_asked() {
        let datapath = datapath();
        let mut watchdog = Readiness(None).ready();
        watchdog.beat(&datapath);
        assert!(watchdog.check.is_none());
    }
}
