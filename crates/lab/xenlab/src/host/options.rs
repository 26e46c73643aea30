//! How a host boots.

use std::path::PathBuf;
use std::time::Duration;

use super::overlay::HostFile;

/// How a host boots.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine's memory, in MiB.
    pub memory_mib: u32,
    /// dom0's part of it.
    pub dom0_memory_mib: u32,
    /// dom0's virtual CPUs. The machine has one CPU, which they share.
    pub dom0_vcpus: u32,
    /// Files of this machine to copy into dom0 and guests.
    pub files: Vec<HostFile>,
    /// Whether dom0 has a network card, `eth0`, on a network that QEMU emulates: 10.0.2.2 answers.
    pub outside: bool,
    /// Whether the processor offers virtualisation to the hypervisor, which PVH and HVM guests need. It costs time.
    pub nested: bool,
    /// Whether the processor says that it is Intel's, not AMD's. libvirt knows no AMD processor without `vme`, which QEMU does not
    /// emulate.
    pub intel: bool,
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
            xen_arguments: String::new(),
            kernel_arguments: String::new(),
            log: None,
            // Eight seconds on an idle machine. An overloaded one is slow, not broken.
            limit: Duration::from_secs(300),
        }
    }
}
