//! Virtual machines in QEMU as pvnet's guests over vhost-user, under software emulation.
//!
//! ```text
//!  QEMU: a Debian guest ── vhost-user ──┐
//!  QEMU: a Debian guest ── vhost-user ──┼── pvnet run ── tap ── a namespace
//!  pvnet guest ───────────── netif ─────┤
//!  pvnet guest ── context ── pvnet nic ──┘
//! ```
//!
//! [`ZeroCopy`] is the other way round: a machine in which pvnet runs, whose card it shares memory with.
//!
//! A [`Testbed`] has the daemon and what is not a virtual machine. [`Testbed::boot`] adds a machine. [`Day`] is an operator's day
//! with all of them.
//!
//! Everything that runs ends when its value is dropped, and on Ctrl-C once [`lab::Interrupt::install`] was called.
//!
//! Anti-goals: no hardware virtualisation, no absolute speeds.

#![forbid(unsafe_code)]

mod administrator;
mod card;
mod checksums;
pub mod command;
mod daemon;
mod day;
mod firmware;
mod migration;
mod mistakes;
mod mixed;
mod network_boot;
mod recorder;
mod setup;
mod testbed;
mod traffic;
mod virtio_net;
mod zero_copy;

pub use daemon::{Daemon, Holdings, pvnet};
pub use day::Day;
pub use firmware::Firmware;
pub use setup::Inputs;
pub use testbed::{GUEST, Testbed, WIRE};
pub use traffic::{Peer, file, ping, tcp};
pub use virtio_net::{Side, VirtioNet};
pub use xenlab::{Error, Result};
pub use zero_copy::ZeroCopy;

use std::time::Duration;

/// How long a command may take that waits for nothing.
pub const COMMAND: Duration = Duration::from_secs(90);
