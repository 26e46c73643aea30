//! Two endpoints, joined by pvnet or by the kernel, and measurements between them.
//!
//! ```text
//!             Endpoint ── Testbed:    guest, daemon, guest ── Endpoint
//!   Subject < Endpoint ── SameShape:  tap, threads, tap    ── Endpoint
//!             Endpoint ── VethBridge: veth, bridge, veth   ── Endpoint
//! ```
//!
//! A [`Case`] is a transfer, [`measure()`] runs one over a [`Subject`] and returns what it cost.

mod case;
mod daemon;
mod pvnet;
mod same_shape;

use accounting::{Carried, Measured};
use lab::{Children, CpuMeter, Endpoint, RttProbe, VethBridge};
use report::Samples;
use serde_json::Value;

use crate::error::{Error, Result};

pub use case::{CONGESTION, Case, find_pace};
pub use daemon::{Daemon, Ending, ports, pvnet, quoted, table, this, this_program};
pub use pvnet::{GuestKind, Setup, Testbed};
pub use same_shape::SameShape;

/// Runs `work` and measures what it costs on the whole machine.
pub fn measure<T>(
    subject: &dyn Subject,
    work: impl FnOnce() -> lab::Result<T>,
) -> Result<Measured<T>> {
    let daemon: Vec<u32> = subject.daemon().into_iter().collect();
    let before = subject.carried()?;
    let meter = CpuMeter::start(&daemon, Children::Ignored)?;
    let result = match work() {
        // If the subject has failed, its own error says more.
        Err(error) if !matches!(error, lab::Error::Interrupted) => {
            subject.carried()?;
            return Err(error.into());
        }
        result => result?,
    };
    let usage = meter.read()?;
    let carried = subject.carried()? - before;
    Ok(Measured::new(result, carried, &usage))
}

/// Times round trips over UDP, in microseconds.
pub fn round_trips(subject: &dyn Subject, count: u32) -> Result<Samples> {
    let (left, right) = (subject.left(), subject.right());
    let times = RttProbe::new(&left.namespace, &right.namespace, right.ipv4, count).udp()?;
    if times.is_empty() {
        return Err(Error::Failed(format!("no datagram came back over {}", subject.name())));
    }
    Ok(times.iter().map(|time| time.as_secs_f64() * 1e6).collect())
}

/// Two endpoints and what carries frames between them.
pub trait Subject {
    /// Its name in rows: `case/name`.
    fn name(&self) -> &'static str;
    /// The end that sends, unless a case is reversed, and the other one.
    fn ends(&self) -> [&Endpoint; 2];
    /// The first end.
    fn left(&self) -> &Endpoint {
        self.ends()[0]
    }
    /// The second.
    fn right(&self) -> &Endpoint {
        self.ends()[1]
    }
    /// The counters since the start; an error if a port is down.
    fn carried(&self) -> Result<Carried>;
    /// The id of the process that carries frames; `None` if the kernel does, or if the process's time counts as the
    /// guests'.
    fn daemon(&self) -> Option<u32> {
        None
    }
}

impl Subject for VethBridge {
    fn name(&self) -> &'static str {
        "veth-bridge"
    }

    fn ends(&self) -> [&Endpoint; 2] {
        [&self.left, &self.right]
    }

    fn carried(&self) -> Result<Carried> {
        let json = self.bridge().ip(&["-s", "-j", "link", "show"])?;
        bridge_counts(&json)
            .ok_or_else(|| Error::Status("cannot understand `ip -s -j link`".into()))
    }
}

/// The sum of both ports' received frames and bytes, from `ip -s -j link show` in the bridge's namespace.
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
        // The relevant parts of iproute2 6.1's output.
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
