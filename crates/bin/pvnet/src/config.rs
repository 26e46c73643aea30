//! The configuration file. Each of its tables has a source file; the checks across tables are here.

mod capabilities;
mod coalescing;
mod daemon;
mod differences;
mod edit;
mod file;
mod flooding;
mod guest;
mod keys;
pub mod manual;
mod mirror;
mod nic;
mod overrides;
mod port_settings;
mod ports;
mod read;
mod table;
#[cfg(test)]
mod tests;
mod uplink;
mod vif;

use std::collections::HashSet;
use std::path::PathBuf;

use control_socket::TableKind;
use datapath::Workers;
use schemars::JsonSchema;
use serde::Deserialize;

pub use daemon::{Daemon, OnStop, PlatformKind, Poll, SandboxLevel, Switch, Xen, default_queues};
pub use differences::{Difference, What, differences, merged};
pub use edit::{Edited, edit, keeps_its_form, value_of};
pub use file::{ConfigFile, Loaded, candidate};
pub use flooding::{Flooding, Multicast};
pub use guest::{EVERY_GUEST, Guest, vif_name};
pub use keys::{SCHEMA, effort, schema};
pub use mirror::Mirror;
pub use nic::{Context, Nic, Protection, Wire};
pub use overrides::Override;
pub use port_settings::{
    Attach, HostDevice, PortSettings, PortTable, Rules, SinglePort, SocketFile, taking,
};
pub use ports::Port;
pub use read::Fault;
pub use table::Effort;
use table::Table as _;
pub use uplink::{Queues, ReceiveBuffers, Uplink, UplinkKind};
pub use vif::Vif;

/// An error in a configuration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML, or not what pvnet expects. The error has line and column.
    #[error("{path}: {fault}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and why.
        fault: Fault,
    },
    /// The command line names a guest, a key or a value that does not exist.
    #[error("--set {set}: {reason}")]
    Set {
        /// The change.
        set: String,
        /// Why.
        reason: String,
    },
    /// Each value is valid alone, but they do not fit together.
    #[error("{path}: {reason}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
}

/// The whole file. `examples/pvnet.toml` documents every key.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The daemon's own settings.
    pub daemon: Daemon,
    /// Settings of platform `xen` only.
    pub xen: Xen,
    /// The switch's limits.
    pub switch: Switch,
    /// Guests that may join.
    #[serde(rename = "guest")]
    pub guests: Vec<Guest>,
    /// Ports that lead out of the host.
    #[serde(rename = "uplink")]
    pub uplinks: Vec<Uplink>,
    /// Network devices of virtual machines.
    #[serde(rename = "port")]
    pub ports: Vec<Port>,
    /// Ports whose frames are copied to others.
    #[serde(rename = "mirror")]
    pub mirrors: Vec<Mirror>,
    /// Cards with contexts.
    #[serde(rename = "nic")]
    pub nics: Vec<Nic>,
}

/// Evaluates an expression for the type of a kind's tables, if each of these is a port: `T` in `single_port!(kind, T => …)`. A new kind of port
/// has its row here.
macro_rules! single_port {
    ($kind:expr, $table:ident => $value:expr) => {
        match $kind {
            control_socket::TableKind::Uplink => {
                type $table = $crate::config::Uplink;
                Some($value)
            }
            control_socket::TableKind::Port => {
                type $table = $crate::config::Port;
                Some($value)
            }
            // A guest has several.
            control_socket::TableKind::Guest
            | control_socket::TableKind::Daemon
            | control_socket::TableKind::Switch
            | control_socket::TableKind::Xen
            | control_socket::TableKind::Mirror
            | control_socket::TableKind::Nic => None,
        }
    };
}

use single_port;

/// The longest name of a guest, uplink or card, which is also the name of a namespace or port.
const NAME_MAX: usize = 32;

impl Config {
    /// Reads a text, without the checks of what TOML cannot express.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        read::read(text)
    }

    /// Checks what TOML cannot express.
    pub fn check(&self) -> Result<(), String> {
        self.daemon.check()?;
        self.check_names()?;
        let mut macs: HashSet<_> = self.single_ports().filter_map(|(_, port)| port.mac).collect();
        let xen = self.daemon.platform == PlatformKind::Xen;
        for guest in &self.guests {
            let of_guest = |reason| format!("guest {:?}: {reason}", guest.name);
            guest.check(xen).map_err(of_guest)?;
            let of_contexts = guest.contexts.iter().map(|context| context.mac);
            for mac in guest.vifs.iter().filter_map(|vif| vif.settings.mac).chain(of_contexts) {
                if !macs.insert(mac) {
                    return Err(of_guest(format!("mac {mac} is given twice")));
                }
            }
        }
        for kind in TableKind::ports() {
            let checked = single_port!(kind, T => T::all(self).iter().try_for_each(|port| {
                let of_port = |reason| format!("{kind} {:?}: {reason}", port.name());
                port.check(self).map_err(of_port)
            }));
            checked.unwrap_or(Ok(()))?;
        }
        self.check_workers()?;
        self.check_sockets()?;
        self.check_nics()?;
        self.check_direct()?;
        self.check_devices()?;
        self.check_mirrors()?;
        self.xen.check()
    }

    /// Checks that there are the workers that ports name, and one for each port that has one to itself.
    fn check_workers(&self) -> Result<(), String> {
        let workers = self.daemon.workers();
        let mut own = Vec::new();
        for (name, settings) in self.known_ports() {
            let of_port = |reason| format!("port {name:?}: {reason}");
            match settings.wanted_workers().map_err(of_port)? {
                Workers::Any => {}
                Workers::Own => own.push(name),
                Workers::Of(list) => {
                    if let Some(number) = list.iter().find(|number| **number >= workers) {
                        let last = workers - 1;
                        return Err(of_port(format!(
                            "there is no worker {number}: they are 0 to {last} (`workers` and `cpus` of [daemon])"
                        )));
                    }
                }
            }
        }
        if !own.is_empty() && own.len() >= workers {
            return Err(format!(
                "{} ports have worker = \"own\" ({}), and of {workers} workers one is for the others",
                own.len(),
                own.join(", ")
            ));
        }
        Ok(())
    }

    /// Checks the cards, and that they have the contexts that guests get.
    fn check_nics(&self) -> Result<(), String> {
        if !self.nics.is_empty() && self.daemon.platform == PlatformKind::Xen {
            return Err("cards with contexts are for platform \"machine\" only".into());
        }
        for nic in &self.nics {
            let of_nic = |reason| format!("nic {:?}: {reason}", nic.name);
            nic.check().map_err(of_nic)?;
            let wanted = self.contexts_of(&nic.name).count() + self.queues_of(&nic.name).count();
            let most = nic.contexts - 1;
            if self.has_guest_queues(&nic.name) && nic.protection.is_deferred() {
                return Err(of_nic(
                    "protection = { iommu = \"deferred\" } is not for an uplink with queues = \"per-guest\": \
                     a guest's buffers cannot wait for the card"
                        .into(),
                ));
            }
            if wanted > most {
                return Err(of_nic(format!(
                    "guests want {wanted} contexts, and it has {most} for guests; raise contexts"
                )));
            }
        }
        for guest in &self.guests {
            let unknown = |context: &&Context| self.nics.iter().all(|nic| nic.name != context.nic);
            if let Some(context) = guest.contexts.iter().find(unknown) {
                let (guest, nic) = (&guest.name, &context.nic);
                return Err(format!("guest {guest:?}: there is no [[nic]] with the name {nic:?}"));
            }
        }
        Ok(())
    }

    /// Checks that guests that receive directly have an uplink for it.
    fn check_direct(&self) -> Result<(), String> {
        let per_guest: Vec<_> =
            self.uplinks.iter().filter(|uplink| uplink.queues == Queues::PerGuest).collect();
        if let [first, second, ..] = &*per_guest {
            let [first, second] = [&first.name, &second.name];
            return Err(format!(
                "uplinks {first:?} and {second:?} both have queues = \"per-guest\", but a guest's buffers \
                 can be lent to one uplink only"
            ));
        }
        if per_guest.iter().any(|uplink| uplink.kind == UplinkKind::AfXdp) {
            if self.daemon.platform == PlatformKind::Xen {
                return Err("an uplink with kind = \"af-xdp\" has no queues for guests on Xen: their memory is not \
                            mapped there; use a tap or macvtap"
                    .to_owned());
            }
            let moves = |guest: &Guest| guest.balloon || !guest.contexts.is_empty();
            if let Some((guest, ..)) = self.direct_vifs().find(|(guest, ..)| moves(guest)) {
                return Err(format!(
                    "guest {:?}: rx = \"direct\" with an uplink of kind = \"af-xdp\" needs balloon = false and no \
                     [[guest.context]]: the kernel keeps the pages that it has for AF_XDP, and takes none of secret memory",
                    guest.name
                ));
            }
        }
        match self.direct_vifs().next() {
            Some((guest, _, vif)) if per_guest.is_empty() => Err(format!(
                "guest {:?}: rx = \"{}\" needs an [[uplink]] with queues = \"per-guest\"",
                guest.name, vif.rx
            )),
            _ => Ok(()),
        }
    }

    /// Checks the devices of guests and virtual machines.
    fn check_devices(&self) -> Result<(), String> {
        let uplinks = self.uplinks.iter().map(|uplink| uplink.tap.as_str());
        let mut names: HashSet<_> =
            uplinks.filter(|tap| !tap.is_empty()).map(str::to_owned).collect();
        for (port, device) in self.devices() {
            let of_port = |reason| format!("port {port:?}: {reason}");
            device.check().map_err(of_port)?;
            if let Some(name) = device.name.filter(|name| !names.insert(name.clone())) {
                return Err(of_port(format!("another port has the device {name:?} too")));
            }
        }
        let vifs = self.vifs().filter(|(_, vif)| self.device_of(vif, None).is_some());
        let vifs = vifs.map(|(port, vif)| (port, &vif.settings));
        let others = self.single_ports().filter(|(name, port)| port.own_device(name).is_some());
        let others = others.map(|(name, port)| (name.to_owned(), port));
        for (port, settings) in vifs.chain(others) {
            if settings.membership()?.is_some() {
                return Err(format!(
                    "port {port:?}: vlan, trunk and isolated are for ports of pvnet's switch; with attach = \"device\" the network \
                     behind the device has its own (bridge vlan, ovs-vsctl set port tag=)"
                ));
            }
        }
        if let Some((guest, ..)) =
            self.direct_vifs().find(|(_, _, vif)| self.device_of(vif, None).is_some())
        {
            return Err(format!(
                "guest {:?}: its rx needs an uplink's queue, and with attach = \"device\" no uplink has frames for it",
                guest.name
            ));
        }
        Ok(())
    }

    /// The device of an interface, if it has one; `port` is its port's name where that names the device.
    pub fn device_of(&self, vif: &Vif, port: Option<&str>) -> Option<HostDevice> {
        let xen = self.daemon.platform == PlatformKind::Xen;
        let (default, port) = if xen { (self.xen.attach, None) } else { (Attach::Switch, port) };
        vif.settings.device(default, port)
    }

    /// The MTU announced to a guest with this interface in the switch: its own, or the smallest of the uplinks.
    pub fn mtu_of(&self, vif: &Vif) -> Option<u16> {
        vif.settings
            .mtu
            .or_else(|| self.uplinks.iter().filter_map(|uplink| uplink.settings.mtu).min())
    }

    /// The devices whose names are known, by port. On Xen those of domains are not.
    pub fn devices(&self) -> impl Iterator<Item = (String, HostDevice)> {
        let xen = self.daemon.platform == PlatformKind::Xen;
        let vifs = self.vifs().filter(move |_| !xen);
        let vifs =
            vifs.filter_map(|(port, vif)| Some((port.clone(), self.device_of(vif, Some(&port))?)));
        let others = self
            .single_ports()
            .filter_map(|(name, port)| Some((name.to_owned(), port.own_device(name)?)));
        vifs.chain(others)
    }

    /// The guests' interfaces, by their ports.
    fn vifs(&self) -> impl Iterator<Item = (String, &Vif)> {
        self.guests.iter().flat_map(|guest| guest.vif_names().zip(&guest.vifs).collect::<Vec<_>>())
    }

    /// The ports that have tables of their own.
    fn single_ports(&self) -> impl Iterator<Item = (&str, &PortSettings)> {
        let of_kind = |kind| {
            let tables = single_port!(kind, T => {
                T::all(self).iter().map(|port| (port.name(), port.settings())).collect::<Vec<_>>()
            });
            tables.unwrap_or_default()
        };
        TableKind::ports().flat_map(of_kind)
    }

    /// All ports. On Xen guests have others.
    fn known_ports(&self) -> impl Iterator<Item = (String, &PortSettings)> {
        let others = self.single_ports().map(|(name, port)| (name.to_owned(), port));
        self.vifs().map(|(name, vif)| (name, &vif.settings)).chain(others)
    }

    /// The groups of all sockets that need one.
    pub fn socket_groups(&self) -> impl Iterator<Item = u32> {
        let ports = self.single_ports().map(|(_, port)| port.socket_group);
        [self.daemon.control_group, self.daemon.join_group].into_iter().chain(ports).flatten()
    }

    /// The interfaces that have a queue of an uplink: the guest, and the interface's index among the guest's.
    pub fn direct_vifs(&self) -> impl Iterator<Item = (&Guest, usize, &Vif)> {
        let of_guest = |guest: &'_ Guest| {
            let has_own_queue = |vif: &Vif| vif.has_own_queue(self.daemon.platform);
            let vifs = guest.vifs.iter().enumerate().filter(|(_, vif)| has_own_queue(vif));
            let vifs: Vec<_> = vifs.map(|(index, _)| index).collect();
            vifs
        };
        self.guests.iter().flat_map(move |guest| {
            of_guest(guest).into_iter().map(move |index| (guest, index, &guest.vifs[index]))
        })
    }

    /// Whether an uplink keeps contexts of a card as queues for guests.
    pub fn has_guest_queues(&self, nic: &str) -> bool {
        let is_its = |uplink: &Uplink| uplink.nic.as_deref() == Some(nic);
        self.uplinks.iter().any(|uplink| is_its(uplink) && uplink.queues == Queues::PerGuest)
    }

    /// The interfaces that have a card's context as their receive queue: see [`direct_vifs`](Self::direct_vifs).
    pub fn queues_of<'a>(&'a self, nic: &str) -> impl Iterator<Item = (&'a Guest, usize, &'a Vif)> {
        let has_queues = self.has_guest_queues(nic);
        self.direct_vifs().filter(move |_| has_queues)
    }

    /// The contexts that a card gives to guests, in the order of their numbers, which begin at 1: the guest, and the
    /// context's index among the guest's.
    pub fn contexts_of<'a>(
        &'a self,
        nic: &'a str,
    ) -> impl Iterator<Item = (&'a Guest, usize, &'a Context)> {
        let of_guest = |guest: &'a Guest| {
            let contexts = guest.contexts.iter().enumerate();
            contexts.map(move |(index, context)| (guest, index, context))
        };
        let all = self.guests.iter().flat_map(of_guest);
        all.filter(move |(_, _, context)| context.nic == nic)
    }

    /// Checks the names of guests, uplinks and cards, and those that ports get. No mirror has the name of another or of a port.
    fn check_names(&self) -> Result<(), String> {
        let xen = self.daemon.platform == PlatformKind::Xen;
        let nics = self.nics.iter().map(|nic| nic.name.clone());
        let others = self.single_ports().map(|(name, _)| name.to_owned()).chain(nics);
        let others: Vec<_> = others.collect();
        for name in self.guests.iter().map(|guest| &guest.name).chain(&others) {
            if !(xen && name == EVERY_GUEST) {
                check_name(name)?;
            }
        }
        let mut names = HashSet::new();
        let others =
            others.into_iter().chain(self.mirrors.iter().map(|mirror| mirror.name.clone()));
        let of_guest = |guest: &Guest| {
            let further: Vec<_> = guest.vif_names().skip(1).collect();
            std::iter::once(guest.name.clone()).chain(further)
        };
        for name in self.guests.iter().flat_map(of_guest).chain(others) {
            if names.contains(&name) {
                return Err(format!("the name {name:?} is given twice"));
            }
            names.insert(name);
        }
        Ok(())
    }

    /// The settings of a guest of this name. On Xen the toolstack decides which guests exist: one
    /// without an entry has the settings of [`EVERY_GUEST`], or the defaults.
    pub fn guest(&self, name: &str) -> Option<Guest> {
        let entry = |name: &str| self.guests.iter().find(|guest| guest.name == name).cloned();
        match self.daemon.platform {
            PlatformKind::Machine => entry(name),
            PlatformKind::Xen => {
                let guest = entry(name).or_else(|| entry(EVERY_GUEST)).unwrap_or_default();
                Some(Guest { name: name.to_owned(), ..guest })
            }
        }
    }

    /// No two ports or uplinks meet their peers at one socket.
    fn check_sockets(&self) -> Result<(), String> {
        let mut sockets = HashSet::new();
        for (name, PortSettings { socket, .. }) in self.single_ports() {
            if !socket.as_os_str().is_empty() && !sockets.insert(socket) {
                return Err(format!("port {name:?}: another port has {} too", socket.display()));
            }
        }
        Ok(())
    }

    /// Forgets a table of a port that is opened.
    pub fn forget(&mut self, table: TableKind, name: &str) {
        single_port!(table, T => T::all_mut(self).retain(|port| port.name() != name));
    }

    /// The socket that guests join at.
    pub fn join_socket(&self) -> PathBuf {
        control_socket::join_socket(&self.daemon.directory)
    }

    /// The socket that cards join at.
    pub fn nic_socket(&self) -> PathBuf {
        control_socket::nic_socket(&self.daemon.directory)
    }

    /// The control socket.
    pub fn control_socket(&self) -> PathBuf {
        control_socket::control_socket(&self.daemon.directory)
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(allowed) {
        return Err(format!(
            "the name {name:?} is not 1 to {NAME_MAX} letters, digits, '-', '_' or '.'"
        ));
    }
    Ok(())
}
