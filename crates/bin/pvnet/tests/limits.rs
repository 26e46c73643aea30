//! Many guests on the default limits, and what each costs the daemon.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::TempDir;
use machine::MachineGuest;
use netfront::{Frontend, Queue};
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

/// A daemon with the usual limits on descriptors, which does without network devices.
fn daemon() -> Daemon {
    let folder = TempDir::new().unwrap();
    let mut text = format!("[daemon]\ndirectory = \"{}\"\nworkers = 1\n", folder.path().display());
    for n in 0..GUESTS {
        text += &format!("[[guest]]\nname = \"guest-{n}\"\nmac = \"02:00:00:00:00:{n:02x}\"\n");
    }
    let config = folder.path().join("pvnet.toml");
    std::fs::write(&config, text).unwrap();
    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(1024), ..before }).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_pvnet"));
    command.args(["run", "--config"]).arg(config).stderr(Stdio::null());
    let process = command.spawn().unwrap();
    // The guests' ends are all in this process.
    setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before }).unwrap();
    let daemon = Daemon { process, folder };
    wait("the start", || daemon.folder.path().join("control.sock").exists());
    daemon
}

/// A connected guest.
type Connected = (MachineGuest, Frontend<MachineGuest>, Vec<Queue<MachineGuest>>);

fn connect(socket: &Path, name: &str) -> Connected {
    let (guest, store) = machine::join(socket, name).unwrap();
    let store: Arc<dyn Store> = Arc::new(Client::new(store).unwrap());
    let config = netfront::Config {
        queues: 1,
        features: Features::ALL,
        split_event_channels: true,
        header_channel: true,
        persistent_grants: true,
        timeout: LIMIT,
    };
    let node = machine::toolstack::device_path(0);
    let (frontend, queues) = Frontend::connect(&guest, store, &node, &config).unwrap();
    (guest, frontend, queues)
}

#[test]
fn two_hundred_and_fifty_six_guests_attach_on_default_limits() {
    let daemon = daemon();
    let socket = daemon.folder.path().join("machine.sock");
    wait("the socket", || socket.exists());
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
