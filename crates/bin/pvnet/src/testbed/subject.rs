//! What is compared: ways for frames between two endpoints.

use std::time::Duration;

use control_socket::{Operations, Status};
use hypervisor::Counted;
use lab::{Endpoint, VethBridge};
use serde_json::Value;

use super::{Error, Result};

/// Two endpoints and what carries frames between them.
pub trait Subject {
    /// Its name in rows: `case/name`.
    fn name(&self) -> &'static str;
    /// The end that sends, where nothing else is said.
    fn left(&self) -> &Endpoint;
    /// The other end.
    fn right(&self) -> &Endpoint;
    /// What was carried since the start; an error if nothing can be carried any more.
    fn counts(&self) -> Result<Counts>;
    /// The process that carries frames; none where the kernel does.
    fn daemon(&self) -> Option<u32>;
}

/// What was carried, both ways together, counted where frames come in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Frames; one that is far larger than the MTU (GSO) counts once.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time in the hypervisor's operations, where that is metered.
    pub hypervisor: Duration,
    /// What was asked of the hypervisor and done by the driver domain, where that is metered.
    pub operations: Operations,
}

impl Counts {
    /// How many of `what` there were for each frame carried, where that is metered.
    pub fn per_packet(&self, what: Counted) -> f64 {
        self.operations.of(what) as f64 / self.frames.max(1) as f64
    }
}

impl From<&Status> for Counts {
    fn from(status: &Status) -> Self {
        Self {
            frames: status.ports.iter().map(|port| port.ingress.frames).sum(),
            bytes: status.ports.iter().map(|port| port.ingress.bytes).sum(),
            hypervisor: Duration::from_nanos(status.meter.nanoseconds),
            operations: status.meter.counts,
        }
    }
}

impl std::ops::Sub for Counts {
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

impl Subject for VethBridge {
    fn name(&self) -> &'static str {
        "veth-bridge"
    }

    fn left(&self) -> &Endpoint {
        &self.left
    }

    fn right(&self) -> &Endpoint {
        &self.right
    }

    fn counts(&self) -> Result<Counts> {
        let json = self.bridge().ip(&["-s", "-j", "link", "show"])?;
        bridge_counts(&json)
            .ok_or_else(|| Error::Status("cannot understand `ip -s -j link`".into()))
    }

    fn daemon(&self) -> Option<u32> {
        None
    }
}

/// The sum over both ports of what they received, out of `ip -s -j link show` in the bridge's
/// namespace.
fn bridge_counts(json: &str) -> Option<Counts> {
    let links: Vec<Value> = serde_json::from_str(json).ok()?;
    let mut sum = Counts::default();
    for port in ["left", "right"] {
        let link = links.iter().find(|link| link["ifname"] == port)?;
        let received = &link["stats64"]["rx"];
        sum.frames += received["packets"].as_u64()?;
        sum.bytes += received["bytes"].as_u64()?;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ports_of_the_bridge_count() {
        // The parts that matter of iproute2 6.1's output.
        let port = |name: &str, bytes: u64| {
            format!(
                r#"{{"ifname":"{name}","stats64":{{"rx":{{"bytes":{bytes},"packets":2}},"tx":{{"bytes":9,"packets":9}}}}}}"#
            )
        };
        let json = format!("[{},{},{}]", port("br0", 5), port("left", 100), port("right", 30));
        let counts = Counts { frames: 4, bytes: 130, ..Counts::default() };
        assert_eq!(bridge_counts(&json), Some(counts));
        assert_eq!(bridge_counts(&format!("[{}]", port("left", 1))), None);
    }

    #[test]
    fn counts_are_subtracted_and_divided() {
        let copies = |n| move |what| if what == Counted::Copies { n } else { 1 };
        let counts = |n| Counts {
            frames: 2 * n,
            operations: Operations::new(copies(n)),
            ..Counts::default()
        };
        let difference = counts(9) - counts(4);
        assert_eq!(difference.operations.of(Counted::Copies), 5);
        assert_eq!(difference.operations.of(Counted::Maps), 0);
        assert_eq!(difference.per_packet(Counted::Copies), 0.5);
    }
}
