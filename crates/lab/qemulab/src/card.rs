//! A card, a guest whose only interface is one of its contexts, and a host behind its wire. Another context is an uplink of the switch.
//!
//! ```text
//!  switch ── context ──┐
//!                      ├── pvnet nic ── a tap: the wire
//!  pvnet guest ─ context ──┘
//! ```

use std::path::Path;
use std::time::Duration;

use control_socket::PortState;
use lab::{Namespace, Process};
use xenlab::Result;

use crate::daemon::Daemon;

/// The address of the card's guest.
pub(crate) const CARD_GUEST: &str = "10.0.0.251";
/// The address behind the card's wire.
pub(crate) const CARD_WIRE: &str = "10.0.0.252";
/// The device behind the wire.
const TAP: &str = "cardwire0";
const NAME: &str = "card0";
/// The switch's port.
const PORT: &str = "card";
const LIMIT: Duration = Duration::from_secs(30);

/// The namespaces of a card's guest and of its wire.
#[derive(Debug)]
pub(crate) struct Card {
    /// The namespace of the guest's interface.
    pub(crate) guest_namespace: Namespace,
    /// The namespace behind the wire.
    pub(crate) wire_namespace: Namespace,
}

/// A card and its guest. Dropping it ends both.
#[derive(Debug)]
pub(crate) struct RunningCard {
    // Dropped in this order: the guest before its card.
    _guest: Process,
    _card: Process,
}

impl Card {
    pub(crate) fn new() -> Result<Self> {
        let (guest_namespace, wire_namespace) =
            (Namespace::create("qemulab")?, Namespace::create("qemulab")?);
        Ok(Self { guest_namespace, wire_namespace })
    }

    /// Its tables in the daemon's configuration.
    pub(crate) fn tables(&self) -> String {
        let (guest, wire) = (self.guest_namespace.name(), self.wire_namespace.name());
        format!(
            "\n[[nic]]\nname = \"{NAME}\"\ntso = true\n\
             wire = {{ tap = \"{TAP}\", namespace = \"{wire}\", addresses = [\"{CARD_WIRE}/24\"] }}\n\n\
             [[uplink]]\nname = \"{PORT}\"\nkind = \"cdna\"\nnic = \"{NAME}\"\nmac = \"02:00:00:00:00:04\"\n\n\
             [[guest]]\nname = \"{guest}\"\nnic = \"{NAME}\"\nmac = \"02:00:00:00:00:05\"\n\
             addresses = [\"{CARD_GUEST}/24\"]\n"
        )
    }

    /// Starts the card and its guest, and waits until the switch's port to the card is up.
    pub(crate) fn start(&self, program: &Path, daemon: &mut Daemon) -> Result<RunningCard> {
        let start = |arguments: &[&str]| -> Result<Process> {
            let mut command = lab::command(&program.to_string_lossy())?;
            let (first, rest) = arguments.split_at(1);
            command.args(first).arg("--directory").arg(daemon.folder()).args(rest);
            let mut process = Process::capture(command)?;
            process.says("is up", LIMIT)?;
            Ok(process)
        };
        let card = start(&["nic", NAME])?;
        let guest = start(&["guest", self.guest_namespace.name()])?;
        daemon.until_port(PORT, PortState::Up)?;
        Ok(RunningCard { _guest: guest, _card: card })
    }
}
