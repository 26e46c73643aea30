//! The subjects of a comparison: two endpoints and what carries frames between them.

use accounting::Carried;
use lab::{Endpoint, VethBridge};
use serde_json::Value;

use crate::error::{Error, Result};

/// Two endpoints and what carries frames between them.
pub trait Subject {
    /// Its name in rows: `case/name`.
    fn name(&self) -> &'static str;
    /// The end that sends, unless a case is reversed.
    fn left(&self) -> &Endpoint;
    /// The other end.
    fn right(&self) -> &Endpoint;
    /// What was carried since the start; an error if a port is down.
    fn carried(&self) -> Result<Carried>;
    /// The number of the process that carries frames; none if the kernel does.
    fn daemon(&self) -> Option<u32>;
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

    fn carried(&self) -> Result<Carried> {
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
fn bridge_counts(json: &str) -> Option<Carried> {
    let links: Vec<Value> = serde_json::from_str(json).ok()?;
    let mut sum = Carried::default();
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
    fn frames_of_both_bridge_ports_are_counted() {
        // The parts that matter of iproute2 6.1's output.
        let port = |name: &str, bytes: u64| {
            format!(
                r#"{{"ifname":"{name}","stats64":{{"rx":{{"bytes":{bytes},"packets":2}},"tx":{{"bytes":9,"packets":9}}}}}}"#
            )
        };
        let json = format!("[{},{},{}]", port("br0", 5), port("left", 100), port("right", 30));
        let counts = Carried { frames: 4, bytes: 130, ..Carried::default() };
        assert_eq!(bridge_counts(&json), Some(counts));
        assert_eq!(bridge_counts(&format!("[{}]", port("left", 1))), None);
    }
}
