//! The results of the demo.

use accounting::{Carried, Measured};
use lab::{Ping, Throughput, Transfer};
use report::Samples;

use super::isolation::Links;
use crate::testbed::Case;

/// All results.
pub struct Findings {
    pub links: [Links; 2],
    /// pvnet's, then the bridge's.
    pub pings: [Pings; 2],
    /// Round trips in microseconds: pvnet's, then the bridge's.
    pub rtt: [Samples; 2],
    pub file: Transfer,
    /// What pvnet carried in that time.
    pub file_carried: Carried,
    pub transfers: Vec<Pair>,
}

/// Echoes over both address families.
pub struct Pings {
    pub v4: Ping,
    pub v6: Ping,
}

/// One case over both subjects.
pub struct Pair {
    pub case: &'static Case,
    pub pvnet: Measured<Throughput>,
    pub bridge: Measured<Throughput>,
}

impl Pair {
    /// pvnet's throughput over the bridge's.
    pub fn ratio(&self) -> f64 {
        self.pvnet.result.mbps / self.bridge.result.mbps.max(f64::EPSILON)
    }
}

/// What the demo shows, for readers.
pub const INTRODUCTION: &str = "\
Two guests, each a network namespace with its own Linux TCP/IP stack, talk through pvnet: a driver
domain in user space that carries their frames over Xen's netif rings. For comparison, two
namespaces of the same kind talk through the kernel's own veth and bridge.";
