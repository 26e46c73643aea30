//! What a running daemon has given up, and that it says when it is ready.

#[allow(dead_code, reason = "other tests use the rest")]
mod testbed;

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use lab::{Process, TempDir};
use testbed::{LIMIT, Testbed, pvnet, requires, wait};

/// The lines of every thread of a process that begin with `key`.
fn of_threads(pid: u32, key: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // One that serves a client may have ended.
    let status = threads
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("status")).ok());
    let value = |status: String| {
        let mut lines = status.lines();
        lines.find_map(|line| Some(line.strip_prefix(key)?.trim().to_owned()))
    };
    status.filter_map(value).collect()
}

#[track_caller]
fn assert_all(pid: u32, key: &str, value: &str) {
    let values = of_threads(pid, key);
    assert!(values.len() > 3 && values.iter().all(|one| one == value), "{key} {values:?}");
}

#[test]
fn a_daemon_gives_up_what_it_does_not_need_and_carries_frames() {
    requires!("ping");
    let mut testbed = Testbed::start(2, "workers = 2");
    testbed.daemon.says("ready", LIMIT).unwrap();
    testbed.join(0, &[]);
    testbed.join(1, &[]);
    testbed.ping(0, 1);
    let pid = testbed.daemon.pid();
    for key in ["CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_all(pid, key, "0000000000000000");
    }
    assert_all(pid, "Seccomp:", "2");
    assert_all(pid, "NoNewPrivs:", "1");
    assert!(testbed.daemon.stderr().contains("files that it does not need are out of reach"));
    // Its code stays in memory, unless this user may not lock so much.
    let is_locked = of_threads(pid, "VmLck:").iter().all(|locked| locked != "0 kB");
    let is_said = testbed.daemon.stderr().contains("the program's code may be evicted");
    assert!(is_locked != is_said, "{is_locked}");
}

#[test]
fn groups_get_the_sockets_of_a_daemon_without_capabilities() {
    requires!();
    let group = rustix::process::getgid().as_raw() + 1;
    let keys = format!("control_group = {group}\njoin_group = {}", group + 1);
    let mut testbed = Testbed::start(1, &keys);
    testbed.daemon.says("ready", LIMIT).unwrap();
    for (socket, group) in [("control.sock", group), ("machine.sock", group + 1)] {
        let file = std::fs::metadata(testbed.folder().join(socket)).unwrap();
        assert_eq!((file.gid(), file.mode() & 0o777), (group, 0o600), "{socket}");
    }
    assert_all(testbed.daemon.pid(), "CapEff:", "0000000000000000");
}

#[test]
fn a_daemon_without_a_sandbox_keeps_its_rights() {
    requires!();
    let mut testbed = Testbed::start(1, "sandbox = \"off\"");
    testbed.daemon.says("ready", LIMIT).unwrap();
    assert_all(testbed.daemon.pid(), "Seccomp:", "0");
    assert!(
        of_threads(testbed.daemon.pid(), "CapEff:").iter().all(|set| set != "0000000000000000")
    );
}

/// Reads what a service manager is notified of, until that contains `words`.
fn expect_notification(manager: &UnixDatagram, words: &str) {
    let mut buffer = [0; 256];
    wait(words, || {
        let len = manager.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..len]).contains(words)
    });
}

#[test]
fn a_service_manager_learns_of_the_start_of_each_sign_of_life_and_of_the_end() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_read_timeout(Some(LIMIT)).unwrap();
    let mut daemon = start(folder.path(), &path);
    expect_notification(&manager, "READY=1");
    assert!(folder.path().join("control.sock").exists(), "it is ready when its sockets are there");
    let mut status = pvnet();
    status.args(["status", "--json", "--directory"]).arg(folder.path());
    let status = lab::run(status, LIMIT).unwrap();
    let file = folder.path().join("pvnet.toml").display().to_string();
    assert!(status.contains(&file), "{status}");
    // Twice: a daemon whose workers hang would have said it once at most.
    expect_notification(&manager, "WATCHDOG=1");
    expect_notification(&manager, "WATCHDOG=1");
    assert!(daemon.stop().unwrap().success(), "{}", daemon.stderr());
    expect_notification(&manager, "STOPPING=1");
}

fn start(folder: &Path, manager: &Path) -> Process {
    let config = folder.join("pvnet.toml");
    std::fs::write(&config, format!("[daemon]\ndirectory = \"{}\"\n", folder.display())).unwrap();
    let mut command = pvnet();
    // Relative, as in a shell. The daemon cannot ask for its folder once it is in its sandbox.
    command.current_dir(folder).args(["run", "--config", "pvnet.toml"]);
    command.env("NOTIFY_SOCKET", manager).env("WATCHDOG_USEC", "2000000");
    Process::capture(command).unwrap()
}
