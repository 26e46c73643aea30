//! A daemon and its guests as the processes that users run.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lab::{Namespace, Process};
use serde_json::Value;

/// Far more than anything here takes.
pub const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);
/// Between two pings. After the last, ping waits for as long or for two round trips, not more:
/// on a busy machine a short pause would make a late answer a lost one.
pub const PING_PAUSE: Duration = Duration::from_millis(250);

/// Whether the test can run; says why not.
pub fn able(programs: &[&str]) -> bool {
    lab::preflight(programs).inspect_err(|why| eprintln!("skipped: {why}")).is_ok()
}

/// The program under test.
pub fn pvnet() -> Command {
    lab::command(env!("CARGO_BIN_EXE_pvnet")).unwrap()
}

/// Asks until the answer is yes.
pub fn wait(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < LIMIT, "{what} took more than {LIMIT:?}");
        std::thread::sleep(POLL);
    }
}

/// A folder that goes with its value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("pvnet-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A running daemon, and guests that may or may not run.
pub struct House {
    // Dropped in this order.
    pub guests: Vec<Guest>,
    pub daemon: Process,
    folder: Folder,
}

/// One guest of the configuration, with a namespace made beforehand.
pub struct Guest {
    process: Option<Process>,
    pub namespace: Namespace,
    pub mac: String,
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
}

impl House {
    /// Starts a daemon for so many guests, with these lines in its `[daemon]`. None joins yet.
    pub fn build(guests: u8, daemon: &str) -> Self {
        Self::build_with(guests, daemon, "")
    }

    /// As [`build`](Self::build), with these lines in each `[[guest]]`.
    pub fn build_with(guests: u8, daemon: &str, guest: &str) -> Self {
        let guests: Vec<_> = (1..=guests).map(Guest::new).collect();
        let folder = Folder::new();
        let tables: String = guests.iter().map(|own| own.table() + guest).collect();
        let directory = folder.path().display();
        let text = format!("[daemon]\ndirectory = \"{directory}\"\n{daemon}\n{tables}");
        let config = folder.path().join("pvnet.toml");
        std::fs::write(&config, text).unwrap();
        let mut command = pvnet();
        command.arg("run").arg("--config").arg(config);
        let daemon = Process::capture(command).unwrap();
        let house = Self { guests, daemon, folder };
        wait("the daemon's start", || house.folder.path().join("control.sock").exists());
        house
    }

    /// The daemon's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command of the program, told where the daemon is.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = pvnet();
        command.arg(subcommand).arg("--directory").arg(self.folder());
        command
    }

    /// Starts a guest and waits until it is up.
    pub fn join(&mut self, guest: usize, flags: &[&str]) {
        let mut command = self.command("guest");
        command.args(flags).arg(self.guests[guest].namespace.name());
        let mut process = Process::capture(command).unwrap();
        wait("the guest's start", || {
            assert!(process.ended().unwrap().is_none(), "{}", process.stderr());
            process.stdout().contains("is up")
        });
        self.guests[guest].process = Some(process);
    }

    /// Ends a guest with SIGTERM and waits until the daemon has noticed.
    pub fn leave(&mut self, guest: usize) {
        let mut process = self.guests[guest].process.take().unwrap();
        assert!(process.stop().unwrap().success(), "{}", process.stderr());
        self.wait_absent(guest);
    }

    /// Ends a guest with SIGKILL and waits until the daemon has noticed.
    pub fn kill(&mut self, guest: usize) {
        let mut process = self.guests[guest].process.take().unwrap();
        let pid = rustix::process::Pid::from_raw(process.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        process.wait(LIMIT).unwrap();
        self.wait_absent(guest);
    }

    fn wait_absent(&self, guest: usize) {
        let name = self.guests[guest].namespace.name();
        wait("the guest's end", || {
            let status = self.status();
            status["absent"].as_array().unwrap().iter().any(|absent| absent == name)
        });
    }

    /// What `pvnet status --json` says.
    pub fn status(&self) -> Value {
        let mut command = self.command("status");
        command.arg("--json");
        serde_json::from_str(&lab::run(command, LIMIT).unwrap()).unwrap()
    }

    /// The status of a guest's port.
    pub fn port(&self, guest: usize) -> Value {
        let name = self.guests[guest].namespace.name();
        let status = self.status();
        let ports = status["ports"].as_array().unwrap();
        ports.iter().find(|port| port["name"] == name).unwrap().clone()
    }

    /// Sends `bytes` from one guest to another, over both address families in turn, and compares.
    pub fn transfer(&self, from: usize, to: usize, bytes: u64) {
        let (from, to) = (&self.guests[from], &self.guests[to]);
        lab::transfer_file(&from.namespace, &to.namespace, to.ipv4, bytes, 1).unwrap();
        lab::transfer_file(&from.namespace, &to.namespace, to.ipv6, bytes / 4, 2).unwrap();
    }

    /// Pings one guest from another over both address families.
    pub fn ping(&self, from: usize, to: usize) {
        let (from, to) = (&self.guests[from].namespace, &self.guests[to]);
        for address in [std::net::IpAddr::from(to.ipv4), to.ipv6.into()] {
            let ping = lab::ping(from, address, 3, PING_PAUSE).unwrap();
            assert_eq!((ping.sent, ping.received), (3, 3), "{address}");
        }
    }
}

impl Guest {
    fn new(number: u8) -> Self {
        Self {
            process: None,
            namespace: Namespace::create("pvt").unwrap(),
            mac: format!("02:00:00:00:01:{number:02x}"),
            ipv4: Ipv4Addr::new(10, 77, 1, number),
            ipv6: Ipv6Addr::new(0xfd00, 0x77, 1, 0, 0, 0, 0, number.into()),
        }
    }

    /// Waits until its process has ended by itself.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.process.take().unwrap().wait(LIMIT).unwrap()
    }

    /// Its table in the configuration.
    fn table(&self) -> String {
        format!(
            "[[guest]]\nname = \"{}\"\nmac = \"{}\"\naddresses = [\"{}/24\", \"{}/64\"]\n",
            self.namespace.name(),
            self.mac,
            self.ipv4,
            self.ipv6
        )
    }
}
