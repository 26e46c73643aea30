//! A daemon and its guests as the processes that users run.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

pub use lab::requires;
use lab::{Namespace, Process, TempDir};
use serde_json::Value;

/// A time limit far above the duration of any step.
pub const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// The pause between two pings. After the last, ping waits for the longer of this pause and two
/// round trips: on a busy machine a shorter pause would count a late answer as lost.
pub const PING_PAUSE: Duration = Duration::from_millis(250);

/// The program under test.
pub fn pvnet() -> Command {
    lab::command(env!("CARGO_BIN_EXE_pvnet")).unwrap()
}

/// The laboratory's program, beside it: `cargo test --workspace` builds both.
pub fn pvnet_lab() -> Command {
    let program = Path::new(env!("CARGO_BIN_EXE_pvnet")).with_file_name("pvnet-lab");
    assert!(program.is_file(), "run `cargo build -p pvnet-lab`");
    lab::command(&program.to_string_lossy()).unwrap()
}

/// The resources of a process that a guest takes: descriptors, threads, and mappings of its memory.
pub fn holdings(pid: u32) -> [usize; 3] {
    let entries = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let is_shared = |line: &&str| line.contains("/memfd:") || line.contains("/secretmem");
    let shared = maps.lines().filter(is_shared).count();
    [entries("fd"), entries("task"), shared]
}

/// Those of a process in which nothing begins or ends any more.
#[allow(dead_code, reason = "some programs use it")]
pub fn settled_holdings(pid: u32) -> [usize; 3] {
    let mut held = holdings(pid);
    wait("an end of changes", || {
        std::thread::sleep(Duration::from_millis(300));
        holdings(pid) == std::mem::replace(&mut held, holdings(pid))
    });
    held
}

/// Waits until `ready`.
pub fn wait(what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < LIMIT, "{what} took more than {LIMIT:?}");
        std::thread::sleep(POLL);
    }
}

/// The status of the daemon with this folder.
pub fn status_of(folder: &Path) -> Value {
    let mut command = pvnet();
    command.args(["status", "--json", "--directory"]).arg(folder);
    serde_json::from_str(&lab::run(command, LIMIT).unwrap()).unwrap()
}

/// Starts a guest of the daemon with this folder, and waits until it is up.
pub fn join(folder: &Path, name: &str, flags: &[&str]) -> Process {
    let mut command = pvnet();
    command.args(["guest", "--directory"]).arg(folder).args(flags).arg(name);
    started(command)
}

/// Starts a program, and waits until it says that it is up.
pub fn started(command: Command) -> Process {
    let mut process = Process::capture(command).unwrap();
    process.says("is up", LIMIT).unwrap();
    process
}

/// The port of this name in a status, if there is one.
pub fn port_of(status: &Value, name: &str) -> Option<Value> {
    status["ports"].as_array().unwrap().iter().find(|port| port["name"] == name).cloned()
}

/// A running daemon, and guests that may or may not run.
pub struct Testbed {
    // Dropped in this order: guests before their daemon.
    pub guests: Vec<Guest>,
    pub daemon: Process,
    folder: TempDir,
    /// The daemon's namespace; the machine's if absent.
    #[allow(dead_code, reason = "one test uses it")]
    pub host: Option<Namespace>,
}

/// One guest of the configuration, with a namespace created beforehand.
pub struct Guest {
    process: Option<Process>,
    pub namespace: Namespace,
    pub mac: String,
    pub ipv4: Ipv4Addr,
    pub ipv6: Ipv6Addr,
}

impl Testbed {
    /// Starts a daemon for this many guests, with these lines in its `[daemon]`. No guest joins yet.
    pub fn start(guests: u8, daemon: &str) -> Self {
        Self::start_with(guests, daemon, "")
    }

    /// As [`start`](Self::start), with these lines in each `[[guest]]`.
    pub fn start_with(guests: u8, daemon: &str, guest: &str) -> Self {
        Self::start_each(guests, daemon, |_| guest)
    }

    /// As [`start`](Self::start), with lines in each `[[guest]]` by its number.
    pub fn start_each<'a>(guests: u8, daemon: &str, lines: impl Fn(usize) -> &'a str) -> Self {
        Self::start_in(None, guests, daemon, lines)
    }

    /// As [`start_each`](Self::start_each), with the daemon in a namespace.
    pub fn start_in<'a>(
        host: Option<Namespace>,
        guests: u8,
        daemon: &str,
        lines: impl Fn(usize) -> &'a str,
    ) -> Self {
        let guests: Vec<_> = (1..=guests).map(Guest::new).collect();
        let folder = TempDir::new().unwrap();
        let tables = guests.iter().enumerate();
        let tables: String = tables.map(|(number, guest)| guest.table() + lines(number)).collect();
        let directory = folder.path().display();
        let text = format!("[daemon]\ndirectory = \"{directory}\"\n{daemon}\n{tables}");
        std::fs::write(folder.path().join("pvnet.toml"), text).unwrap();
        let daemon = Process::capture(run(host.as_ref(), folder.path())).unwrap();
        let testbed = Self { guests, daemon, folder, host };
        testbed.wait_for_answer();
        testbed
    }

    /// Starts the daemon again after its end.
    pub fn restart(&mut self) {
        self.daemon = Process::capture(run(self.host.as_ref(), self.folder())).unwrap();
        self.wait_for_answer();
    }

    /// Waits until the daemon answers: then all of its threads have started. Its socket is there before that,
    /// and a killed daemon leaves one.
    fn wait_for_answer(&self) {
        wait("the daemon's start", || lab::run(self.command("status"), LIMIT).is_ok());
    }

    /// The daemon's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A command of the program, for this daemon.
    pub fn command(&self, subcommand: &str) -> Command {
        let mut command = pvnet();
        command.arg(subcommand).arg("--directory").arg(self.folder());
        command
    }

    /// Starts a guest and waits until it is up.
    pub fn join(&mut self, guest: usize, flags: &[&str]) {
        let name = self.guests[guest].namespace.name();
        self.guests[guest].process = Some(join(self.folder(), name, flags));
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

    /// Stops a guest: it answers nothing, and its rings stay as they are.
    pub fn stop(&self, guest: usize) {
        self.signal(guest, rustix::process::Signal::STOP);
    }

    /// A stopped guest goes on.
    pub fn go_on(&self, guest: usize) {
        self.signal(guest, rustix::process::Signal::CONT);
    }

    fn signal(&self, guest: usize, signal: rustix::process::Signal) {
        let process = self.guests[guest].process.as_ref().unwrap();
        let pid = rustix::process::Pid::from_raw(process.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn wait_absent(&self, guest: usize) {
        let name = self.guests[guest].namespace.name();
        wait("the guest's end", || {
            let status = self.status();
            status["absent"].as_array().unwrap().iter().any(|absent| absent == name)
        });
    }

    /// The output of `pvnet status --json`.
    pub fn status(&self) -> Value {
        status_of(self.folder())
    }

    /// The status of a guest's port.
    pub fn port(&self, guest: usize) -> Value {
        self.named(self.guests[guest].namespace.name()).unwrap()
    }

    /// The status of the port of this name, if there is one.
    pub fn named(&self, name: &str) -> Option<Value> {
        port_of(&self.status(), name)
    }

    /// Sends `bytes` from one guest to another, over both address families in turn, and compares.
    pub fn transfer(&self, from: usize, to: usize, bytes: u64) {
        let (from, to) = (&self.guests[from], &self.guests[to]);
        lab::transfer_file(&from.namespace, &to.namespace, to.ipv4, bytes, 1).unwrap();
        lab::transfer_file(&from.namespace, &to.namespace, to.ipv6, bytes / 4, 2).unwrap();
    }

    /// Frames that were dropped because their receivers did not take any.
    fn frames_without_room(&self) -> u64 {
        let ports = self.status()["ports"].as_array().unwrap().clone();
        let reasons = ["no_room", "stalled"];
        let of = |port: &Value| reasons.map(|reason| port["drops"][reason].as_u64().unwrap_or(0));
        ports.iter().flat_map(of).sum()
    }

    /// Pings one guest from another over both address families.
    pub fn ping(&self, from: usize, to: usize) {
        let (from, to) = (&self.guests[from].namespace, &self.guests[to]);
        for address in [std::net::IpAddr::from(to.ipv4), to.ipv6.into()] {
            for last in [false, false, true] {
                let before = self.frames_without_room();
                let ping = lab::ping(from, address, 3, PING_PAUSE).unwrap();
                if (ping.sent, ping.received) == (3, 3) {
                    break;
                }
                // A guest that does not run for 200 ms loses frames, and the daemon says so.
                let is_starved = self.frames_without_room() > before;
                assert!(is_starved && !last, "{address}: {ping:?}");
            }
        }
    }
}

/// The command of a daemon with this folder.
fn run(host: Option<&Namespace>, folder: &Path) -> Command {
    let program = env!("CARGO_BIN_EXE_pvnet");
    let mut command = host.map_or_else(pvnet, |host| host.exec(program).unwrap());
    command.arg("run").arg("--config").arg(folder.join("pvnet.toml"));
    command
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

    /// Waits until its process has ended.
    pub fn wait(&mut self) -> std::process::ExitStatus {
        self.process.take().unwrap().wait(LIMIT).unwrap()
    }

    /// Ends its process with SIGTERM, which must not take long.
    #[allow(dead_code, reason = "one test uses it")]
    pub fn stop_waiting(&mut self) {
        let mut process = self.process.take().unwrap();
        assert!(process.stop().unwrap().success(), "{}", process.stderr());
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
