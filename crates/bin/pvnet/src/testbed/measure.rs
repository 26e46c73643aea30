//! What a transfer cost: frames, and whose processor time.

use std::time::Duration;

use lab::{Children, CpuMeter, CpuUsage};
use report::CpuSplit;

use super::{Counts, Result, Subject};

/// A result and what it cost.
#[derive(Clone, Debug)]
pub struct Measured<T> {
    /// The result.
    pub result: T,
    /// What was carried meanwhile.
    pub counts: Counts,
    /// Where the processors' time went, in CPU seconds per second.
    pub cpu: CpuSplit,
    /// How long it took.
    pub wall: Duration,
    /// The share of the processors' time, 0 to 1, that a hypervisor below gave to others.
    pub stolen: f64,
}

impl<T> Measured<T> {
    /// A result while which `counts` were carried and `usage` was spent, by the daemon alone
    /// among its processes.
    pub fn new(result: T, counts: Counts, usage: &CpuUsage) -> Self {
        let total = usage.busy + usage.idle + usage.steal;
        let stolen = usage.steal.as_secs_f64() / total.as_secs_f64().max(f64::EPSILON);
        Self { result, counts, cpu: split(usage, counts.hypervisor), wall: usage.wall, stolen }
    }

    /// The split in CPU seconds for 10⁹ of `bytes`.
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

    /// Frames carried in a second.
    pub fn frames_per_second(&self) -> f64 {
        self.counts.frames as f64 / self.wall.as_secs_f64().max(f64::EPSILON)
    }
}

/// Does `work` and measures, over the whole machine, what it costs.
pub fn measure<T>(
    subject: &dyn Subject,
    work: impl FnOnce() -> lab::Result<T>,
) -> Result<Measured<T>> {
    let daemon: Vec<u32> = subject.daemon().into_iter().collect();
    let before = subject.counts()?;
    let meter = CpuMeter::start(&daemon, Children::Ignored)?;
    let result = match work() {
        // Where the path itself has failed, it says more than who was on it.
        Err(error) if !matches!(error, lab::Error::Interrupted) => {
            subject.counts()?;
            return Err(error.into());
        }
        result => result?,
    };
    let usage = meter.read()?;
    let counts = subject.counts()? - before;
    Ok(Measured::new(result, counts, &usage))
}

/// Divides the machine's time: the daemon's is the driver domain's and the hypervisor's, all
/// other that was used is the guests': their frontends, stacks and programs.
pub fn split(usage: &CpuUsage, hypervisor: Duration) -> CpuSplit {
    let daemon: Duration = usage.processes.iter().map(|(_, time)| *time).sum();
    // Both are read at moments that differ a little.
    let hypervisor = hypervisor.min(daemon);
    CpuSplit {
        guest: usage.cpus(usage.busy.saturating_sub(daemon)),
        driver: usage.cpus(daemon - hypervisor),
        hypervisor: usage.cpus(hypervisor),
        idle: usage.cpus(usage.idle),
    }
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
            counts: Counts { frames: 800, ..Counts::default() },
            cpu: split(&usage(), Duration::ZERO),
            wall: Duration::from_secs(4),
            stolen: 0.0,
        };
        let split = measured.per_gigabyte(2_000_000_000);
        assert_eq!((split.guest, split.driver, split.idle), (2.0, 1.5, 0.5));
        assert_eq!(measured.frames_per_second(), 200.0);
    }
}
