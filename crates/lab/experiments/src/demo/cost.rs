//! The cost of isolation: the same traffic over pvnet, the kernel's own bridge, and programs that people use in pvnet's place.

use accounting::Measured;
use lab::{Offloads, Throughput, VethBridge};
use report::Samples;

use super::rivals::{RIVALS, RunningRival};
use crate::error::Result;
use crate::testbed::{CONGESTION, Case, Subject, Testbed, measure, round_trips};

/// Round trips of a datagram.
const ROUND_TRIPS: u32 = 1000;

/// The results of all that were compared.
pub struct Cost {
    /// In the order of measurement: pvnet, the kernel's bridge, and the others.
    pub compared: Vec<Compared>,
    /// The labels of programs that are not installed.
    pub not_installed: Vec<&'static str>,
    /// The labels of programs that do not start here, with the reason.
    pub failed: Vec<String>,
}

/// The traffic over one of the compared programs.
pub struct Compared {
    /// Its name in tables.
    pub label: &'static str,
    /// Its name in rows.
    pub key: &'static str,
    /// What separates the guests.
    pub wall: &'static str,
    /// A TCP stream.
    pub tcp: Measured<Throughput>,
    /// Round trips in microseconds.
    pub rtt: Samples,
}

impl Compared {
    /// CPU seconds of the whole machine per 10⁹ bytes.
    pub fn cpu(&self) -> f64 {
        let cost = self.tcp.per_gigabyte(self.tcp.result.bytes);
        cost.guest + cost.driver + cost.hypervisor
    }
}

/// Measures pvnet, the kernel's bridge, and the installed rivals.
pub fn cost(pvnet: &Testbed, seconds: u32, step: impl Fn(&str)) -> Result<Cost> {
    let compare = |label, wall, subject: &dyn Subject| -> Result<Compared> {
        step(label);
        let tcp = measure(subject, || Case::TCP.run(subject, seconds, 0, Some(CONGESTION)))?;
        let rtt = round_trips(subject, ROUND_TRIPS)?;
        Ok(Compared { label, key: subject.name(), wall, tcp, rtt })
    };
    let mut compared = vec![compare("pvnet", "a process that checks and copies", pvnet)?];
    let bridge = VethBridge::create("pvnet-veth", Offloads::ALL)?;
    compared.push(compare("the kernel's bridge", "none: one kernel", &bridge)?);
    drop(bridge);
    let (mut not_installed, mut failed) = (Vec::new(), Vec::new());
    for rival in &RIVALS {
        if !rival.is_installed() {
            not_installed.push(rival.label);
            continue;
        }
        let measured = RunningRival::start(rival)
            .and_then(|running| compare(rival.label, rival.wall, &running));
        match measured {
            Ok(measured) => compared.push(measured),
            Err(error) if error.is_interrupt() => return Err(error),
            Err(error) => failed.push(format!("{}: {error}", rival.label)),
        }
    }
    Ok(Cost { compared, not_installed, failed })
}
