//! How a host boots.

use std::path::PathBuf;
use std::time::Duration;

use super::overlay::HostFile;

/// How a host is booted.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine's memory, in MiB.
    pub memory_mib: u32,
    /// dom0's part of it.
    pub dom0_memory_mib: u32,
    /// Files of this machine that dom0 and guests get.
    pub files: Vec<HostFile>,
    /// Whether dom0 has a network card, `eth0`, behind which QEMU plays a network: 10.0.2.2 answers.
    pub outside: bool,
    /// More words for the hypervisor.
    pub xen_arguments: String,
    /// More words for dom0's kernel.
    pub kernel_arguments: String,
    /// Where to keep the console's log; in a temporary folder otherwise.
    pub log: Option<PathBuf>,
    /// How long booting may take.
    pub limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory_mib: 2048,
            dom0_memory_mib: 1024,
            files: Vec::new(),
            outside: false,
            xen_arguments: String::new(),
            kernel_arguments: String::new(),
            log: None,
            // Eight on a machine with a core to spare; one that is overloaded is slow, not broken.
            limit: Duration::from_secs(300),
        }
    }
}
