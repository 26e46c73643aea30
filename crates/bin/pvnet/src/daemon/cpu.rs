//! The daemon's and the machine's processor time.

use std::time::Duration;

use control_socket::CpuStatus;
use host::{Children, CpuMeter};
use rustix::time::{ClockId, clock_gettime};

/// Measures processor time since the daemon's start.
#[derive(Debug)]
pub(super) struct Stopwatch(Option<CpuMeter>);

impl Stopwatch {
    /// Starts it. If the machine does not report processor time, it measures nothing.
    pub(super) fn start() -> Self {
        Self(CpuMeter::start(&[], Children::Ignored).ok())
    }

    /// The time since the start.
    pub(super) fn read(&self) -> Option<CpuStatus> {
        let usage = self.0.as_ref()?.read().ok()?;
        // Unlike `/proc`, it includes threads that have ended.
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

/// Whole nanoseconds, for the status.
pub(super) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_readings_differ_by_the_time_used_between_them() {
        let stopwatch = Stopwatch::start();
        let before = stopwatch.read().unwrap();
        let work = || (0..30_000_000u64).fold(1u64, |sum, n| std::hint::black_box(sum ^ n));
        std::thread::spawn(work).join().unwrap();
        let after = stopwatch.read().unwrap();
        let machine =
            |cpu: &CpuStatus| cpu.busy_nanoseconds + cpu.idle_nanoseconds + cpu.steal_nanoseconds;
        assert!(after.daemon_nanoseconds > before.daemon_nanoseconds, "{after:?}");
        assert!(after.wall_nanoseconds > before.wall_nanoseconds, "{after:?}");
        assert!(machine(&after) > machine(&before) && after.processors > 0, "{after:?}");
    }
}
