//! What is compared: ways for frames between two endpoints.

use std::time::Duration;

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
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            frames: self.frames.saturating_sub(earlier.frames),
            bytes: self.bytes.saturating_sub(earlier.bytes),
            hypervisor: self.hypervisor.saturating_sub(earlier.hypervisor),
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
        let counts = Counts { frames: 4, bytes: 130, hypervisor: Duration::ZERO };
        assert_eq!(bridge_counts(&json), Some(counts));
        assert_eq!(bridge_counts(&format!("[{}]", port("left", 1))), None);
    }
}
