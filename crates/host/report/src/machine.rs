//! Where a measurement was taken: without it a number cannot be compared with another.

use cpus::Distances;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fs;
use std::time::SystemTime;

/// The machine, the program and the moment of a measurement.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's model, as the kernel names it.
    pub cpu: String,
    /// Logical processors online.
    pub cpus: usize,
    /// Nanoseconds that a cache line takes from the first CPU of this process to the nearest and to the farthest of its others. Absent if
    /// it has no other, or they were busy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_line_ns: Option<[f64; 2]>,
    /// Memory the kernel manages, in bytes.
    pub memory_bytes: u64,
    /// The kernel's release, such as `6.12.0-1-amd64`.
    pub kernel: String,
    /// Whether a hypervisor runs below this kernel; its exits are then part of every number.
    pub virtualised: bool,
    /// The version of pvnet.
    pub pvnet: String,
    /// When it was taken: RFC 3339, UTC.
    pub date: String,
}

impl Machine {
    /// This machine, now. What the kernel does not tell reads `unknown` or 0.
    #[must_use]
    pub fn detect() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = text("/proc/cpuinfo");
        let kernel = text("/proc/sys/kernel/osrelease");
        Self {
            cpu: field(&cpuinfo, "model name").unwrap_or("unknown").to_owned(),
            cpus: cpus(&cpuinfo),
            cache_line_ns: ::cpus::distances()
                .map(|Distances { shortest, longest }| [shortest, longest]),
            memory_bytes: memory_bytes(&text("/proc/meminfo")),
            kernel: if kernel.is_empty() { "unknown".to_owned() } else { kernel.trim().to_owned() },
            // Xen's PV guests hide the processor's flag and show this file instead.
            virtualised: has_hypervisor_flag(&cpuinfo)
                || fs::exists("/sys/hypervisor/type").unwrap_or(false),
            pvnet: env!("CARGO_PKG_VERSION").to_owned(),
            date: crate::rfc3339(SystemTime::now()),
        }
    }

    /// The machine in one line, for the foot of a report.
    #[must_use]
    pub fn summary(&self) -> String {
        let gib = self.memory_bytes as f64 / f64::from(1u32 << 30);
        let kind = if self.virtualised { "virtual machine" } else { "bare metal" };
        let distance = self.cache_line_ns.map_or_else(String::new, |[shortest, longest]| {
            format!(" {} apart", Distances { shortest, longest })
        });
        format!(
            "{} × {}{distance}, {gib:.1} GiB, Linux {}, {kind}, pvnet {}, {}",
            self.cpus, self.cpu, self.kernel, self.pvnet, self.date
        )
    }
}

/// The value of the first `name : value` line.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let pairs = text.lines().filter_map(|line| line.split_once(':'));
    pairs
        .map(|(key, value)| (key.trim(), value.trim()))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

/// Counted in the kernel's list, not by what this process may use: an affinity mask does not shrink the machine.
fn cpus(cpuinfo: &str) -> usize {
    let listed = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    if listed > 0 { listed } else { std::thread::available_parallelism().map_or(0, usize::from) }
}

fn memory_bytes(meminfo: &str) -> u64 {
    let kib = field(meminfo, "MemTotal")
        .and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

fn has_hypervisor_flag(cpuinfo: &str) -> bool {
    field(cpuinfo, "flags")
        .is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "hypervisor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CPUINFO: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Processor\n\
        flags\t\t: fpu vme de hypervisor lahf_lm\n\nprocessor\t: 1\nmodel name\t: Intel(R) Xeon(R) Processor\n\
        flags\t\t: fpu vme de hypervisor lahf_lm\n";
    const MEMINFO: &str = "MemTotal:       24682416 kB\nMemFree:        23625972 kB\n";

    #[test]
    fn the_kernels_files_are_read() {
        assert_eq!(field(CPUINFO, "model name"), Some("Intel(R) Xeon(R) Processor"));
        assert_eq!(cpus(CPUINFO), 2);
        assert_eq!(memory_bytes(MEMINFO), 24_682_416 * 1024);
        assert!(has_hypervisor_flag(CPUINFO));
        assert!(!has_hypervisor_flag("flags : fpu vme\n"));
    }

    #[test]
    fn empty_files_are_no_failure() {
        assert_eq!(memory_bytes(""), 0);
        assert_eq!(field("", "model name"), None);
        assert!(cpus("") > 0);
    }

    #[test]
    fn this_machine_has_processors_memory_and_a_date() {
        let machine = Machine::detect();
        assert!(machine.cpus > 0 && machine.memory_bytes > 0);
        assert!(machine.date.len() == "2026-11-21T01:05:09Z".len() && machine.date.ends_with('Z'));
        assert!(machine.summary().contains(&machine.kernel));
    }
}
