//! Two endpoints, joined by pvnet or by the kernel, and measurements between them.
//!
//! ```text
//!            Endpoint ── Testbed:    guest, daemon, guest ── Endpoint
//!   Subject <
//!            Endpoint ── VethBridge: veth, bridge, veth   ── Endpoint
//! ```
//!
//! A [`Case`] is a transfer, [`measure()`] runs one over a [`Subject`] and returns what it cost.

mod case;
mod daemon;
mod pvnet;
mod subject;
mod virtio;

use accounting::Measured;
use lab::{Children, CpuMeter, RttProbe};
use report::Samples;

use crate::error::{Error, Result};

pub use case::{CONGESTION, Case, find_pace};
pub use daemon::{Daemon, Ending, ports, pvnet, this, this_program};
pub use pvnet::{GuestKind, Setup, Testbed};
pub use subject::Subject;
pub use virtio::quoted;

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
