//! The daemon's and the machine's processor time, for whoever wants to know who spent it.

use std::time::Duration;

use lab::{Children, CpuMeter, CpuUsage};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Processor time since the daemon's start, in nanoseconds. The difference of two readings says
/// who worked in between.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuStatus {
    /// Processors that are online.
    pub processors: u32,
    /// Time on the wall.
    pub wall_nanoseconds: u64,
    /// All processors, in programs, kernel and interrupts; the daemon's part is in it.
    pub busy_nanoseconds: u64,
    /// All processors, with nothing to do.
    pub idle_nanoseconds: u64,
    /// All processors, while a hypervisor below kept them for others.
    pub steal_nanoseconds: u64,
    /// The daemon's own threads.
    pub daemon_nanoseconds: u64,
}

impl CpuStatus {
    /// What was used since an earlier reading, with the daemon as process `pid`.
    pub fn since(&self, earlier: &Self, pid: u32) -> CpuUsage {
        let of = |field: fn(&Self) -> u64| {
            Duration::from_nanos(field(self).saturating_sub(field(earlier)))
        };
        CpuUsage {
            processors: self.processors,
            wall: of(|cpu| cpu.wall_nanoseconds),
            busy: of(|cpu| cpu.busy_nanoseconds),
            idle: of(|cpu| cpu.idle_nanoseconds),
            steal: of(|cpu| cpu.steal_nanoseconds),
            processes: vec![(pid, of(|cpu| cpu.daemon_nanoseconds))],
        }
    }
}

/// The stopwatch that runs since the daemon's start.
#[derive(Debug)]
pub(super) struct Stopwatch(Option<CpuMeter>);

impl Stopwatch {
    /// Starts it. A machine that does not tell has none: frames are carried all the same.
    pub(super) fn start() -> Self {
        Self(CpuMeter::start(&[], Children::Ignored).ok())
    }

    /// What it shows.
    pub(super) fn read(&self) -> Option<CpuStatus> {
        let usage = self.0.as_ref()?.read().ok()?;
        // Unlike `/proc`, exact for threads that have ended too.
        let own = clock_gettime(ClockId::ProcessCPUTime);
        let own = Duration::try_from(own).ok()?;
        Some(CpuStatus {
            processors: usage.processors,
            wall_nanoseconds: nanoseconds(usage.wall),
            busy_nanoseconds: nanoseconds(usage.busy),
            idle_nanoseconds: nanoseconds(usage.idle),
            steal_nanoseconds: nanoseconds(usage.steal),
            daemon_nanoseconds: nanoseconds(own),
        })
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_readings_say_what_was_used_between_them() {
        let stopwatch = Stopwatch::start();
        let before = stopwatch.read().unwrap();
        let work = || (0..30_000_000u64).fold(1u64, |sum, n| std::hint::black_box(sum ^ n));
        std::thread::spawn(work).join().unwrap();
        let usage = stopwatch.read().unwrap().since(&before, 7);
        assert!(usage.of(7) > Duration::ZERO, "{usage:?}");
        assert!(usage.wall > Duration::ZERO && usage.processors > 0, "{usage:?}");
        assert!(usage.busy + usage.idle + usage.steal > Duration::ZERO, "{usage:?}");
    }
}
