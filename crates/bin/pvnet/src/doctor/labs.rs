//! Programs that the demo, tests, benchmarks and labs run.

use super::check::{Check, text};

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
