//! Experiments on a host: a guest, a backend, and the traffic between them.
//!
//! ```text
//!              Frontend ◄──── netif rings ────► Backend
//!  10.0.0.2    xen-netfront                     xen-netback and a bridge, in dom0        10.0.0.1
//!              pvnet frontend                   pvnet run, in dom0 or a driver domain
//! ```
//!
//! Every step is a public function, so that tests can do other things in between.

mod backend;
mod cell;
mod check;
mod clients;
mod device;
mod domains;
mod guest_copy;
mod hostile;
pub mod lease;
mod platform;
mod queues;
mod step;

use std::path::PathBuf;
use std::time::Duration;

pub use backend::{Backend, RunningBackend};
pub use cell::{Cell, Frontend, Pair, RunningFrontend, cell};
pub use check::{
    Features, POISON, Rates, Transfer, features, harm, listens, ping, same_file, throughput,
};
pub use clients::{CLIENT_STEPS, ClientReport, SECTION, clients, drop_icmp};
pub use device::{DevicePart, device};
pub use domains::{STEPS, domains};
pub use guest_copy::{GUEST_COPY_STEPS, guest_copy};
pub use hostile::{
    Answers, AttackTestbed, Baseline, Class, Echoes, Expected, PortSummary, Report, Resources, Row,
    Status, phase,
};
pub use platform::{PLATFORM_STEPS, platform};
pub use queues::{GUEST_VCPUS, Negotiation, queues};
pub use step::{Step, StepsDocument, print, report, run_all, write_json};

/// The address of the backend's domain.
pub const BACKEND_ADDRESS: &str = "10.0.0.1";
/// The address of the guest.
pub const GUEST_ADDRESS: &str = "10.0.0.2";
/// The prefix length of both.
const PREFIX: u32 = 24;

/// The limit for commands that need not wait for anything.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a guest may take to boot.
pub const BOOT_TIMEOUT: Duration = Duration::from_secs(180);

/// The program `name` of this workspace, if it is built: in this program's folder or, for a test, one
/// folder above.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let folders = this.ancestors().skip(1).take(2);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}
