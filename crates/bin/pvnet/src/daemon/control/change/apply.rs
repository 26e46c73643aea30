//! Carries out a plan. Nobody waits for it but who asked: workers carry the frames of all other ports meanwhile.

use control_socket::{ChangeAction, ChangeStep, Reason};
use vhost_user::Mode;

use crate::config::{
    Config, Daemon, Guest, Multicast, Platform, Port, Sandbox, Switch, Uplink, UplinkKind,
};
use crate::daemon::backends::VifId;
use crate::daemon::control::{Control, Interface};
use crate::daemon::device;
use crate::daemon::error::Error;
use crate::daemon::mirrors::{self, PluggedMirror};
use crate::daemon::uplinks::{self, PluggedUplink};
use crate::daemon::virtual_machines::{self, VirtualMachine};
use crate::daemon::wrap::Rules;

/// The keys of a port that belong to its socket, or to its device on the host.
const REOPENED_KEYS: [&str; 9] = [
    "kind",
    "socket",
    "mode",
    "socket_mode",
    "socket_group",
    "attach",
    "device",
    "device_capabilities",
    "mtu",
];

/// What was opened before anything changed.
#[derive(Default)]
struct Opened {
    uplinks: Vec<PluggedUplink>,
    machines: Vec<VirtualMachine>,
    mirrors: Vec<PluggedMirror>,
}

impl Control {
    /// Carries out the steps. One that fails, after others were made, says so.
    ///
    /// # Errors
    /// A sentence for an operator: nothing was changed.
    pub(super) fn apply(
        &mut self,
        config: &Config,
        steps: &mut [ChangeStep],
    ) -> Result<(), String> {
        let merged = merge(&self.config, config, steps);
        merged.check().map_err(|reason| {
            format!("what can change now does not fit to what needs a restart: {reason}")
        })?;
        let admit = self.platform.prepare_guests(&merged).map_err(|error| error.to_string())?;
        // These stay, as those that are made at the start.
        let made = device::make_missing(&merged).map_err(|error| self.with_hint(&error))?;
        let Opened { uplinks, machines, mirrors } = match self.open_new(&merged, steps) {
            Ok(opened) => opened,
            Err(reason) => {
                device::unmake(made);
                return Err(reason);
            }
        };
        drop(made);
        if self.config.ports != merged.ports {
            virtual_machines::warn_of_shortages(&merged, &self.limits);
        }
        self.config = merged;
        admit();
        // What goes makes room for what comes: a tap's name, an address, a socket.
        for step in steps.iter().filter(|step| step.action == ChangeAction::Remove) {
            self.remove(&step.table, &step.name);
        }
        self.uplinks.extend(uplinks);
        self.machines.extend(machines);
        for step in steps {
            let done = match step.action {
                ChangeAction::Add => self.add(&step.table, &step.name),
                ChangeAction::Change | ChangeAction::Wait => self.set(&step.table, &step.name),
                ChangeAction::Reconnect => self.reconnect(step),
                ChangeAction::Remove | ChangeAction::Refuse | ChangeAction::Fail => Ok(()),
            };
            if let Err(reason) = done {
                (step.action, step.reason) = (ChangeAction::Fail, Some(reason));
            }
        }
        self.set_mirrors(mirrors);
        self.assign_queues();
        Ok(())
    }

    /// Opens the devices and sockets of new ports, but for those that an old port still has, and the files of new mirrors.
    fn open_new(&self, merged: &Config, steps: &[ChangeStep]) -> Result<Opened, String> {
        let mut opened = Opened::default();
        let added = steps.iter().filter(|step| step.action == ChangeAction::Add);
        let ports = added.into_iter().try_for_each(|step| match &*step.table {
            "uplink" => self.open_uplink(merged, &step.name, &mut opened),
            "port" => self.open_machine(merged, &step.name, &mut opened),
            _ => Ok(()),
        });
        let mirrors = |()| mirrors::start_new(&self.mirrors, merged, &self.disk, &self.datapath);
        match ports.and_then(mirrors) {
            Ok(mirrors) => Ok(Opened { mirrors, ..opened }),
            Err(reason) => {
                for uplink in opened.uplinks {
                    let why = Reason::DeviceFailed("nothing was changed".to_owned());
                    drop(uplink.close(why, &self.datapath));
                }
                Err(reason)
            }
        }
    }

    fn open_uplink(&self, config: &Config, name: &str, opened: &mut Opened) -> Result<(), String> {
        let Some(uplink) = config.uplinks.iter().find(|uplink| uplink.name == name) else {
            return Ok(());
        };
        if !self.holds_device_of(uplink) {
            if uplink.kind == UplinkKind::VirtioUser {
                self.may_use(uplink.socket_side())?;
            }
            let services = self.platform.device_services();
            let plugged = uplinks::open(uplink, config, &services, &self.datapath, &self.events);
            let with_hint = |error: Error| match uplink.kind {
                UplinkKind::VirtioUser => self.with_socket_hint(&error),
                _ => self.with_hint(&error),
            };
            opened.uplinks.push(plugged.map_err(with_hint)?);
        }
        Ok(())
    }

    /// Whether an old uplink still has the device or the socket of this one.
    pub(super) fn holds_device_of(&self, uplink: &Uplink) -> bool {
        let is_held =
            |other: &PluggedUplink| other.is_open() && other.config.place() == uplink.place();
        self.uplinks.iter().any(is_held)
    }

    /// Whether an old port still has the socket or the device of this one.
    pub(super) fn holds_socket_of(&self, port: &Port) -> bool {
        let device = port.device().and_then(|device| device.name);
        let is_held = |other: &VirtualMachine| {
            other.config.socket == port.socket || device.is_some() && other.device() == device
        };
        self.machines.iter().any(is_held)
    }

    /// Whether the daemon may do its part of a socket: connecting is a right of its own.
    pub(super) fn may_use(&self, side: Mode) -> Result<(), String> {
        match side {
            Mode::Client if !self.reach.connects() => Err(
                "a daemon in its sandbox connects to no socket, if no port and no uplink had mode = \"client\" at its start: start it \
                 again, or set `sandbox = \"devices\"` in [daemon] before that"
                    .to_owned(),
            ),
            Mode::Client | Mode::Server => Ok(()),
        }
    }

    /// The error of a device that was not opened, with what to do where the sandbox is the reason.
    pub(super) fn with_hint(&self, error: &dyn std::fmt::Display) -> String {
        let hint = match self.config.daemon.sandbox {
            Sandbox::Full => {
                "; a daemon with `sandbox = \"full\"` in [daemon], the default, opens no devices after its \
                 start: set `sandbox = \"devices\"`, and start it again"
            }
            Sandbox::Devices | Sandbox::Off => "",
        };
        format!("{error}{hint}")
    }

    /// The error of a socket that was not opened, the same way.
    pub(super) fn with_socket_hint(&self, error: &dyn std::fmt::Display) -> String {
        let Config { daemon: Daemon { sandbox, directory, .. }, .. } = &self.config;
        match sandbox {
            Sandbox::Off => error.to_string(),
            Sandbox::Full | Sandbox::Devices => format!(
                "{error}; a daemon in its sandbox makes sockets in {} and in the folders of those that it had at its start: put the \
                 socket there, or start the daemon again",
                directory.display()
            ),
        }
    }

    fn open_machine(&self, config: &Config, name: &str, opened: &mut Opened) -> Result<(), String> {
        let Some(port) = config.ports.iter().find(|port| port.name == name) else {
            return Ok(());
        };
        if !self.holds_socket_of(port) {
            self.may_use(port.mode())?;
            let (meter, may_capture) = (self.platform.meter(), config.daemon.capture);
            let workers = self.datapath.workers();
            let (limits, events) = (&self.limits, &self.events);
            let machine = virtual_machines::open(port, may_capture, meter, workers, limits, events);
            let with_hint = |error: Error| match port.device().and_then(|device| device.name) {
                Some(_) => self.with_hint(&error),
                None => self.with_socket_hint(&error),
            };
            opened.machines.push(machine.map_err(with_hint)?);
        }
        Ok(())
    }

    fn remove(&mut self, table: &str, name: &str) {
        match table {
            "guest" => self.end_guest(name),
            "uplink" => {
                if let Some(place) = self.uplinks.iter().position(|one| one.name() == name) {
                    let uplink = self.take_uplink(place);
                    drop(uplink.close(Reason::SetDown, &self.datapath));
                }
            }
            "port" => {
                if let Some(place) = self.machines.iter().position(|one| one.name() == name) {
                    let mut machine = self.machines.remove(place);
                    machine.unplug(removed(), &self.datapath);
                }
            }
            _ => {}
        }
    }

    /// Adds a port that could not be opened before others went. One that could is there already.
    fn add(&mut self, table: &str, name: &str) -> Result<(), String> {
        let mut opened = Opened::default();
        let config = self.config.clone();
        let is_there = match table {
            "uplink" => self.uplinks.iter().any(|one| one.name() == name && one.is_open()),
            "port" => self.machines.iter().any(|one| one.name() == name),
            _ => true,
        };
        if is_there {
            return Ok(());
        }
        let done = match table {
            "uplink" => self.open_uplink(&config, name, &mut opened),
            _ => self.open_machine(&config, name, &mut opened),
        };
        if let Err(reason) = done {
            // It is new again for the next reload.
            self.config.uplinks.retain(|uplink| table != "uplink" || uplink.name != name);
            self.config.ports.retain(|port| table != "port" || port.name != name);
            return Err(reason);
        }
        self.uplinks.retain(|one| table != "uplink" || one.name() != name);
        self.uplinks.extend(opened.uplinks);
        self.machines.extend(opened.machines);
        Ok(())
    }

    fn set(&mut self, table: &str, name: &str) -> Result<(), String> {
        match table {
            "guest" => self.set_guest(name),
            "uplink" => {
                let uplink = self.config.uplinks.iter().find(|uplink| uplink.name == name);
                if let (Some(new), Some(own)) = (uplink, uplinks::named(&mut self.uplinks, name)) {
                    own.set(new, &self.datapath);
                }
                Ok(())
            }
            "port" => {
                let port = self.config.ports.iter().find(|port| port.name == name);
                let own = self.machines.iter_mut().find(|machine| machine.name() == name);
                if let (Some(new), Some(own)) = (port, own) {
                    own.set(new.clone(), &self.datapath);
                }
                Ok(())
            }
            "daemon" => {
                self.allow_captures(self.config.daemon.capture);
                Ok(())
            }
            "switch" => {
                let Switch { flood_copies_per_second, multicast, .. } = self.config.switch;
                self.datapath.limit_floods(flood_copies_per_second);
                self.datapath.snoop(multicast == Multicast::Snoop);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn allow_captures(&mut self, allowed: bool) {
        let guests = self.interfaces.values_mut().map(|one| (&mut one.wrappers, &one.port));
        let machines = self.machines.iter_mut().map(|one| (&mut one.wrappers, &one.port));
        let uplinks = self.uplinks.iter_mut().map(|one| (&mut one.wrappers, &one.port));
        for (wrappers, port) in guests.chain(machines).chain(uplinks) {
            wrappers.allow_capture(allowed, &self.datapath, port.as_deref());
        }
    }

    /// Sets what changes in place, of one interface of a guest, or of a guest that is called as its first interface is.
    fn set_guest(&mut self, name: &str) -> Result<(), String> {
        let is_its = |one: &Interface| one.name == name || one.guest.name == name;
        let of_guest = self.interfaces.iter().filter(|(_, interface)| is_its(interface));
        let ids: Vec<_> = of_guest.map(|(id, _)| *id).collect();
        ids.into_iter().try_for_each(|id| self.set_interface(id))
    }

    pub(in crate::daemon::control) fn set_interface(&mut self, id: VifId) -> Result<(), String> {
        let Some(interface) = self.interfaces.get(&id) else { return Ok(()) };
        let Some(new) = self.config.guest(&interface.guest.name) else { return Ok(()) };
        let index = match self.config.daemon.platform {
            Platform::Machine => id.handle as usize,
            Platform::Xen => 0,
        };
        let Some(of_new) = new.vifs.get(index) else { return Ok(()) };
        let mut guest =
            Guest { uid: new.uid, token_file: new.token_file, ..interface.guest.clone() };
        let Some(vif) = guest.vifs.get_mut(index) else { return Ok(()) };
        *vif = vif.clone().taking(of_new);
        let vif = self.with_addresses(id, vif.clone())?;
        let (toolstack, limits) = self.with_toolstack(id, &interface.name, &vif);
        let sources = vif.sources()?;
        let coalescing = vif.coalescing()?;
        let Some(interface) = self.interfaces.get_mut(&id) else { return Ok(()) };
        let rules = Rules {
            guard: sources.policy(interface.backend.mac()),
            limits,
            enabled: vif.enabled,
            membership: vif.membership()?,
            flooding: vif.flooding(),
            gro: vif.gro,
        };
        let port = interface.port.as_deref();
        let is_other = rules != *interface.wrappers.rules();
        let moves = is_other && interface.wrappers.set(rules, &self.datapath, port);
        if coalescing != interface.vif.coalescing()? {
            interface.wrappers.coalesce(coalescing, &self.datapath, port);
        }
        (interface.guest, interface.vif, interface.toolstack) = (guest, vif, toolstack);
        if moves {
            self.teach(id);
        }
        Ok(())
    }

    fn reconnect(&mut self, step: &ChangeStep) -> Result<(), String> {
        let ChangeStep { table, name, keys, .. } = step;
        match &**table {
            "guest" => {
                let is_its = |one: &&Interface| one.name == *name || one.guest.name == *name;
                let guest = self.interfaces.values().find(is_its).map(|one| one.guest.name.clone());
                if let Some(guest) = guest {
                    self.end_guest(&guest);
                }
                Ok(())
            }
            "port" if keys.iter().all(|key| !REOPENED_KEYS.contains(&&**key)) => {
                self.set(table, name)?;
                if let Some(machine) = self.machines.iter_mut().find(|one| one.name() == name) {
                    machine.hang_up(removed(), &self.datapath);
                }
                Ok(())
            }
            _ => {
                if let Some(place) = self.uplinks.iter().position(|one| one.name() == name)
                    && table == "uplink"
                {
                    let uplink = self.take_uplink(place);
                    let why = Reason::DeviceFailed("its device could not be opened again".into());
                    let closed = uplink.close(why, &self.datapath);
                    self.uplinks.insert(place, closed);
                } else {
                    self.remove(table, name);
                }
                self.add(table, name)
            }
        }
    }

    /// Ends a guest's interfaces and its session. Its process may join again.
    fn end_guest(&mut self, name: &str) {
        let of_guest = self.interfaces.iter().filter(|(_, one)| one.guest.name == name);
        let ids: Vec<_> = of_guest.map(|(id, _)| *id).collect();
        if self.config.daemon.platform == Platform::Xen {
            return;
        }
        ids.into_iter().for_each(|id| self.unplug(id));
        self.platform.end_guest(name);
    }

    /// Takes an uplink out, whose queues no guest has any more.
    fn take_uplink(&mut self, place: usize) -> PluggedUplink {
        let mut uplink = self.uplinks.remove(place);
        if let Some(queues) = &mut uplink.guest_queues {
            self.interfaces.keys().for_each(|id| queues.release(*id, &self.datapath));
        }
        uplink
    }
}

/// Why a port goes.
fn removed() -> Reason {
    Reason::NotConnected("the operator has changed it".to_owned())
}

/// What can run of a configuration without a restart: the rest stays as it is in `old`.
fn merge(old: &Config, new: &Config, steps: &[ChangeStep]) -> Config {
    let mut merged = new.clone();
    merged.daemon = Daemon { capture: new.daemon.capture, ..old.daemon.clone() };
    let Switch { flood_copies_per_second, multicast, .. } = new.switch;
    merged.switch = Switch { flood_copies_per_second, multicast, ..old.switch.clone() };
    (merged.xen, merged.nics) = (old.xen.clone(), old.nics.clone());
    for ChangeStep { table, name, action, keys, .. } in steps {
        match (&**table, action) {
            ("guest", ChangeAction::Refuse) => {
                let is_its = |guest: &Guest| {
                    guest.name == *name || guest.vif_names().any(|vif| vif == *name)
                };
                merged.guests.retain(|guest| !is_its(guest));
                merged.guests.extend(old.guests.iter().filter(|guest| is_its(guest)).cloned());
            }
            ("uplink", ChangeAction::Refuse) => {
                let is_its = |uplink: &Uplink| uplink.name == *name;
                merged.uplinks.retain(|uplink| !is_its(uplink));
                merged.uplinks.extend(old.uplinks.iter().filter(|one| is_its(one)).cloned());
            }
            ("uplink", ChangeAction::Wait) => {
                for uplink in merged.uplinks.iter_mut().filter(|uplink| uplink.name == *name) {
                    if let Some(old) = old.uplinks.iter().find(|old| old.name == *name).cloned() {
                        *uplink = old.taking(uplink);
                    }
                }
            }
            ("port", ChangeAction::Wait)
                if keys.iter().any(|key| REOPENED_KEYS.contains(&&**key)) =>
            {
                for port in merged.ports.iter_mut().filter(|port| port.name == *name) {
                    if let Some(old) = old.ports.iter().find(|old| old.name == *name) {
                        port.socket.clone_from(&old.socket);
                        (port.kind, port.mode) = (old.kind, old.mode);
                        (port.socket_mode, port.socket_group) = (old.socket_mode, old.socket_group);
                        port.device.clone_from(&old.device);
                        (port.attach, port.device_capabilities, port.mtu) =
                            (old.attach, old.device_capabilities, old.mtu);
                    }
                }
            }
            _ => {}
        }
    }
    merged
}
