//! A process that is in the sandbox is refused what it has given up. Each trial is a process, since nothing is given back.

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::process::{Command, Stdio};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketType, socket};
use rustix::thread::{CapabilitySet, capabilities, sched_getaffinity, sched_setaffinity};
use sandbox::{CallRules, Enforcement, FileRules};

/// Runs an ignored test of this file in a process.
#[track_caller]
fn trial(test: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--ignored", "--nocapture"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

#[test]
fn a_call_that_is_not_allowed_fails_in_every_thread() {
    trial("calls");
}

#[test]
#[ignore = "a_call_that_is_not_allowed_fails_in_every_thread runs it"]
fn calls() {
    let parent = rustix::process::getppid();
    let (start, wait) = std::sync::mpsc::channel::<()>();
    let earlier = std::thread::spawn(move || {
        wait.recv().unwrap();
        socket(AddressFamily::INET, SocketType::STREAM, None).map(drop)
    });
    sandbox::restrict_calls(CallRules::default()).unwrap();
    // In a thread that was there before, and in one that was not.
    start.send(()).unwrap();
    assert_eq!(earlier.join().unwrap(), Err(Errno::NOSYS));
    let later =
        std::thread::spawn(|| socket(AddressFamily::PACKET, SocketType::RAW, None).map(drop));
    assert_eq!(later.join().unwrap(), Err(Errno::NOSYS));
    socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
    // Programs, namespaces, mounts, memory that is executed.
    let run = Command::new("true").stdout(Stdio::null()).status();
    assert!(run.is_err(), "{run:?}");
    let changed = rustix::mount::unmount("/nonexistent", rustix::mount::UnmountFlags::empty());
    assert_eq!(changed, Err(Errno::NOSYS));
    assert_eq!(rustix::process::chdir("/"), Err(Errno::NOSYS));
    // A thread chooses its own CPUs, and nobody else's.
    let cpus = sched_getaffinity(None).unwrap();
    assert_eq!(sched_setaffinity(None, &cpus), Ok(()));
    let of_another = sched_setaffinity(parent, &cpus);
    assert_eq!(of_another, Err(Errno::NOSYS));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    assert!(status.contains("Seccomp:\t2") && status.contains("NoNewPrivs:\t1"), "{status}");
}

#[test]
fn a_socket_with_a_path_is_reached_only_by_who_may_connect() {
    trial("paths");
    trial("paths_with_programs");
    trial("paths_of_a_client");
}

#[test]
#[ignore = "a_socket_with_a_path_is_reached_only_by_who_may_connect runs it"]
fn paths() {
    refuses_paths(CallRules::default());
}

#[test]
#[ignore = "a_socket_with_a_path_is_reached_only_by_who_may_connect runs it"]
fn paths_with_programs() {
    refuses_paths(CallRules { programs: true, sockets: true, ..CallRules::default() });
}

/// The sockets of others, by every way that names their path.
fn refuses_paths(rules: CallRules) {
    let folder = host::TempDir::new().unwrap();
    let [stream, datagrams, own] =
        ["stream", "datagrams", "own"].map(|name| folder.path().join(name));
    let _manager = UnixListener::bind(&stream).unwrap();
    let log = UnixDatagram::bind(&datagrams).unwrap();
    sandbox::restrict_calls(rules).unwrap();
    let refused =
        |error: std::io::Error| assert_eq!(error.raw_os_error(), Some(Errno::NOSYS.raw_os_error()));
    refused(UnixStream::connect(&stream).unwrap_err());
    refused(UnixDatagram::unbound().unwrap_err());
    refused(UnixDatagram::pair().unwrap_err());
    let connection = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let address = SocketAddrUnix::new(&stream).unwrap();
    assert_eq!(rustix::net::connect(&connection, &address), Err(Errno::NOSYS));
    if rules == CallRules::default() {
        let sent = log.send_to(b"x", &datagrams);
        refused(sent.unwrap_err());
    }
    // What it serves goes on.
    let (mut ours, mut theirs) = UnixStream::pair().unwrap();
    ours.write_all(b"x").unwrap();
    assert_eq!(rustix::net::send(&ours, b"y", SendFlags::empty()), Ok(1));
    theirs.read_exact(&mut [0; 2]).unwrap();
    let _server = UnixListener::bind(&own).unwrap();
}

#[test]
#[ignore = "a_socket_with_a_path_is_reached_only_by_who_may_connect runs it"]
fn paths_of_a_client() {
    let folder = host::TempDir::new().unwrap();
    let path = folder.path().join("front-end");
    let _front_end = UnixListener::bind(&path).unwrap();
    sandbox::restrict_calls(CallRules { connects: true, ..CallRules::default() }).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_daemon_that_needs_programs_can_run_them() {
    trial("programs");
}

#[test]
#[ignore = "a_daemon_that_needs_programs_can_run_them runs it"]
fn programs() {
    let rules = CallRules { programs: true, ..CallRules::default() };
    sandbox::restrict_calls(rules).unwrap();
    let output = Command::new("cat").arg("/proc/self/status").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("Seccomp:\t2"));
    let changed = rustix::mount::unmount("/nonexistent", rustix::mount::UnmountFlags::empty());
    assert_eq!(changed, Err(Errno::NOSYS));
}

#[test]
fn a_file_outside_is_out_of_reach() {
    trial("files");
}

#[test]
#[ignore = "a_file_outside_is_out_of_reach runs it"]
fn files() {
    let [inside, outside] = [(); 2].map(|()| host::TempDir::new().unwrap());
    std::fs::write(outside.path().join("secret"), "x").unwrap();
    std::fs::write(outside.path().join("shown"), "x").unwrap();
    let port = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let rules = FileRules {
        read: vec![outside.path().join("shown"), "/nonexistent".into()],
        write: vec![inside.path().to_owned()],
        run: Vec::new(),
        bind: vec![port],
    };
    let enforced = sandbox::restrict_files(&rules).unwrap();
    if enforced == Enforcement::None {
        assert!(host::needed(Err::<(), _>("the kernel has no Landlock")).is_none());
        return;
    }
    // A thread that comes later has the same limits.
    let denied = std::thread::spawn(move || {
        let secret = File::open(outside.path().join("secret"));
        let written = std::fs::write(outside.path().join("new"), "x");
        File::open(outside.path().join("shown")).unwrap();
        [secret.map(drop), written, Command::new("true").status().map(drop)]
            .map(|result| result.unwrap_err().kind())
    });
    assert_eq!(denied.join().unwrap(), [ErrorKind::PermissionDenied; 3]);
    let path = inside.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(inside.path().join("folder")).unwrap();
    if enforced == Enforcement::Full {
        TcpListener::bind(("127.0.0.1", port)).unwrap();
        let other = if port == u16::MAX { port - 1 } else { port + 1 };
        assert_eq!(
            TcpListener::bind(("127.0.0.1", other)).unwrap_err().kind(),
            ErrorKind::PermissionDenied
        );
    }
}

#[test]
fn capabilities_that_are_not_wanted_are_gone_for_good() {
    trial("capabilities_kept");
}

#[test]
#[ignore = "capabilities_that_are_not_wanted_are_gone_for_good runs it"]
fn capabilities_kept() {
    let had = capabilities(None).unwrap().permitted;
    let kept = sandbox::keep_capabilities(CapabilitySet::NET_RAW).unwrap();
    assert_eq!(kept, had & CapabilitySet::NET_RAW);
    let sets = std::thread::spawn(|| capabilities(None).unwrap()).join().unwrap();
    assert_eq!([sets.permitted, sets.effective], [kept; 2]);
    assert!(sets.inheritable.is_empty());
    // A program does not get them back either, though it is root's.
    let output = Command::new("cat").arg("/proc/self/status").output().unwrap();
    let status = String::from_utf8_lossy(&output.stdout).into_owned();
    let permitted = status.lines().find_map(|line| line.strip_prefix("CapPrm:\t")).unwrap();
    assert_eq!(u64::from_str_radix(permitted, 16), Ok(kept.bits()), "{status}");
}
