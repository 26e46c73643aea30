//! Who may join a daemon, how many, and what each may have: many guests on the default limits, what each
//! costs, and guests with several vifs. None of this needs root, because no guest here has a network
//! stack.

mod vifs;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::TempDir;
use machine::MachineGuest;
use netfront::{Frontend, FrontendQueue};
use offload::Features;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use xenstore::{Client, Store};

const GUESTS: usize = 256;
const LIMIT: Duration = Duration::from_secs(60);

struct Daemon {
    process: Child,
    folder: TempDir,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Descriptors, threads and mappings of a process.
fn holdings(pid: u32) -> [usize; 3] {
    let entries = |what: &str| std::fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    [entries("fd"), entries("task"), maps.lines().count()]
}

fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < LIMIT, "{what} took more than {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

impl Daemon {
    /// Starts a daemon with these lines in its `[daemon]`, these other tables, and the usual limits on
    /// descriptors.
    fn start(daemon: &str, tables: &str) -> Self {
        Self::start_within("-Sn 1024", daemon, tables)
    }

    /// As [`start`](Self::start), with these arguments of the shell's `ulimit`.
    fn start_within(limit: &str, daemon: &str, tables: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let directory = folder.path().display();
        let text =
            format!("[daemon]\ndirectory = \"{directory}\"\nworkers = 1\n{daemon}\n{tables}");
        let config = folder.path().join("pvnet.toml");
        std::fs::write(&config, text).unwrap();
        let run = format!("ulimit {limit}; exec \"$0\" run --config \"$1\"");
        let mut command = Command::new("sh");
        command.args(["-c", &run, env!("CARGO_BIN_EXE_pvnet")]).arg(&config).stderr(Stdio::null());
        let daemon = Self { process: command.spawn().unwrap(), folder };
        wait("the start", || daemon.folder.path().join("control.sock").exists());
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("machine.sock")
    }

    /// What `pvnet guest` says when it is refused.
    fn refusal(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pvnet"));
        command.arg("guest").arg("--directory").arg(self.folder.path()).args(arguments);
        let output = command.output().unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// A guest's table, with more lines.
fn guest(number: usize, name: &str, more: &str) -> String {
    format!("[[guest]]\nname = \"{name}\"\nmac = \"02:00:00:00:00:{number:02x}\"\n{more}\n")
}

/// Writes a token into a file that only its owner can read.
fn token_file(folder: &Path, name: &str, token: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, token).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

type Connected = (MachineGuest, Frontend<MachineGuest>, Vec<FrontendQueue<MachineGuest>>);

fn join(socket: &Path, name: &str) -> (MachineGuest, Arc<dyn Store>) {
    let (guest, store) = machine::join(socket, name).unwrap();
    (guest, Arc::new(Client::new(store).unwrap()))
}

fn connect_vif(
    guest: &MachineGuest,
    store: &Arc<dyn Store>,
    handle: u32,
) -> Result<(Frontend<MachineGuest>, Vec<FrontendQueue<MachineGuest>>), netfront::ConnectError> {
    let config = netfront::Config {
        queues: 1,
        features: Features::ALL,
        split_event_channels: true,
        header_channel: true,
        persistent_grants: true,
        hash: false,
        guest_copy: true,
        multicast_control: false,
        timeout: LIMIT,
    };
    let node = machine::toolstack::device_path(handle);
    Frontend::connect(guest, store.clone(), &node, &config)
}

fn connect(socket: &Path, name: &str) -> Connected {
    let (guest, store) = join(socket, name);
    let (frontend, queues) = connect_vif(&guest, &store, 0).unwrap();
    (guest, frontend, queues)
}

#[test]
fn two_hundred_and_fifty_six_guests_attach_on_default_limits() {
    let tables: String = (0..GUESTS).map(|n| guest(n, &format!("guest-{n}"), "")).collect();
    let daemon = Daemon::start("", &tables);
    let socket = daemon.socket();
    // The guests' ends are all in this process.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    // The first guest makes the daemon allocate what all use.
    let mut guests = vec![connect(&socket, "guest-0")];
    let before = holdings(daemon.process.id());
    for n in 1..GUESTS {
        guests.push(connect(&socket, &format!("guest-{n}")));
    }
    let after = holdings(daemon.process.id());
    let each = [0, 1, 2].map(|n| (after[n] - before[n]).div_ceil(GUESTS - 1));
    eprintln!("a guest costs {each:?} descriptors, threads and mappings");
    // What admission counts for a guest with one queue.
    for (each, most) in each.into_iter().zip([22, 2, 41]) {
        assert!(each <= most, "{each} instead of {most}");
    }
    drop(guests);
}

#[test]
fn a_guest_that_is_bound_is_nobody_elses() {
    const SECRET: &str = "correct horse battery staple";
    let files = TempDir::new().unwrap();
    let right = token_file(files.path(), "right", SECRET);
    let wrong = token_file(files.path(), "wrong", "correct horse battery stable");
    let short = token_file(files.path(), "short", "horse");
    let user = rustix::process::getuid().as_raw();
    let tables = guest(1, "red", &format!("token_file = \"{right}\""))
        + &guest(2, "blue", &format!("uid = {}", user + 1))
        + &guest(3, "green", &format!("uid = {user}"));
    let daemon = Daemon::start("", &tables);
    for (arguments, parts) in [
        (&["red"][..], ["must show a token", "--token-file FILE"]),
        (&["red", "--token-file", &wrong], ["the token is not that of guest", "red"]),
        (&["red", "--token-file", &short], ["short: a token has", "16 to 256 bytes"]),
        (&["blue", "--token-file", &right], ["belongs to another user", "blue"]),
        (&["mallory"], ["no guest \"mallory\"", "there are: blue, green, red"]),
    ] {
        let said = daemon.refusal(arguments);
        assert!(parts.iter().all(|part| said.contains(part)), "{arguments:?}: {said}");
        assert!(!said.contains("horse"), "{said}");
    }
    let token = machine::Token::read(Path::new(&right)).unwrap();
    let _red = machine::join_with(&daemon.socket(), "red", Some(&token)).unwrap();
    let _green = machine::join(&daemon.socket(), "green").unwrap();
    let said = daemon.refusal(&["green"]);
    let this = format!("it is process {}", std::process::id());
    assert!(said.contains("has joined already") && said.contains(&this), "{said}");
}

#[test]
fn sockets_have_the_configured_permissions() {
    for (lines, [join, control]) in
        [("", [0o600, 0o600]), ("join_mode = 0o666\ncontrol_mode = 0o660", [0o666, 0o660])]
    {
        let daemon = Daemon::start(lines, "");
        let mode = |path: &Path| Some(std::fs::metadata(path).ok()?.permissions().mode() & 0o777);
        // A socket gets its mode after its name. Until then its owner alone may write to it, which is what a connection needs.
        for (socket, wanted) in [("machine.sock", join), ("control.sock", control)] {
            wait(socket, || mode(&daemon.folder.path().join(socket)) == Some(wanted));
        }
    }
}

#[test]
fn a_daemon_without_room_for_a_guest_says_which_limit_it_is() {
    // Fewer descriptors than the daemon keeps for itself.
    let daemon = Daemon::start_within("-n 128", "", &guest(1, "red", "queues = 1"));
    let said = daemon.refusal(&["red"]);
    for part in ["guest \"red\" needs 22 descriptors", "0 are left", "RLIMIT_NOFILE", "LimitNOFILE"]
    {
        assert!(said.contains(part), "{said}");
    }
}
