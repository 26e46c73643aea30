//! The status, which the control socket, the metrics and the live page show.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Weak};
use std::time::Duration;

use control_socket::{Address, Counts, CpuStatus, MeterStatus, MulticastStatus, Reason, Status};
use host::{Children, CpuMeter};
use hypervisor::Meter;
use rustix::time::{ClockId, clock_gettime};
use switch::NO_VLAN;
use switch::multicast::SnoopingCounts;

use crate::daemon::event::{Event, ask};
use crate::daemon::platform::Platform;
use crate::log::Recent;

/// Reads the daemon's status, for servers that run beside the control thread.
#[derive(Clone)]
pub(super) struct StatusReader {
    events: mpsc::Sender<Event>,
    /// Servers' threads never end, so they must not own the platform, which removes its socket when dropped.
    platform: Weak<dyn Platform>,
    /// The configuration's.
    file: PathBuf,
    log: Recent,
}

impl StatusReader {
    pub(super) fn new(
        events: mpsc::Sender<Event>,
        platform: &Arc<dyn Platform>,
        file: PathBuf,
        log: Recent,
    ) -> Self {
        Self { events, platform: Arc::downgrade(platform), file, log }
    }

    /// One without a platform, whose answers come from the receiver of these events.
    #[cfg(test)]
    pub(super) fn without_platform(events: mpsc::Sender<Event>, log: Recent) -> Self {
        let platform = Weak::<crate::daemon::machine::MachinePlatform>::new();
        Self { events, platform, file: "/etc/pvnet/pvnet.toml".into(), log }
    }

    /// Everything that is counted.
    ///
    /// # Errors
    /// The control thread has not answered within `limit`, or the daemon is stopping.
    pub(super) fn counts(&self, limit: Duration) -> Result<Status, RecvTimeoutError> {
        let mut status = ask(&self.events, limit, Event::Status)?;
        if let Some(nics) = self.platform.upgrade().as_ref().and_then(|platform| platform.nics()) {
            status.nics = nics.status();
            status.absent.retain(|guest| nics.domain(guest).is_none());
        }
        Ok(status)
    }

    /// All of `pvnet status --json`.
    pub(super) fn whole(&self, limit: Duration) -> Result<Status, RecvTimeoutError> {
        let mut status = self.counts(limit)?;
        status.config = self.file.display().to_string();
        status.events = self.log.lines();
        for port in &mut status.ports {
            port.reason_text = port.reason.as_ref().map(Reason::to_string);
        }
        // Here, because the control thread must not wait for /proc.
        if let Some(platform) = self.platform.upgrade() {
            platform.measure(&mut status);
        }
        Ok(status)
    }
}

/// What is known of multicast groups.
pub(super) fn multicast(counts: SnoopingCounts) -> MulticastStatus {
    let SnoopingCounts { groups, members, pruned, refused } = counts;
    MulticastStatus { groups, members, pruned, refused }
}

/// The counts of a meter, for a daemon whose guests have copied these bytes.
pub(super) fn meter(meter: &Meter, guest_bytes: u64) -> MeterStatus {
    MeterStatus {
        on: meter.is_on(),
        counts: Counts::new(|what| meter.count(what)),
        guest_bytes,
        nanoseconds: meter.nanoseconds(),
    }
}

/// An entry of the switch's table.
pub(super) fn address(entry: &switch::MacEntry) -> Address {
    let switch::MacEntry { vlan, mac, port, age, taught } = *entry;
    let vlan = (vlan != NO_VLAN).then_some(vlan);
    Address { mac: mac.to_string(), vlan, port: port.0, age, taught }
}

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
