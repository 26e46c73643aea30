//! How a host boots.

use std::path::PathBuf;
use std::time::Duration;

use super::overlay::HostFile;

/// QEMU's `-cpu` for runs with [`CLOCK`], without features that QEMU's instruction clock or its string copies handle
/// badly, and without five-level page tables, which pvscope does not read.
pub const PROCESSOR: &str = "max,-smap,-smep,-x2apic,-erms,-fsrm,-la57";
/// QEMU's arguments that make two runs the same: time is counted in instructions, one per nanosecond.
pub const CLOCK: [[&str; 2]; 3] =
    [["-icount", "shift=0,sleep=off"], ["-seed", "1"], ["-rtc", "base=2026-01-01,clock=vm"]];

/// How a host boots.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine's memory, in MiB.
    pub memory_mib: u32,
    /// dom0's part of the memory, in MiB.
    pub dom0_memory_mib: u32,
    /// dom0's virtual CPUs. The machine has one CPU, which they share.
    pub dom0_vcpus: u32,
    /// Files of this machine to copy into dom0 and guests.
    pub files: Vec<HostFile>,
    /// Whether dom0 has a network card, `eth0`, on a network that QEMU emulates: 10.0.2.2 answers.
    pub outside: bool,
    /// Whether the processor offers virtualisation to the hypervisor, which PVH and HVM guests need. It costs time.
    pub nested: bool,
    /// Whether the processor claims to be Intel's instead of AMD's. QEMU does not emulate `vme`, and libvirt knows no AMD
    /// processor without it.
    pub intel: bool,
    /// Whether the machine's clock counts its instructions, one per nanosecond. Rates then measure the work, not how busy this computer is,
    /// nor QEMU's cost of changing address spaces. It takes twice as long.
    pub counts_instructions: bool,
    /// More arguments for the hypervisor.
    pub xen_arguments: String,
    /// More arguments for dom0's kernel.
    pub kernel_arguments: String,
    /// Where to keep the console's log, if not in a temporary folder.
    pub log: Option<PathBuf>,
    /// How long booting may take.
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_mib: 2048,
            dom0_memory_mib: 1024,
            dom0_vcpus: 1,
            files: Vec::new(),
            outside: false,
            nested: false,
            intel: false,
            counts_instructions: false,
            xen_arguments: String::new(),
            kernel_arguments: String::new(),
            log: None,
            // Eight seconds on an idle machine. An overloaded one is slow, not broken.
            limit: Duration::from_secs(300),
        }
    }
}
