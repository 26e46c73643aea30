//! Changes of the configuration while the daemon runs: what differs is planned, checked and applied.
//!
//! A reload and the commands of `pvnet port` are one mechanism. Each makes a new configuration; the [plan](mod@plan) compares it with what
//! runs, and only the ports that differ are touched. New devices and sockets are opened before anything else changes: if one fails,
//! nothing has changed.

mod plan;
mod trial;

use control_socket::{ChangeAction, ChangeReport, ChangeStep, Reason, TableKind};
use plan::{Connected, plan};
use tracing::{info, warn};

use crate::config::{
    Config, Daemon, Edited, Effort, Loaded, Multicast, PlatformKind, SandboxLevel, Switch,
    differences, edit, effort, merged,
};
use crate::daemon::control::Control;
use crate::daemon::event::{ConfigSource, NewConfig};
use crate::daemon::mirrors::{self, PluggedMirror};
use crate::daemon::ports::{PluggedPort, PortId, device, of_tables};
use crate::log::OPERATOR;
use crate::program::text;

impl Control {
    /// Makes a change, or says what it would do.
    pub(super) fn change(&mut self, change: NewConfig) -> Result<ChangeReport, String> {
        let NewConfig { source, dry_run, reconnect } = change;
        let (config, text, only) = match source {
            ConfigSource::File(loaded) => {
                let Loaded { config, text } = *loaded;
                (config, text, None)
            }
            ConfigSource::Command(change) => {
                let Edited { config, text, names } = edit(&self.text, &change, &self.served())?;
                (config, text, Some(names))
            }
        };
        let mut steps = plan(&self.differences(&config), &self.connected(), reconnect);
        if let Some(names) = &only {
            steps.retain(|step| names.contains(&step.name));
            if let Some(step) = steps.iter().find(|step| !step.action.is_complete()) {
                return Err(not_now(step));
            }
        } else {
            for step in &mut steps {
                step.reverts_command = self.by_command.contains(&step.name);
            }
        }
        if dry_run {
            self.foresee(&config, &mut steps);
        } else {
            self.apply(&config, &mut steps)?;
            self.text = text;
            match only {
                Some(names) => self.by_command.extend(names),
                None => self.by_command.clear(),
            }
            for step in &steps {
                let ChangeStep { table, name, action, keys, reason, .. } = step;
                let (keys, reason) = (keys.join(", "), reason.as_deref().unwrap_or_default());
                match action {
                    ChangeAction::Fail => {
                        warn!(target: OPERATOR, %table, name, keys, reason, "a port could not be changed");
                    }
                    _ => {
                        info!(target: OPERATOR, %table, name, keys, reason, %action, "a port changes");
                    }
                }
            }
        }
        Ok(ChangeReport { dry_run, steps, saved: None })
    }

    /// The ports of guests that need no table in the configuration.
    fn served(&self) -> Vec<String> {
        let of_guests = self.ports.values().filter(|port| port.source.guest().is_some());
        match self.host.config.daemon.platform {
            PlatformKind::Machine => Vec::new(),
            PlatformKind::Xen => of_guests.map(|port| port.record.name().to_owned()).collect(),
        }
    }

    /// How what runs differs from a configuration.
    fn differences(&self, new: &Config) -> Vec<crate::config::Difference> {
        let (mut old, mut new) = (self.host.config.clone(), new.clone());
        let is_xen = old.daemon.platform == PlatformKind::Xen;
        if is_xen {
            old.guests.clear();
        }
        for port in self.ports.values() {
            port.source.write_running(&mut old);
        }
        if is_xen {
            new.guests = old.guests.iter().filter_map(|guest| new.guest(&guest.name)).collect();
        }
        differences(&old, &new)
    }

    /// The ports whose settings are agreed with a front-end now.
    fn connected(&self) -> Connected {
        let connected =
            self.ports.values().filter_map(|port| Some((port, port.source.agreed_by()?)));
        let names = connected.flat_map(|(PluggedPort { record, source }, by)| {
            let guest = source.guest().map(|(_, guest)| guest.name.clone());
            let names = guest.into_iter().chain([record.name().to_owned()]);
            names.map(move |name| ((record.identity.table, name), by))
        });
        Connected(names.collect())
    }
}

/// Why a command is not carried out.
fn not_now(step: &ChangeStep) -> String {
    let ChangeStep { name, keys, reason, .. } = step;
    let what = if keys.is_empty() { "it" } else { &*keys.join(", ") };
    format!("{name}: {what} cannot be changed now: {}", reason.as_deref().unwrap_or_default())
}

/// What was opened before anything changed.
struct Opened {
    ports: Vec<PluggedPort>,
    mirrors: Vec<PluggedMirror>,
}

impl Control {
    /// Carries out the steps. One that fails, after others were made, says so.
    fn apply(&mut self, config: &Config, steps: &mut [ChangeStep]) -> Result<(), String> {
        let merged = merged(&self.host.config, config, steps);
        merged.check().map_err(|reason| {
            format!("the changes that apply now do not fit those that need a restart: {reason}")
        })?;
        let admit = self.host.platform.prepare_guests(&merged).map_err(text)?;
        // These stay, as those that are made at the start.
        let made = device::make_missing(&merged).map_err(|error| self.with_hint(&error))?;
        let before = std::mem::replace(&mut self.host.config, merged);
        let Opened { ports, mirrors } = match self.open_new(steps) {
            Ok(opened) => opened,
            Err(reason) => {
                self.host.config = before;
                device::unmake(made);
                return Err(reason);
            }
        };
        drop(made);
        self.host.limits.warn_of_shortages(&self.host.config, Some(&before));
        admit();
        // What goes makes room for what comes: a tap's name, an address, a socket.
        for step in steps.iter().filter(|step| step.action == ChangeAction::Remove) {
            self.remove(step.table, &step.name);
        }
        self.ports.extend(ports.into_iter().map(|port| (port.record.identity.id, port)));
        for step in steps {
            let done = match step.action {
                ChangeAction::Add => self.add(step.table, &step.name),
                ChangeAction::Change | ChangeAction::Wait => self.set(step.table, &step.name),
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

    /// Opens new ports, unless an old port still has the place, and the files of new mirrors.
    fn open_new(&self, steps: &[ChangeStep]) -> Result<Opened, String> {
        let mut ports = Vec::new();
        let mut added = steps.iter().filter(|step| step.action == ChangeAction::Add);
        let opened = added.try_for_each(|ChangeStep { table, name, .. }| {
            let made = of_tables(&self.host.config, *table, Some(name)).map_err(text)?;
            for port in made.into_iter().filter(|port| !self.has_place_of(port)) {
                ports.push(self.open(port)?);
            }
            Ok(())
        });
        let Self { host, mirrors, disk, .. } = self;
        let mirrors = |()| mirrors::start_new(mirrors, &host.config, disk, &host.datapath);
        match opened.and_then(mirrors) {
            Ok(mirrors) => Ok(Opened { ports, mirrors }),
            Err(reason) => {
                ports.into_iter().for_each(|port| port.close(host));
                Err(reason)
            }
        }
    }

    /// Whether an old port has the device or the socket of a new one.
    fn has_place_of(&self, new: &PluggedPort) -> bool {
        let places = new.source.places();
        self.ports.values().any(|old| old.has_any(&places))
    }

    fn open(&self, port: PluggedPort) -> Result<PluggedPort, String> {
        let needs = port.source.needs();
        if needs.connects {
            self.may_connect()?;
        }
        port.open(&self.host).map_err(|error| match needs.is_socket() {
            true => self.with_socket_hint(&error),
            false => self.with_hint(&error),
        })
    }

    /// Whether the daemon may connect to sockets of others, which is a right of its own.
    fn may_connect(&self) -> Result<(), String> {
        match self.host.reach.connects {
            true => Ok(()),
            false => Err(
                "a daemon in its sandbox connects to no socket, if no port and no uplink had mode = \"client\" at its start: start it \
                 again, or set `sandbox = \"devices\"` in [daemon] before that"
                    .to_owned(),
            ),
        }
    }

    /// The error of a device that was not opened, with what to do where the sandbox is the reason.
    fn with_hint(&self, error: &dyn std::fmt::Display) -> String {
        let hint = match self.host.config.daemon.sandbox {
            SandboxLevel::Full => {
                "; a daemon with `sandbox = \"full\"` in [daemon], the default, opens no devices after its \
                 start: set `sandbox = \"devices\"`, and start it again"
            }
            SandboxLevel::Devices | SandboxLevel::Off => "",
        };
        format!("{error}{hint}")
    }

    /// The error of a socket that was not opened, the same way.
    fn with_socket_hint(&self, error: &dyn std::fmt::Display) -> String {
        let Daemon { sandbox, directory, .. } = &self.host.config.daemon;
        match sandbox {
            SandboxLevel::Off => error.to_string(),
            SandboxLevel::Full | SandboxLevel::Devices => format!(
                "{error}; a daemon in its sandbox makes sockets in {} and in the folders of those that it had at its start: put the \
                 socket there, or start the daemon again",
                directory.display()
            ),
        }
    }

    /// The ports of a table: of a guest all its interfaces, or the one of this name.
    fn ids_of(&self, table: TableKind, name: &str) -> Vec<PortId> {
        let ports = self.ports.iter().filter(|(_, port)| port.is_of(table, name));
        ports.map(|(id, _)| *id).collect()
    }

    /// The name of the guest whose interface a port is.
    fn guest_of(&self, port: PortId) -> Option<String> {
        let (_, guest) = self.ports.get(&port)?.source.guest()?;
        Some(guest.name.clone())
    }

    /// Removes the ports of a table. A guest that has not all of its interfaces yet gets none any more: it is not in the configuration.
    fn remove(&mut self, table: TableKind, name: &str) {
        let ids = self.ids_of(table, name);
        match ids.iter().find_map(|id| self.guest_of(*id)) {
            Some(guest) => self.end_guest(&guest),
            None => {
                ids.into_iter().for_each(|id| self.unplug(id));
                // One that has joined may have no port yet.
                self.host.platform.end_guest(name);
            }
        }
    }

    /// Adds a port that could not be opened before others went. One that could is there already.
    fn add(&mut self, table: TableKind, name: &str) -> Result<(), String> {
        let mut ports = self.ports.values();
        if ports.any(|port| port.is_of(table, name) && port.record.is_open) {
            return Ok(());
        }
        for port in of_tables(&self.host.config, table, Some(name)).map_err(text)? {
            // If it fails, it is new again for the next reload.
            let opened = self.open(port).inspect_err(|_| self.host.config.forget(table, name))?;
            self.ports.retain(|_, port| !port.is_of(table, name));
            self.ports.insert(opened.record.identity.id, opened);
        }
        Ok(())
    }

    fn set(&mut self, table: TableKind, name: &str) -> Result<(), String> {
        match table {
            TableKind::Daemon => self.allow_captures(self.host.config.daemon.capture),
            TableKind::Switch => {
                let Switch { flood_copies_per_second, multicast, .. } = self.host.config.switch;
                self.host.datapath.limit_floods(flood_copies_per_second);
                self.host.datapath.snoop(multicast == Multicast::Snoop);
            }
            _ => {
                for port in self.ports.values_mut().filter(|port| port.is_of(table, name)) {
                    port.source.set(&mut port.record, &self.host)?;
                }
                self.teach_addresses();
            }
        }
        Ok(())
    }

    fn reconnect(&mut self, step: &ChangeStep) -> Result<(), String> {
        let ChangeStep { table, name, keys, .. } = step;
        let table = *table;
        let Some(id) = self.ids_of(table, name).into_iter().next() else {
            return self.add(table, name);
        };
        if let Some(guest) = self.guest_of(id) {
            self.end_guest(&guest);
            return Ok(());
        }
        if keys.iter().all(|key| effort(table, key) != Some(Effort::Device)) {
            self.set(table, name)?;
            self.disconnect(id, Reason::NotConnected("the operator has changed it".to_owned()));
            if let Some(port) = self.ports.get_mut(&id) {
                port.source.hang_up(true);
            }
            return Ok(());
        }
        self.unplug(id);
        let closed = of_tables(&self.host.config, table, Some(name));
        let added = self.add(table, name);
        if let (Err(_), Ok(closed)) = (&added, closed) {
            for mut port in closed {
                let why = "its device could not be opened again".to_owned();
                port.record.reason = Some(Reason::DeviceFailed(why));
                self.ports.insert(port.record.identity.id, port);
            }
        }
        added
    }

    /// Ends a guest's interfaces and its session. Its process may join again.
    fn end_guest(&mut self, name: &str) {
        if self.host.config.daemon.platform == PlatformKind::Xen {
            return;
        }
        let is_its =
            |port: &PluggedPort| port.source.guest().is_some_and(|(_, guest)| guest.name == name);
        let ids: Vec<_> =
            self.ports.iter().filter(|(_, port)| is_its(port)).map(|(id, _)| *id).collect();
        ids.into_iter().for_each(|id| self.unplug(id));
        self.host.platform.end_guest(name);
    }
}
