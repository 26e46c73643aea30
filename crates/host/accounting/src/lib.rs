//! What pvnet carried, and whose processor time that took.
//!
//! ```text
//! Status, before and after ──► Carried ──┐
//!                                        ├──► Measured: costs per frame and per gigabyte
//! host::CpuUsage ─────────────► split() ──┘
//! ```
//!
//! Anti-goals: it takes no readings itself, and shows nothing.

#![forbid(unsafe_code)]

mod measured;

use std::ops::Sub;
use std::time::Duration;

use control_socket::{Operations, Status};
use hypervisor::Counted;

pub use measured::{Measured, split, stolen};

/// What was carried, in both directions together, counted at ingress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// Frames; a GSO frame counts once.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time in the hypervisor's operations, where that is metered.
    pub hypervisor: Duration,
    /// Operations of the hypervisor and of the driver domain, where that is metered.
    pub operations: Operations,
}

impl Carried {
    /// Operations of this kind per frame, where that is metered.
    #[must_use]
    pub fn per_packet(&self, what: Counted) -> f64 {
        self.operations.of(what) as f64 / self.frames.max(1) as f64
    }
}

impl From<&Status> for Carried {
    fn from(status: &Status) -> Self {
        Self {
            frames: status.ports.iter().map(|port| port.ingress.frames).sum(),
            bytes: status.ports.iter().map(|port| port.ingress.bytes).sum(),
            hypervisor: Duration::from_nanos(status.meter.nanoseconds),
            operations: status.meter.counts,
        }
    }
}

impl Sub for Carried {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_subtracted_and_divided() {
        let copies = |n| move |what| if what == Counted::Copies { n } else { 1 };
        let counts = |n| Carried {
            frames: 2 * n,
            operations: Operations::new(copies(n)),
            ..Carried::default()
        };
        let difference = counts(9) - counts(4);
        assert_eq!(difference.operations.of(Counted::Copies), 5);
        assert_eq!(difference.operations.of(Counted::Maps), 0);
        assert_eq!(difference.per_packet(Counted::Copies), 0.5);
    }
}
