//! The difference of two statuses of a daemon.

use std::time::Duration;

use accounting::{Carried, Measured};
use control_socket::{CpuStatus, PortKind, PortState, PortStatus, Reason, Status, Traffic};
use host::CpuUsage;
use hypervisor::Counted;
use report::CpuSplit;

use super::contexts::{self, ContextRates};
use super::view::{Column, Listed};
use super::workers::{self, WorkerRates};

/// Work and costs in an interval.
#[derive(Debug)]
pub struct Rates {
    /// The machine's processors.
    pub processors: u32,
    /// Frames, operations and processor time.
    pub measured: Measured<()>,
    /// Bytes that guests copied between their stacks and their granted pages.
    pub guest_bytes: u64,
    /// Each port, in the daemon's order.
    pub ports: Vec<PortRates>,
    /// Each context of each card.
    pub contexts: Vec<ContextRates>,
    pub workers: Vec<WorkerRates>,
}

/// Frames of a port in an interval.
#[derive(Clone, Debug)]
pub struct PortRates {
    pub name: String,
    /// What is plugged in.
    pub kind: PortKind,
    /// Whether it was up at the end.
    pub state: PortState,
    /// Why it is down or degraded.
    pub reason: Option<Reason>,
    /// From the port into the switch.
    pub ingress: Traffic,
    /// From the switch out of the port.
    pub egress: Traffic,
    /// Dropped frames.
    pub drops: u64,
    /// Nanoseconds that batches of frames from the port were in the daemon, all together. It is the workers' time, unless frames
    /// wait for room or for a device.
    pub nanoseconds: u64,
    /// Nanoseconds of workers in turns of the port's queues.
    pub worker_nanoseconds: u64,
}

impl Rates {
    /// The difference; none if the daemon does not report processor time.
    pub fn between(before: &Status, after: &Status) -> Option<Self> {
        let cpu = usage(&before.cpu?, &after.cpu?, after.pid);
        let ports: Vec<_> =
            after.ports.iter().map(|port| PortRates::between(&before.ports, port)).collect();
        // Port by port: a port that is gone must not reduce the sum of the others.
        let carried = Carried {
            frames: ports.iter().map(|port| port.ingress.frames).sum(),
            bytes: ports.iter().map(|port| port.ingress.bytes).sum(),
            ..Carried::from(after) - Carried::from(before)
        };
        let guests =
            after.ports.iter().zip(&ports).filter(|(port, _)| port.kind == PortKind::Guest);
        Some(Self {
            processors: cpu.processors,
            guest_bytes: guests.map(|(_, port)| port.ingress.bytes + port.egress.bytes).sum(),
            measured: Measured::new((), carried, &cpu),
            ports,
            contexts: contexts::between(before, after),
            workers: workers::between(before, after),
        })
    }

    /// The rate of `n` in the interval, per second.
    pub fn per_second(&self, n: u64) -> f64 {
        n as f64 / self.measured.wall.as_secs_f64().max(f64::EPSILON)
    }

    /// Every counter by name: per second, and per packet if there were any.
    pub fn operations(&self) -> Vec<(&'static str, f64, Option<f64>)> {
        let carried = &self.measured.carried;
        let any = carried.frames > 0;
        let counted = Counted::ALL.map(|what| {
            let per_packet = any.then(|| carried.per_packet(what));
            (what.name(), self.per_second(carried.operations.of(what)), per_packet)
        });
        let per_packet = any.then(|| self.guest_bytes as f64 / carried.frames as f64);
        let guests = ("guest_bytes", self.per_second(self.guest_bytes), per_packet);
        counted.into_iter().chain([guests]).collect()
    }

    /// Processors that an outer hypervisor gave to other machines.
    pub fn stolen(&self) -> f64 {
        self.measured.stolen * f64::from(self.processors)
    }

    /// CPU seconds per 10⁹ bytes carried, if any were.
    pub fn per_gigabyte(&self) -> Option<CpuSplit> {
        let bytes = self.measured.carried.bytes;
        (bytes > 0).then(|| self.measured.per_gigabyte(bytes))
    }

    /// CPU microseconds per packet carried, if any were.
    pub fn per_packet(&self) -> Option<CpuSplit> {
        let frames = self.measured.frames_per_second();
        let microseconds = |cpus: f64| cpus * 1e6 / frames;
        let CpuSplit { guest, driver, hypervisor, idle } = self.measured.cpu;
        (frames > 0.0).then(|| CpuSplit {
            guest: microseconds(guest),
            driver: microseconds(driver),
            hypervisor: microseconds(hypervisor),
            idle: microseconds(idle),
        })
    }
}

/// The processor time between two readings, with the daemon as process `pid`.
fn usage(before: &CpuStatus, after: &CpuStatus, pid: u32) -> CpuUsage {
    let of = |field: fn(&CpuStatus) -> u64| {
        Duration::from_nanos(field(after).saturating_sub(field(before)))
    };
    CpuUsage {
        processors: after.processors,
        wall: of(|cpu| cpu.wall_nanoseconds),
        busy: of(|cpu| cpu.busy_nanoseconds),
        idle: of(|cpu| cpu.idle_nanoseconds),
        steal: of(|cpu| cpu.steal_nanoseconds),
        processes: vec![(pid, of(|cpu| cpu.daemon_nanoseconds))],
    }
}

impl PortRates {
    fn between(before: &[PortStatus], after: &PortStatus) -> Self {
        // A port that was removed and added again counts from zero, like a new one.
        let same = |port: &&PortStatus| {
            port.name == after.name
                && port.ingress.frames <= after.ingress.frames
                && port.egress.frames <= after.egress.frames
        };
        let before = before.iter().find(same);
        let since =
            |field: fn(&PortStatus) -> u64| field(after).saturating_sub(before.map_or(0, field));
        Self {
            name: after.name.clone(),
            kind: after.kind,
            state: after.state,
            reason: after.reason.clone(),
            ingress: Traffic {
                frames: since(|port| port.ingress.frames),
                bytes: since(|port| port.ingress.bytes),
            },
            egress: Traffic {
                frames: since(|port| port.egress.frames),
                bytes: since(|port| port.egress.bytes),
            },
            drops: since(|port| port.drops.total()),
            nanoseconds: since(|port| port.batches.nanoseconds.sum),
            worker_nanoseconds: since(|port| port.batches.worker_nanoseconds),
        }
    }
}

impl PortRates {
    /// Microseconds in the daemon per frame from the port; none without a frame.
    pub fn us_per_frame(&self) -> Option<f64> {
        let frames = self.ingress.frames;
        (frames > 0).then(|| self.nanoseconds as f64 / 1e3 / frames as f64)
    }
}

impl Listed for PortRates {
    fn name(&self) -> &str {
        &self.name
    }

    fn words(&self) -> Vec<String> {
        vec![self.name.clone(), self.kind.to_string(), self.state.to_string()]
    }

    fn amount(&self, column: Column) -> u64 {
        match column {
            Column::Name => 0,
            Column::Rate => self.ingress.frames + self.egress.frames,
            Column::Bytes => self.ingress.bytes + self.egress.bytes,
            Column::Drops => self.drops,
            Column::Cpu => self.worker_nanoseconds,
            Column::Time => self.nanoseconds,
            Column::Cost => (self.nanoseconds * 1000).checked_div(self.ingress.frames).unwrap_or(0),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use control_socket::{BatchStatus, Histogram};
    use frame::DropReason;

    const SECOND: u64 = 1_000_000_000;

    fn port(name: &str, kind: PortKind, frames: u64) -> PortStatus {
        let nanoseconds =
            Histogram { count: frames / 10, sum: frames * 400, ..Histogram::default() };
        PortStatus {
            batches: BatchStatus {
                nanoseconds,
                worker_nanoseconds: frames * 300,
                ..BatchStatus::default()
            },
            ingress: Traffic { frames, bytes: frames * 1000 },
            egress: Traffic { frames: frames / 2, bytes: frames * 500 },
            drops: [(DropReason::Stalled, frames / 10)].into_iter().collect(),
            ..PortStatus::new(name, kind, PortState::Up)
        }
    }

    /// A daemon that has worked for `n` times two seconds, on a machine of two processors.
    fn status(n: u64) -> Status {
        let ports =
            vec![port("red", PortKind::Guest, 1000 * n), port("out", PortKind::Uplink, 200 * n)];
        let mut status = Status { ports, ..Status::default() };
        status.meter.counts = [(Counted::Copies, 2400 * n)].into_iter().collect();
        status.meter.nanoseconds = SECOND / 5 * n;
        status.cpu = Some(CpuStatus {
            processors: 2,
            wall_nanoseconds: 2 * SECOND * n,
            busy_nanoseconds: 3 * SECOND * n,
            idle_nanoseconds: SECOND / 2 * n,
            steal_nanoseconds: SECOND / 2 * n,
            daemon_nanoseconds: SECOND * n,
        });
        status
    }

    /// Two seconds of it.
    pub fn rates() -> Rates {
        Rates::between(&status(3), &status(4)).unwrap()
    }

    #[test]
    fn rates_are_the_difference_of_two_statuses() {
        let rates = rates();
        let split = CpuSplit { guest: 1.0, driver: 0.4, hypervisor: 0.1, idle: 0.25 };
        assert_eq!(rates.measured.cpu, split);
        assert_eq!((rates.processors, rates.stolen()), (2, 0.25));
        let operations = rates.operations();
        let of = |name| operations.iter().find(|(other, ..)| *other == name).unwrap();
        assert_eq!(operations.len(), Counted::ALL.len() + 1);
        assert_eq!(of("copies"), &("copies", 1200.0, Some(2.0)));
        assert_eq!(of("maps"), &("maps", 0.0, Some(0.0)));
        // Red's million and half a million; guests copy nothing for the uplink.
        assert_eq!(of("guest_bytes"), &("guest_bytes", 750_000.0, Some(1250.0)));
        let red = &rates.ports[0];
        assert_eq!((red.ingress.frames, red.egress.frames, red.drops), (1000, 500, 100));
        assert_eq!((red.nanoseconds, red.us_per_frame()), (400_000, Some(0.4)));
        assert_eq!(red.worker_nanoseconds, 300_000);
    }

    #[test]
    fn costs_are_per_packet_and_gigabyte() {
        let rates = rates();
        assert_eq!(rates.measured.frames_per_second(), 600.0);
        let packet = rates.per_packet().unwrap();
        assert!((packet.guest - 1e6 / 600.0).abs() < 1e-6, "{packet:?}");
        // 1.2 MB in 2 s.
        let gigabyte = rates.per_gigabyte().unwrap();
        assert!((gigabyte.driver - 0.8 / 0.0012).abs() < 1e-6, "{gigabyte:?}");

        let nothing = Rates::between(&status(4), &status(4)).unwrap();
        assert!(nothing.per_packet().is_none() && nothing.per_gigabyte().is_none());
        assert!(nothing.operations().iter().all(|(_, rate, each)| *rate == 0.0 && each.is_none()));
    }

    #[test]
    fn a_port_that_is_new_or_back_counts_from_zero() {
        let mut after = status(4);
        after.ports.push(port("blue", PortKind::Guest, 50));
        after.ports[0] = port("red", PortKind::Guest, 70);
        let rates = Rates::between(&status(3), &after).unwrap();
        assert_eq!(
            rates.ports.iter().map(|port| port.ingress.frames).collect::<Vec<_>>(),
            [70, 200, 50]
        );
        assert_eq!(rates.measured.carried.frames, 320);
    }

    #[test]
    fn a_daemon_that_does_not_report_processor_time_has_no_rates() {
        let silent = Status { cpu: None, ..status(4) };
        assert!(Rates::between(&status(3), &silent).is_none());
        assert!(Rates::between(&silent, &status(4)).is_none());
    }
}
