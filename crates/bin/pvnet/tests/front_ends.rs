//! Why a virtual machine's port carries nothing, as `pvnet status` says it; and who is cut off, and with what else.

#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
mod testbed;

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hypervisor::EventChannel as _;
use lab::TempDir;
use netfront::Frontend as NetFrontend;
use rustix::fs::{FallocateFlags, fallocate};
use serde_json::Value;
use testbed::{Testbed, pvnet, wait};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;
use xenstore::{Client, Store};

/// A daemon with one port of one pair of rings.
struct Bed {
    testbed: Testbed,
    folder: TempDir,
}

impl Bed {
    fn start(lines: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let socket = folder.path().join("vm0");
        let port = format!(
            "[[port]]\nname = \"vm0\"\nkind = \"vhost-user\"\nsocket = {socket:?}\nguard = \"off\"\n{lines}"
        );
        Self { testbed: Testbed::start(0, &port), folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("vm0")
    }

    fn port(&self) -> Value {
        self.testbed.status()["ports"][0].clone()
    }

    /// Waits until the port's reason has this code, and returns it as a sentence, or its detail.
    fn until(&self, code: &str) -> String {
        wait(code, || self.port()["reason"]["code"] == *code);
        self.port()["reason"]["detail"].as_str().unwrap_or_default().to_owned()
    }

    /// A front-end that has agreed on features as QEMU does when it starts.
    fn front_end(&self) -> Frontend {
        let mut front = Frontend::connect(self.socket(), 2).unwrap();
        front.set_owner().unwrap();
        front.get_features().unwrap();
        let offered = front.get_protocol_features().unwrap();
        front.set_protocol_features(offered & VhostUserProtocolFeatures::MQ).unwrap();
        front
    }
}

#[test]
fn each_thing_that_keeps_a_machine_from_its_port_has_a_reason_of_its_own() {
    let bed = Bed::start("");
    assert_eq!(bed.until("waiting_for_frontend"), "");
    // More queues than the port has: it asks, and goes.
    let mut front = bed.front_end();
    assert_eq!(front.get_queue_num().unwrap(), 1);
    drop(front);
    let why = bed.until("frontend_gone");
    assert!(why.contains("more queues than the port (1)"), "{why}");
    // No driver, and then one whose machine has no memory to share.
    let front = bed.front_end();
    bed.until("no_driver");
    let features = front.get_features().unwrap();
    front.set_features(features & !(1 << 34)).unwrap();
    bed.until("no_shared_memory");
    // No memory. A regular file would close the port on some file systems.
    let file = File::open("/dev/null").unwrap();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: 1 << 20,
        userspace_addr: 1 << 30,
        mmap_offset: 0,
        mmap_handle: std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()),
    };
    let _ = front.set_mem_table(&[region]);
    let why = bed.until("frontend_gone");
    assert!(why.contains("no memfd and no file in tmpfs"), "{why}");
    drop(front);
    let _front = bed.front_end();
    bed.until("no_driver");
}

#[test]
fn a_second_front_end_is_refused_and_the_first_one_stays() {
    let bed = Bed::start("");
    let mut front = bed.front_end();
    bed.until("no_driver");
    for count in 1..=2 {
        let mut second = UnixStream::connect(bed.socket()).unwrap();
        second.set_read_timeout(Some(testbed::LIMIT)).unwrap();
        // It may be closed already.
        let _ = second.write_all(&[1, 1, 0].map(u32::to_le_bytes).concat());
        let closed = second.read(&mut [0; 1]).map_err(|error| error.kind());
        assert!(matches!(closed, Ok(0) | Err(ErrorKind::ConnectionReset)), "{closed:?}");
        wait("the count", || bed.port()["refused_connections"] == count);
    }
    assert_eq!(front.get_queue_num().unwrap(), 1, "the first one is served");
    let said = bed.testbed.command("status");
    let said = lab::run(said, testbed::LIMIT).unwrap();
    assert!(said.contains("vm0: 2 connections were refused: its socket is taken"), "{said}");
    drop(front);
    bed.until("frontend_gone");
    let _front = bed.front_end();
    bed.until("no_driver");
}

/// Memory that is nothing but a length.
fn sparse(mib: u64) -> File {
    let file = rustix::fs::memfd_create("sparse", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, mib << 20).unwrap();
    file.into()
}

/// Has the file mapped from its start.
fn share(front: &Frontend, file: &File, mib: u64) -> bool {
    front.set_owner().unwrap();
    let features = front.get_features().unwrap();
    front.set_features(features & !(1 << 34)).unwrap();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: 0,
        memory_size: mib << 20,
        userspace_addr: 1 << 30,
        mmap_offset: 0,
        mmap_handle: std::os::fd::AsRawFd::as_raw_fd(file),
    };
    // Answered after the table, if at all.
    front.set_mem_table(&[region]).is_ok() && front.get_features().is_ok()
}

#[test]
fn memory_beyond_the_ports_is_refused_and_its_neighbour_has_its_own() {
    let folder = TempDir::new().unwrap();
    let [one, two] = ["one", "two"].map(|name| folder.path().join(name));
    let port = |name: &str, socket: &PathBuf| {
        format!(
            "[[port]]\nname = {name:?}\nkind = \"vhost-user\"\nsocket = {socket:?}\nguard = \"off\"\nmemory_mib = 256\n"
        )
    };
    let testbed = Testbed::start(0, &(port("one", &one) + &port("two", &two)));
    let status = |number: usize| testbed.status()["ports"][number].clone();
    let mapped = |number: usize| status(number)["mapped_memory"]["bytes"].as_u64().unwrap() >> 20;
    let front = Frontend::connect(&one, 1).unwrap();
    let file = sparse(1 << 20);
    assert!(!share(&front, &file, 1 << 20));
    wait("the reason", || status(0)["reason"]["code"] == "frontend_gone");
    let why = status(0)["reason"]["detail"].to_string();
    assert!(why.contains("1048576 MiB to be mapped") && why.contains("memory_mib"), "{why}");
    assert_eq!(mapped(0), 0);
    let second = Frontend::connect(&two, 1).unwrap();
    assert!(share(&second, &file, 256), "its neighbour");
    assert_eq!((mapped(1), status(1)["mapped_memory"]["limit"].as_u64()), (256, Some(320 << 20)));
    // In place: the front-end that is there need not connect again.
    let front = Frontend::connect(&one, 1).unwrap();
    assert!(share(&front, &file, 128));
    let mut set = pvnet();
    set.args(["port", "set", "one", "memory_mib=1048576", "--directory"]).arg(testbed.folder());
    let said = lab::run(set, testbed::LIMIT).unwrap();
    assert!(said.contains("changed"), "{said}");
    assert!(share(&front, &file, 1 << 20));
    assert_eq!((mapped(0), mapped(1)), (1 << 20, 256));
}

/// Bytes of a memory of which a hole takes some 400 ms.
const HOLE: u64 = 2 << 30;
const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// Has both rings served, in the first pages of a memory that [`share`] maps.
fn serve_rings(front: &mut Frontend) -> [EventFd; 2] {
    [0, 1].map(|ring| {
        let at = (1 << 30) + 0x1_0000 * ring as u64;
        let config = VringConfigData {
            queue_max_size: 256,
            queue_size: 256,
            flags: 0,
            desc_table_addr: at,
            avail_ring_addr: at + 0x4000,
            used_ring_addr: at + 0x6000,
            log_addr: None,
        };
        let kick = EventFd::new(0).unwrap();
        front.set_vring_num(ring, 256).unwrap();
        front.set_vring_base(ring, 0).unwrap();
        front.set_vring_addr(ring, &config).unwrap();
        front.set_vring_kick(ring, &kick).unwrap();
        front.set_vring_enable(ring, true).unwrap();
        kick
    })
}

/// Makes holes in a memory until somebody is cut off for it. A worker that reads a ring in such a moment sleeps until the hole is made.
fn make_holes(file: impl AsFd + Sync, kick: impl Fn(), is_cut_off: impl Fn() -> bool) {
    for _ in 0..8 {
        fallocate(&file, FallocateFlags::empty(), 0, HOLE).unwrap();
        std::thread::scope(|scope| {
            let hole = scope.spawn(|| fallocate(&file, PUNCH, 0, HOLE).unwrap());
            while !hole.is_finished() {
                kick();
                std::thread::yield_now();
            }
        });
        if is_cut_off() {
            break;
        }
    }
}

/// A front-end whose rings are served, their memory and their kicks.
fn with_rings(bed: &Bed) -> (Frontend, File, [EventFd; 2]) {
    let mut front = bed.front_end();
    let file = sparse(HOLE >> 20);
    assert!(share(&front, &file, HOLE >> 20));
    let kicks = serve_rings(&mut front);
    wait("its rings", || bed.port()["state"] == "up");
    (front, file, kicks)
}

#[test]
fn a_front_end_that_makes_holes_under_a_worker_is_cut_off() {
    let bed = Bed::start("");
    let (_front, file, kicks) = with_rings(&bed);
    let is_cut_off = || bed.port()["reason"]["code"] == "disabled";
    make_holes(&file, || kicks.iter().for_each(|kick| kick.write(1).unwrap()), is_cut_off);
    let why = bed.until("disabled");
    assert!(why.contains("hole") && why.contains("add the port again"), "{why}");
    assert!(UnixStream::connect(bed.socket()).is_err(), "its socket is closed");
}

/// Each of its holes takes some milliseconds, and is filled when somebody checks whether its memory shrinks.
#[test]
fn so_is_one_that_fills_its_holes_at_once() {
    const SMALL: u64 = 12 << 20;
    let bed = Bed::start("");
    let (_front, file, kicks) = with_rings(&bed);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                kicks.iter().for_each(|kick| kick.write(1).unwrap());
            }
        });
        // Most are over before a worker is seen to sleep three times.
        for _ in 0..2000 {
            fallocate(&file, FallocateFlags::empty(), 0, SMALL).unwrap();
            std::thread::sleep(Duration::from_millis(10));
            fallocate(&file, PUNCH, 0, SMALL).unwrap();
            if bed.port()["reason"]["code"] == "disabled" {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let why = bed.until("disabled");
    assert!(why.contains("hole"), "{why}");
}

/// Serves rings at a connection that another process has made, in a process of its own: that which [`front_end_process`] starts.
#[test]
fn front_end() {
    if std::env::var_os(FRONT_END).is_none() {
        return;
    }
    let stream = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut front = Frontend::from_stream(stream, 2);
    let file = sparse(1);
    assert!(share(&front, &file, 1));
    let _kicks = serve_rings(&mut front);
    loop {
        std::thread::park();
    }
}

const FRONT_END: &str = "PVNET_TEST_FRONT_END";

/// A process that speaks at a connection that this one has made, as QEMU does at one of its manager's.
fn front_end_process(socket: &PathBuf) -> Speaker {
    let stream = UnixStream::connect(socket).unwrap();
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "front_end"]).env(FRONT_END, "1");
    command.stdin(std::os::fd::OwnedFd::from(stream)).stdout(std::process::Stdio::null());
    Speaker(command.spawn().unwrap())
}

/// Ends its process.
struct Speaker(std::process::Child);

impl Drop for Speaker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn all_ports_of_a_hostile_front_ends_process_are_cut_off_and_those_of_others_go_on() {
    let folder = TempDir::new().unwrap();
    let sockets = ["vm0", "vm1", "vm2"].map(|name| folder.path().join(name));
    let port = |socket: &PathBuf| {
        let name = socket.file_name().unwrap();
        format!(
            "[[port]]\nname = {name:?}\nkind = \"vhost-user\"\nsocket = {socket:?}\nguard = \"off\"\n"
        )
    };
    let testbed = Testbed::start(0, &sockets.each_ref().map(port).concat());
    let status = |number: usize| testbed.status()["ports"][number].clone();
    let until_up = |number: usize| wait("its rings", || status(number)["state"] == "up");
    // This process has two ports, and the third one's connection too, at which another process speaks.
    let _neighbour = front_end_process(&sockets[2]);
    until_up(2);
    let file = sparse(HOLE >> 20);
    let mut fronts = [0, 1].map(|n| Frontend::connect(&sockets[n], 2).unwrap());
    let kicks = fronts.each_mut().map(|front| {
        assert!(share(front, &file, HOLE >> 20));
        serve_rings(front)
    });
    (0..2).for_each(until_up);
    let is_cut_off = |number: usize| status(number)["reason"]["code"] == "disabled";
    let kicks: Vec<_> = kicks.into_iter().flatten().collect();
    let kick = || kicks.iter().for_each(|kick| kick.write(1).unwrap());
    make_holes(&file, kick, || is_cut_off(0) || is_cut_off(1));
    let culprit = usize::from(is_cut_off(1));
    let other = 1 - culprit;
    wait("the end of its other port", || status(other)["state"] == "down");
    wait("the reason", || status(other)["reason"]["code"] == "frontend_gone");
    let why = status(other)["reason"]["detail"].to_string();
    let named = format!("vm{culprit}");
    assert!(why.contains("as long as it lives") && why.contains("hole"), "{why}");
    assert!(why.contains(&named) && why.contains(&std::process::id().to_string()), "{why}");
    assert_eq!(status(2)["state"], "up", "what its manager has connected is not its own");
    // It comes again.
    let front = Frontend::connect(&sockets[other], 2).unwrap();
    assert!(front.get_features().is_err(), "it is refused");
    wait("the reason", || status(other)["reason"]["detail"].to_string().contains(&named));
    // Another process is not refused.
    let _next = front_end_process(&sockets[other]);
    until_up(other);
    assert!(UnixStream::connect(&sockets[culprit]).is_err(), "its own socket is closed");
    assert_eq!(status(2)["state"], "up");
}

#[test]
fn a_process_guest_that_makes_holes_under_a_worker_is_cut_off() {
    assert!((0..5).any(|_| process_guest_is_cut_off()), "its ring was lost before a worker slept");
}

/// Makes holes in a process guest's memory until it is cut off. Returns false if a worker found its ring in such a hole, and broken, without having slept
/// there.
fn process_guest_is_cut_off() -> bool {
    let balloon = format!("balloon = true\nmemory_mib = {}\n", HOLE >> 20);
    let tables = format!(
        "[[guest]]\nname = \"red\"\nmac = \"02:00:00:00:00:01\"\n{balloon}\
         [[guest]]\nname = \"blue\"\nmac = \"02:00:00:00:00:02\"\n"
    );
    let testbed = Testbed::start(0, &tables);
    let join = |name| machine::join(&testbed.folder().join("machine.sock"), name);
    let connect = |name| {
        let (machine, store) = join(name).unwrap();
        let store: Arc<dyn Store> = Arc::new(Client::new(store).unwrap());
        let config = netfront::Config::default();
        let path = machine::toolstack::device_path(0);
        let (frontend, queues) = NetFrontend::connect(&machine, store, &path, &config).unwrap();
        (machine, frontend, queues)
    };
    let status = |name: &str| {
        let status = testbed.status();
        let ports = status["ports"].as_array().unwrap().clone();
        let named = |port: &Value| port["name"].as_str().is_some_and(|own| own.starts_with(name));
        ports.into_iter().find(named).unwrap_or_default()
    };
    let is_up = |name: &str| status(name)["state"] == "up";
    let _blue = connect("blue");
    let (machine, frontend, queues) = connect("red");
    wait("both", || is_up("red") && is_up("blue"));
    // A worker that reads the ring in such a moment sleeps until the hole is made.
    let event = queues[0].tx.event();
    let is_cut_off = || status("red")["reason"]["code"] == "disabled";
    make_holes(machine.memory(), || event.notify().unwrap(), is_cut_off);
    wait("disabled", is_cut_off);
    let why = status("red")["reason"]["detail"].to_string();
    assert!(is_up("blue"));
    if why.contains("slots ahead") {
        return false;
    }
    assert!(why.contains("hole") && why.contains("added again"), "{why}");
    // Another process of its name is the same guest.
    drop((machine, frontend, queues));
    wait("its end", || status("red").is_null());
    let refused = join("red").map(drop).unwrap_err().to_string();
    assert!(refused.contains("refused") && refused.contains("hole"), "{refused}");
    true
}

#[test]
fn a_socket_has_its_own_permissions_and_group() {
    let own = rustix::process::getgid().as_raw();
    let bed = Bed::start(&format!("socket_mode = 0o640\nsocket_group = {own}\n"));
    let is = |socket: PathBuf| {
        let metadata = std::fs::metadata(socket).unwrap();
        (metadata.permissions().mode() & 0o777, metadata.gid())
    };
    assert_eq!(is(bed.socket()), (0o640, own));
    // By default nobody else connects.
    assert_eq!(is(Bed::start("").socket()).0, 0o600);
    // One that a daemon in its sandbox makes, too.
    let socket = bed.folder.path().join("vm1");
    let mut add = pvnet();
    add.args(["port", "add", "port", "name=vm1", "kind=vhost-user", "guard=off"]);
    add.args([format!("socket={}", socket.display()), format!("socket_group={own}")]);
    add.arg("socket_mode=0o660").arg("--directory").arg(bed.testbed.folder());
    lab::run(add, testbed::LIMIT).unwrap();
    assert_eq!(is(socket), (0o660, own));
}

#[test]
fn a_file_at_the_path_of_a_socket_is_left_alone() {
    for name in ["control.sock", "machine.sock", "vm0"] {
        let folder = TempDir::new().unwrap();
        let [config, file, vm] = ["pvnet.toml", name, "vm0"].map(|name| folder.path().join(name));
        let text = format!(
            "[daemon]\ndirectory = {:?}\n[[port]]\nname = \"vm0\"\nkind = \"vhost-user\"\nsocket = {vm:?}\nguard = \"off\"\n",
            folder.path()
        );
        std::fs::write(&config, text).unwrap();
        std::fs::write(&file, "precious").unwrap();
        let mut command = pvnet();
        command.args(["run", "--config"]).arg(&config);
        let mut daemon = lab::Process::capture(command).unwrap();
        wait("the daemon's word", || daemon.ended().unwrap().is_some());
        let said = daemon.stderr();
        assert!(said.contains("no socket"), "{name}: {said}");
        assert_eq!(std::fs::read(&file).unwrap(), b"precious", "{name}: {said}");
    }
}
