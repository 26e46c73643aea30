//! What the daemon needs of every machine.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cpus::{Available, CpuList};
use offload::Features;
use port::{Doorbell, Queue};
use rustix::event::{Timespec, epoll};
use rustix::fs::{Access, access};
use rustix::process::{Resource, getrlimit};
use rustix::system::uname;
use shm::{PageSize, Region};
use vhost_user::{Device, DeviceOptions, Session};
use virtio_user::Options;

use super::{Check, text};
use crate::config;

/// Descriptors that the daemon takes without a guest, and that a guest takes with one queue (see `daemon::limits`).
const OWN_DESCRIPTORS: u64 = 64;
const GUEST_DESCRIPTORS: u64 = 22;
/// With fewer guests the limit is worth a word.
const GUESTS: u64 = 100;
const MIB: u64 = 1 << 20;

/// Checks for `pvnet run`.
pub(super) fn daemon(directory: &Path) -> Vec<Check> {
    vec![
        Check::needed(
            "kernel",
            kernel(),
            "boot Linux 5.11 or later: waits of microseconds need epoll_pwait2",
        ),
        Check::needed(
            "sealed shared memory",
            memory(),
            "the kernel needs CONFIG_MEMFD_CREATE and CONFIG_SHMEM",
        ),
        Check::needed(
            "folder of the sockets",
            folder(directory),
            format!(
                "run as root, or choose another with `directory` in [daemon] and --directory; now it is {}",
                directory.display()
            ),
        ),
        Check::wished(
            "folder of recordings",
            recordings(&config::Daemon::default().recordings),
            "mirrors to files need this folder, owned by the daemon's user: `install -d -o pvnet -m 750 /var/lib/pvnet`, or `recordings` in [daemon]",
        ),
        Check::wished(
            "ports over vhost-user",
            both_ends(),
            "[[port]], and [[uplink]] with kind = \"virtio-user\", need CONFIG_EVENTFD and /proc",
        ),
        Check::wished(
            "QEMU's user",
            front_ends(),
            "take it out of these groups (`gpasswd -d USER GROUP`); `socket_group` of a [[port]] lets it use that port's socket (docs/kvm.md)",
        ),
        Check::wished(
            "descriptors",
            descriptors(),
            "raise the hard limit: LimitNOFILE=65536 in the unit, or `ulimit -Hn`",
        ),
        Check::wished(
            "processors",
            processors(),
            "give the machine a second one: a worker and a guest then do not wait for each other",
        ),
        Check::wished(
            "secret memory",
            secret(),
            "cards with contexts (pvnet nic) use ordinary memory then; boot with secretmem.enable=y, and raise LimitMEMLOCK",
        ),
        Check::wished(
            "pages of 2 MiB",
            huge_pages(),
            "huge_pages = true has no effect then; echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled",
        ),
        Check::wished(
            "light sleep of the CPUs",
            light_sleep(),
            "low_latency = true has no effect then; it needs root and CONFIG_CPU_IDLE",
        ),
    ]
}

fn kernel() -> Result<String, String> {
    let queue = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(text)?;
    let limit = Timespec { tv_sec: 0, tv_nsec: 1 };
    let mut events: Vec<epoll::Event> = Vec::with_capacity(1);
    let spare = rustix::buffer::spare_capacity(&mut events);
    epoll::wait(&queue, spare, Some(&limit)).map_err(text)?;
    Ok(format!("Linux {}", uname().release().to_string_lossy()))
}

fn memory() -> Result<String, String> {
    let file = shm::create_sealable_memfd("doctor", 1, PageSize::Small).map_err(text)?;
    let region = Region::map(&file, 0, PageSize::Small.bytes()).map_err(text)?;
    shm::seal_future_writes(&file).map_err(text)?;
    region.write(0, 1u8).map_err(text)?;
    Ok("a sealed file was made and mapped".to_owned())
}

/// Makes a socket in the folder, and the folder if it is missing.
fn folder(directory: &Path) -> Result<String, String> {
    let existed = directory.exists();
    std::fs::create_dir_all(directory).map_err(text)?;
    let path = directory.join(format!("doctor-{}.sock", std::process::id()));
    let bound = UnixListener::bind(&path).map_err(text);
    // Either may be missing by now.
    let _ = seqpacket::remove_socket(&path);
    let mode =
        std::fs::metadata(directory).map_or(0, |folder| folder.permissions().mode() & 0o7777);
    if !existed {
        let _ = std::fs::remove_dir(directory);
    }
    bound.map(|_| format!("{} takes a socket (mode {mode:o})", directory.display()))
}

/// Looks at the folder only: a recording may be in it.
fn recordings(folder: &Path) -> Result<String, String> {
    let shown = folder.display();
    access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| format!("{shown}: {}", std::io::Error::from(error)))?;
    Ok(format!("{shown} takes files"))
}

fn descriptors() -> Result<String, String> {
    let most = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let guests = most.saturating_sub(OWN_DESCRIPTORS) / GUEST_DESCRIPTORS;
    let found = format!("{most}, enough for {guests} guests with one queue");
    if guests < GUESTS { Err(found) } else { Ok(found) }
}

/// Those that this process may use, and how far they are from each other.
fn processors() -> Result<String, String> {
    let available = Available::read().map_err(text)?;
    let cpus = available.allowed();
    let isolated: CpuList = cpus.iter().filter(|cpu| available.is_isolated(*cpu)).collect();
    let isolated = match isolated.is_empty() {
        true => String::new(),
        false => format!(", {isolated} of them isolated"),
    };
    let nodes: BTreeSet<_> = cpus.iter().filter_map(cpus::node_of).collect();
    let nodes = if nodes.len() > 1 { format!(" on {} nodes", nodes.len()) } else { String::new() };
    let found = format!("{} ({cpus}{isolated}){nodes}", cpus.len());
    if cpus.len() < 2 {
        return Err(found);
    }
    Ok(match cpus::distances() {
        Some(distances) => {
            format!("{found}; a cache line takes {distances} from the first of them to another")
        }
        None => format!("{found}; they are too busy to measure how far they are from each other"),
    })
}

/// Maps what a guest has by default.
fn secret() -> Result<String, String> {
    let len = 64 * usize::try_from(MIB).unwrap_or(usize::MAX);
    let file = shm::create_secret_file(len / PageSize::Small.bytes()).map_err(text)?;
    Region::map(&file, 0, len).map_err(|error| {
        let limit = getrlimit(Resource::Memlock)
            .current
            .map_or("unlimited".into(), |n| format!("{} KiB", n / 1024));
        format!("{}, with at most {limit} of locked memory", text(error))
    })?;
    Ok("64 MiB can be locked".to_owned())
}

fn huge_pages() -> Result<String, String> {
    let len = PageSize::Huge.bytes();
    let file =
        shm::create_memfd("doctor", len / PageSize::Small.bytes(), PageSize::Huge).map_err(text)?;
    let region = Region::map_aligned(&file, 0, len).map_err(text)?;
    region.populate_huge(0..len).map_err(text)?;
    Ok("the kernel gave one to shared memory".to_owned())
}

/// Asks for the latency that is usual, so that nothing changes.
fn light_sleep() -> Result<String, String> {
    let path = "/dev/cpu_dma_latency";
    std::fs::File::options().write(true).open(path).map_err(|error| format!("{path}: {error}"))?;
    Ok(format!("{path} can be held open"))
}

/// Users that QEMU runs as under libvirt.
const FRONT_ENDS: [&str; 3] = ["libvirt-qemu", "qemu", "qemu-kvm"];
/// Groups of the daemon and of its operators.
const OPERATORS: [&str; 3] = ["pvnet", "pvnet-control", "pvnet-join"];

/// Whether QEMU, which guests escape into, is an operator of the daemon.
fn front_ends() -> Result<String, String> {
    let [groups, users] =
        ["/etc/group", "/etc/passwd"].map(|path| std::fs::read_to_string(path).unwrap_or_default());
    operators(&groups, &users)
}

fn operators(groups: &str, users: &str) -> Result<String, String> {
    // A user's first group does not list the user.
    let has_first = |user: &str, group: &str| {
        let mut fields = users.lines().map(|line| line.split(':'));
        fields.any(|mut of| of.next() == Some(user) && of.nth(2) == Some(group))
    };
    let of = |line: &str| {
        let fields: Vec<_> = line.split(':').collect();
        let &[group, _, number, members] = &fields[..] else { return None };
        let is_in = |user: &str| members.split(',').any(|member| member == user);
        let user = FRONT_ENDS.into_iter().find(|user| is_in(user) || has_first(user, number))?;
        OPERATORS.contains(&group).then(|| format!("{user} is in group {group}"))
    };
    let found: Vec<_> = groups.lines().filter_map(of).collect();
    match found.is_empty() {
        true => Ok("in no group of pvnet's".to_owned()),
        false => {
            Err(format!("{}: a guest that escapes into QEMU may be an operator", found.join(", ")))
        }
    }
}

/// Checks for the sandbox, in a thread that ends.
pub(super) fn sandbox() -> Vec<Check> {
    let enter = || (files(), calls());
    let tried = std::thread::scope(|scope| scope.spawn(enter).join());
    let (files, calls) = tried.unwrap_or_else(|_| (Err("panicked".into()), Err("panicked".into())));
    vec![
        Check::wished(
            "Landlock",
            files,
            "boot with lsm=landlock,… and CONFIG_SECURITY_LANDLOCK; the daemon runs without",
        ),
        Check::wished(
            "seccomp",
            calls,
            "the kernel needs CONFIG_SECCOMP_FILTER; the daemon runs without",
        ),
        Check::wished(
            "user namespaces",
            user_namespaces(),
            "pvnet rootless needs them: sysctl kernel.unprivileged_userns_clone=1, or kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ]
}

fn files() -> Result<String, String> {
    let rules = sandbox::FileRules { read: vec!["/proc".into()], ..sandbox::FileRules::default() };
    let enforced = sandbox::restrict_files(&rules).map_err(text)?;
    match std::fs::File::open("/") {
        Ok(_) => Err("the kernel has no Landlock".to_owned()),
        Err(_) => Ok(match enforced {
            sandbox::Enforcement::Full => {
                "files, TCP ports, abstract sockets and signals".to_owned()
            }
            _ => "files, and what else this kernel knows".to_owned(),
        }),
    }
}

fn calls() -> Result<String, String> {
    sandbox::restrict_calls_of_thread(sandbox::CallRules::default()).map_err(text)?;
    match rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        None,
    ) {
        Ok(_) => Err("a call that is not allowed succeeded".to_owned()),
        Err(_) => Ok("calls are refused".to_owned()),
    }
}

fn user_namespaces() -> Result<String, String> {
    let mut command = host::command("unshare").map_err(text)?;
    command.args(["--user", "--map-root-user", "--net", "--mount", "true"]);
    host::run(command, Duration::from_secs(20)).map_err(text)?;
    Ok("one was made".to_owned())
}

const NEXT: &str = "make deps installs it on Debian";

/// A program, and who runs it.
const TOOLS: [(&str, &str); 9] = [
    ("ip", "everything"),
    ("ping", "demo, tests, benchmarks"),
    ("iperf3", "demo, tests, benchmarks"),
    ("ethtool", "demo, benchmarks, uplinks over a NIC"),
    ("tshark", "tests of captures"),
    ("qemu-system-x86_64", "make lab-qemu, lab-xen, scope, gate"),
    ("dpdk-testpmd", "make lab-dpdk, pvnet-lab bench vhost"),
    ("xz", "labs"),
    ("zstd", "labs"),
];

/// Checks for labs. KVM is not needed: the labs emulate.
pub(super) fn checks() -> Vec<Check> {
    let check = |(tool, users): (&'static str, &str)| {
        let found = host::command(tool).map(|_| format!("installed, for {users}"));
        Check::needed(tool, found.map_err(|error| format!("{}, for {users}", text(error))), NEXT)
    };
    TOOLS.into_iter().map(check).collect()
}

/// A back-end that serves its rings to nobody.
struct Nobody;

impl Device for Nobody {
    fn start(&self, _: Vec<Queue>) {}

    fn stop(&self, _: &str) {}
}

/// Has a back-end and a front-end agree.
pub(super) fn both_ends() -> Result<String, String> {
    let (front, back) = UnixStream::pair().map_err(text)?;
    let offloads = Features::ALL;
    let offered = DeviceOptions { queues: 1, packed: true, offloads, guest_offloads: true };
    let session = Session::new(offered, Arc::new(Nobody), Arc::default()).map_err(text)?;
    let thread = thread::spawn(move || session.run(back));
    let wanted = Options { queues: 1, packed: true, sends: offloads, receives: offloads };
    let stop = Doorbell::new().map_err(text)?;
    let connected = virtio_user::connect(front, &wanted, &Arc::default(), stop.as_fd());
    let layout = connected.map(|(session, _)| session.agreed().layout()).map_err(text)?;
    // The front-end is gone.
    thread.join().map_err(|_| "the back-end's thread panicked")?;
    Ok(format!("a back-end and a front-end agreed on {layout:?} rings").to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_front_end_in_a_group_of_operators_is_named() {
        let groups = "root:x:0:\npvnet:x:998:\nkvm:x:104:libvirt-qemu\npvnet-control:x:997:alice\n";
        let users = "root:x:0:0::/root:/bin/sh\nlibvirt-qemu:x:64055:104::/:/bin/false\nqemu:x:107:990::/:\n";
        assert!(operators(groups, users).is_ok());
        for group in OPERATORS {
            let listed = format!("{groups}{group}:x:991:alice,libvirt-qemu\n");
            let error = operators(&listed, users).unwrap_err();
            assert!(error.contains(&format!("libvirt-qemu is in group {group}:")), "{error}");
            let error = operators(&format!("{groups}{group}:x:990:\n"), users).unwrap_err();
            assert!(error.contains(&format!("qemu is in group {group}:")), "{error}");
        }
    }
}
