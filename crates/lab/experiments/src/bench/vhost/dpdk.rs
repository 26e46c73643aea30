//! DPDK's environment, and its testpmd.

use std::path::PathBuf;
use std::time::Duration;

use lab::Process;

use crate::error::Result;

/// How long a rival may take to start.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Statistics that testpmd never comes to print. Without them it would wait for a key.
const NEVER: &str = "--stats-period=1000000";
/// Packets' buffers, which fit into its memory.
const MBUFS: &str = "--total-num-mbufs=16384";
/// Large pages of 2 MiB that a program needs. Without them it has small ones.
const HUGE_PAGES: u64 = 130;

/// Options of DPDK's environment: no NIC, and no files that other programs of DPDK would share.
pub fn options() -> Vec<&'static str> {
    let memory: &[_] = match free_huge_pages() {
        // Open vSwitch makes its memory dynamic, which small pages cannot be, unless it is told not to.
        0..HUGE_PAGES => &["--no-huge", "--legacy-mem", "--no-shconf"],
        _ => &["--in-memory", "--single-file-segments"],
    };
    [&["--no-pci", "--no-telemetry", "--iova-mode=va", "-m", "256"], memory].concat()
}

/// `dpdk-testpmd`, which sends each frame of one port out of the other, unread. It polls the CPU it is started on.
pub fn testpmd(cpu: usize, sockets: &[PathBuf; 2]) -> Result<Process> {
    // It does not flush what it says when it has started, unless its output is a terminal.
    let mut command = lab::command("stdbuf")?;
    command.args(["--output=L", "dpdk-testpmd"]);
    // The first of both threads only waits.
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

/// Pages of 2 MiB that nobody uses.
fn free_huge_pages() -> u64 {
    let file = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}
