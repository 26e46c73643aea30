//! What pvnet carried, and whose processor time that took.
//!
//! ```text
//! Status, before and after ──► Carried ──┐
//!                                        ├──► Measured: costs per frame and per gigabyte
//! host::CpuUsage ─────────────► split() ──┘
//! ```
//!
//! Anti-goals: it takes no readings itself, and shows nothing.

#![forbid(unsafe_code)]

use std::ops::Sub;
use std::time::Duration;

use control_socket::{Operations, Status};
use host::CpuUsage;
use hypervisor::Counted;
use report::CpuSplit;

/// What was carried, in both directions together, counted at ingress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Frames; a GSO frame counts once.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time in the hypervisor's operations, where that is metered.
    pub hypervisor: Duration,
    /// Operations of the hypervisor and of the driver domain, where that is metered.
    pub operations: Operations,
}

impl Carried {
    /// Operations of this kind per frame, where that is metered.
    #[must_use]
    pub fn per_packet(&self, what: Counted) -> f64 {
        self.operations.of(what) as f64 / self.frames.max(1) as f64
    }
}

impl From<&Status> for Carried {
    fn from(status: &Status) -> Self {
        Self {
            frames: status.ports.iter().map(|port| port.ingress.frames).sum(),
            bytes: status.ports.iter().map(|port| port.ingress.bytes).sum(),
            hypervisor: Duration::from_nanos(status.meter.nanoseconds),
            operations: status.meter.counts,
        }
    }
}

impl Sub for Carried {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            frames: self.frames.saturating_sub(earlier.frames),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            hypervisor: self.hypervisor.saturating_sub(earlier.hypervisor),
            operations: self.operations - earlier.operations,
        }
    }
}

/// A result and what it cost.
#[derive(Clone, Debug)]
pub struct Measured<T> {
    /// The result.
    pub result: T,
    /// What was carried in that time.
    pub carried: Carried,
    /// Where the processors' time went, in CPU seconds per second.
    pub cpu: CpuSplit,
    /// How long it took.
    pub wall: Duration,
    /// The share of the processors' time, 0 to 1, that a hypervisor below gave to others.
    pub stolen: f64,
}

impl<T> Measured<T> {
    /// A result, what was carried in that time, and the machine's processor time. The daemon is the
    /// only process that `usage` lists.
    pub fn new(result: T, carried: Carried, usage: &CpuUsage) -> Self {
        let stolen = stolen(usage);
        Self { result, carried, cpu: split(usage, carried.hypervisor), wall: usage.wall, stolen }
    }

    /// The split in CPU seconds per 10⁹ of `bytes`.
    #[must_use]
    pub fn per_gigabyte(&self, bytes: u64) -> CpuSplit {
        let seconds = self.wall.as_secs_f64() * 1e9 / (bytes.max(1) as f64);
        let CpuSplit { guest, driver, hypervisor, idle } = self.cpu;
        CpuSplit {
            guest: guest * seconds,
            driver: driver * seconds,
            hypervisor: hypervisor * seconds,
            idle: idle * seconds,
        }
    }

    /// Frames carried per second.
    #[must_use]
    pub fn frames_per_second(&self) -> f64 {
        self.carried.frames as f64 / self.wall.as_secs_f64().max(f64::EPSILON)
    }
}

/// Divides the machine's time. The daemon's is the driver domain's and the hypervisor's; all other
/// busy time counts as the guests': their frontends, stacks and programs.
#[must_use]
pub fn split(usage: &CpuUsage, hypervisor: Duration) -> CpuSplit {
    let daemon: Duration = usage.processes.iter().map(|(_, time)| *time).sum();
    // The two were read at slightly different moments.
    let hypervisor = hypervisor.min(daemon);
    CpuSplit {
        guest: usage.cpus(usage.busy.saturating_sub(daemon)),
        driver: usage.cpus(daemon - hypervisor),
        hypervisor: usage.cpus(hypervisor),
        idle: usage.cpus(usage.idle),
    }
}

/// The share of the processors' time, 0 to 1, that a hypervisor below gave to others.
#[must_use]
pub fn stolen(usage: &CpuUsage) -> f64 {
    let total = usage.busy + usage.idle + usage.steal;
    usage.steal.as_secs_f64() / total.as_secs_f64().max(f64::EPSILON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_subtracted_and_divided() {
        let copies = |n| move |what| if what == Counted::Copies { n } else { 1 };
        let counts = |n| Carried {
            frames: 2 * n,
            operations: Operations::new(copies(n)),
            ..Carried::default()
        };
        let difference = counts(9) - counts(4);
        assert_eq!(difference.operations.of(Counted::Copies), 5);
        assert_eq!(difference.operations.of(Counted::Maps), 0);
        assert_eq!(difference.per_packet(Counted::Copies), 0.5);
    }

    fn usage() -> CpuUsage {
        let s = Duration::from_secs;
        let processes = vec![(7, s(3))];
        CpuUsage { processors: 2, wall: s(4), busy: s(7), idle: s(1), steal: s(0), processes }
    }

    #[test]
    fn the_parts_are_the_machines_time() {
        let split = split(&usage(), Duration::from_secs(1));
        let expected = CpuSplit { guest: 1.0, driver: 0.5, hypervisor: 0.25, idle: 0.25 };
        assert_eq!(split, expected);
    }

    #[test]
    fn the_hypervisor_takes_no_more_than_the_daemon_had() {
        let split = split(&usage(), Duration::from_secs(9));
        assert_eq!((split.driver, split.hypervisor), (0.0, 0.75));
    }

    #[test]
    fn costs_are_per_gigabyte() {
        let measured = Measured {
            result: (),
            carried: Carried { frames: 800, ..Carried::default() },
            cpu: split(&usage(), Duration::ZERO),
            wall: Duration::from_secs(4),
            stolen: 0.0,
        };
        let split = measured.per_gigabyte(2_000_000_000);
        assert_eq!((split.guest, split.driver, split.idle), (2.0, 1.5, 0.5));
        assert_eq!(measured.frames_per_second(), 200.0);
    }
}
