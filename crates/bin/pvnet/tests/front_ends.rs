//! Why a virtual machine's port carries nothing, as `pvnet status` says it.

#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
mod testbed;

use std::fs::File;
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use lab::TempDir;
use rustix::fs::{FallocateFlags, fallocate};
use serde_json::Value;
use testbed::{Testbed, pvnet, wait};
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

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
        let mut front = Frontend::connect(self.socket(), 1).unwrap();
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
    // Memory in a file on a disk, or what is none in any case.
    let file = File::open("/proc/self/maps").unwrap();
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

/// Has both rings served, in the first pages of a memory that [`share`] maps.
fn serve_rings(front: &mut Frontend) -> [EventFd; 2] {
    let protocol = front.get_protocol_features().unwrap() & VhostUserProtocolFeatures::MQ;
    front.set_protocol_features(protocol).unwrap();
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

#[test]
fn a_front_end_that_makes_holes_under_a_worker_is_cut_off() {
    let bed = Bed::start("");
    let mut front = bed.front_end();
    let file = sparse(HOLE >> 20);
    assert!(share(&front, &file, HOLE >> 20));
    let kicks = serve_rings(&mut front);
    wait("its rings", || bed.port()["state"] == "up");
    let is_cut_off = || bed.port()["reason"]["code"] == "disabled";
    // A worker that looks at the ring in such a moment sleeps until the hole is made.
    for _ in 0..8 {
        fallocate(&file, FallocateFlags::empty(), 0, HOLE).unwrap();
        std::thread::scope(|scope| {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let hole = scope.spawn(|| fallocate(&file, punch, 0, HOLE).unwrap());
            while !hole.is_finished() {
                kicks.iter().for_each(|kick| kick.write(1).unwrap());
                std::thread::yield_now();
            }
        });
        if is_cut_off() {
            break;
        }
    }
    let why = bed.until("disabled");
    assert!(why.contains("hole") && why.contains("add the port again"), "{why}");
    assert!(UnixStream::connect(bed.socket()).is_err(), "its socket is closed");
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
