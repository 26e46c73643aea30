//! Virtual machines in QEMU as pvnet's guests over vhost-user, under software emulation.
//!
//! ```text
//!  QEMU: a Debian guest ── vhost-user ──┐
//!  QEMU: a Debian guest ── vhost-user ──┼── pvnet run ── tap ── a namespace
//!  pvnet guest ───────────── netif ─────┤
//!  pvnet guest ── context ── pvnet nic ──┘
//! ```
//!
//! [`ZeroCopy`] is the other way round: pvnet runs in a machine, and shares memory with the machine's card.
//!
//! A [`Testbed`] has the daemon and everything that is not a virtual machine. [`Testbed::boot`] adds a machine. [`Day`] is an
//! operator's day with all of them.
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

/// The limit for commands that need not wait for anything.
pub const COMMAND: Duration = Duration::from_secs(90);
