//! What is done with a host: a guest, a backend, and what passes between them.
//!
//! ```text
//!              Frontend ◄──── netif rings ────► Backend
//!  10.0.0.2    xen-netfront                     xen-netback and a bridge, in dom0        10.0.0.1
//!              pvnet frontend                   pvnet run, in dom0 or a driver domain
//! ```
//!
//! Every step is a function of its own, for tests that do other things in between.

mod backend;
mod cell;
mod check;
mod domains;
mod frontend;
mod hostile;
mod platform;

use std::path::PathBuf;
use std::time::Duration;

pub use backend::{Backend, RunningBackend};
pub use cell::{Cell, Pair, cell};
pub use check::{Features, Rates, features, ping, same_file, throughput};
pub use domains::{STEPS, Step, domains};
pub use frontend::{Frontend, RunningFrontend};
pub use hostile::{
    Answers, AttackTestbed, Class, Echoes, Expected, Port, Report, Resources, Row, Status,
};
pub use platform::{PLATFORM_STEPS, platform};

/// The end of the network that the backend's domain has.
pub const BACKEND_ADDRESS: &str = "10.0.0.1";
/// The end of the network that the guest has.
pub const GUEST_ADDRESS: &str = "10.0.0.2";
/// Bits of both that name the network.
const PREFIX: u32 = 24;

/// How long anything may take that takes no time but the machine's.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a guest may take to boot.
pub const BOOT_TIMEOUT: Duration = Duration::from_secs(180);

/// Where cargo has put the program `name` of this workspace, if it is built: beside this program, or, for a test, one
/// folder above.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let folders = this.ancestors().skip(1).take(2);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}
