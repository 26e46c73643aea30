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
mod measure;
mod pvnet;
mod round_trips;
mod subject;
mod virtio;

pub use case::{CASES, CONGESTION, Case, find_pace};
pub use daemon::{Daemon, Ending, ports, pvnet, this, this_program};
pub use measure::measure;
pub use pvnet::{GuestKind, Setup, Testbed};
pub use round_trips::round_trips;
pub use subject::Subject;
pub use virtio::quoted;
