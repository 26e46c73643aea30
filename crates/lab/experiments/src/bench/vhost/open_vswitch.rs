//! Open vSwitch with DPDK: a bridge that learns addresses (NORMAL), with two vhost-user ports.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use lab::{Interrupt, Namespace, Process};

use crate::error::{Error, Result};

/// The switch in Debian's package. The other programs are in the search path.
const SWITCH: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const PROGRAMS: [&str; 4] = [SWITCH, "ovsdb-server", "ovsdb-tool", "ovs-vsctl"];
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
/// The prefix of its polling threads' names.
pub const POLLERS: &str = "pmd-";
/// How often to check for a socket.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A switch and its database. Dropping it ends both.
pub struct OpenVswitch {
    // Dropped in this order.
    switch: Process,
    _database: Process,
    _namespace: Namespace,
}

impl OpenVswitch {
    /// Whether it is installed, and this user may start it.
    pub fn is_there() -> bool {
        Path::new(SCHEMA).is_file() && lab::preflight(&PROGRAMS).is_ok()
    }

    /// Starts it with one thread that polls on `cpu`. The sockets of its ports are files in `folder` with the ports' names. It
    /// shares no database, no folder and no network namespace with the machine's own Open vSwitch: its bridge is a device there.
    pub fn start(folder: &Path, cpu: usize, ports: [&str; 2]) -> Result<Self> {
        let namespace = Namespace::create("bench")?;
        let database = start_database(&namespace, folder)?;
        configure(folder, cpu, ports)?;
        let mut command = program(&namespace, folder, "switch", SWITCH)?;
        command.arg(database_socket(folder)).arg("-vconsole:warn");
        let mut switch = Process::capture(command)?;
        for port in ports {
            wait_for(&mut switch, &folder.join(port))?;
        }
        Ok(Self { switch, _database: database, _namespace: namespace })
    }

    /// The process of the switch.
    pub fn pid(&self) -> u32 {
        self.switch.pid()
    }
}

/// Starts the server of a new database.
fn start_database(namespace: &Namespace, folder: &Path) -> Result<Process> {
    let database = folder.join("db");
    let mut create = lab::command("ovsdb-tool")?;
    create.arg("create").arg(&database).arg(SCHEMA);
    lab::run(create, LIMIT)?;
    let mut command = program(namespace, folder, "database", "ovsdb-server")?;
    command.arg(format!("--remote=p{}", database_socket(folder))).arg(&database);
    let mut server = Process::capture(command)?;
    wait_for(&mut server, &folder.join("db.sock"))?;
    Ok(server)
}

/// Writes the switch's configuration into the database.
fn configure(folder: &Path, cpu: usize, ports: [&str; 2]) -> Result<()> {
    let mut command = lab::command("ovs-vsctl")?;
    command.arg(format!("--db={}", database_socket(folder))).arg("--no-wait");
    command.args(["init", "--", "set", "open", ".", "other_config:dpdk-init=true"]);
    command.arg(format!("other_config:pmd-cpu-mask={}", mask(cpu)));
    // The quotes are the database's.
    command.arg(format!(r#"other_config:dpdk-extra="{}""#, options().join(" ")));
    // With per-port memory, packet buffers for two ports fit. By default it would ask for as many as sixty ports need, and might start without any.
    command.arg("other_config:per-port-memory=true");
    // Long times, so that flows (milliseconds) and addresses (seconds) are not forgotten while others are measured.
    command.args(["other_config:max-idle=3600000", "--", "add-br", "guests"]);
    command.args(["--", "set", "bridge", "guests", "other_config:mac-aging-time=3600"]);
    command.args(["datapath_type=netdev", "fail_mode=standalone"]);
    for port in ports {
        command.args(["--", "add-port", "guests", port]);
        command.args(["--", "set", "interface", port, "type=dpdkvhostuser"]);
    }
    lab::run(command, LIMIT)?;
    Ok(())
}

/// The mask of a CPU as a hexadecimal number.
fn mask(cpu: usize) -> String {
    format!("0x{}{}", 1 << (cpu % 4), "0".repeat(cpu / 4))
}

fn database_socket(folder: &Path) -> String {
    format!("unix:{}", folder.join("db.sock").display())
}

/// A daemon with all its files in a folder.
fn program(namespace: &Namespace, folder: &Path, name: &str, file: &str) -> Result<Command> {
    let mut command = namespace.exec(file)?;
    for kind in ["RUNDIR", "LOGDIR", "DBDIR", "SYSCONFDIR"] {
        command.env(format!("OVS_{kind}"), folder);
    }
    // DPDK's folder, which would be a folder of the system.
    command.env("RUNTIME_DIRECTORY", folder);
    command.arg(format!("--unixctl={}", folder.join(format!("{name}.ctl")).display()));
    Ok(command)
}

/// Waits until a program has made a socket.
fn wait_for(process: &mut Process, socket: &Path) -> Result<()> {
    let end = Instant::now() + LIMIT;
    while !socket.exists() {
        let who = process.name().to_owned();
        if let Some(status) = process.ended()? {
            return Err(Error::Ended { who, status, said: process.stderr() });
        }
        if Instant::now() > end {
            let what = format!("the start of `{who}`");
            return Err(Error::Late { what, limit: LIMIT, said: process.stderr() });
        }
        Interrupt::sleep(CHECK_INTERVAL)?;
    }
    Ok(())
}

/// How long a rival may take to start.
pub const LIMIT: Duration = Duration::from_secs(30);
/// A period of statistics after which testpmd never prints. Without it testpmd would wait for a key.
const NEVER: &str = "--stats-period=1000000";
/// The number of packet buffers, which fit into its memory.
const MBUFS: &str = "--total-num-mbufs=16384";
/// The pages of 2 MiB that a program needs. If fewer are free, it gets small pages.
const HUGE_PAGES: u64 = 130;

/// Options of DPDK's environment: no NIC, and no files that DPDK's programs share.
pub fn options() -> Vec<&'static str> {
    let memory: &[_] = match free_huge_pages() {
        // Open vSwitch would use dynamic memory, which is impossible with small pages: `--legacy-mem` prevents it.
        0..HUGE_PAGES => &["--no-huge", "--legacy-mem", "--no-shconf"],
        _ => &["--in-memory", "--single-file-segments"],
    };
    [&["--no-pci", "--no-telemetry", "--iova-mode=va", "-m", "256"], memory].concat()
}

/// `dpdk-testpmd`, which sends each frame of one port out of the other, unread. It polls on `cpu`.
pub fn testpmd(cpu: usize, sockets: &[PathBuf; 2]) -> Result<Process> {
    // It does not flush its message that it has started, unless its output is a terminal.
    let mut command = lab::command("stdbuf")?;
    command.args(["--output=L", "dpdk-testpmd"]);
    // The first of the two threads only waits.
    command.args(["--lcores", &format!("0@{cpu},1@{cpu}")]).args(options());
    for (n, socket) in sockets.iter().enumerate() {
        let device = format!("net_vhost{n},iface={},queues=1", socket.display());
        command.args(["--vdev", &device]);
    }
    command.args(["--", "--nb-cores=1", "--forward-mode=io", "--disable-link-check", NEVER, MBUFS]);
    let mut process = Process::capture(command)?;
    process.says("io packet forwarding - ports=2", LIMIT)?;
    Ok(process)
}

/// The number of free pages of 2 MiB.
fn free_huge_pages() -> u64 {
    let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn a_mask_has_one_cpu() {
        assert_eq!([0, 3, 4, 69].map(mask), ["0x1", "0x8", "0x10", "0x200000000000000000"]);
    }
}
