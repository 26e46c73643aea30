//! What carrying it cost.

use std::time::Duration;

use host::CpuUsage;
use report::CpuSplit;

use crate::Carried;

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
