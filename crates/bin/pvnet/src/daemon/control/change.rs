//! Changes of the configuration while the daemon runs: what differs is planned, checked and applied.
//!
//! A reload and the commands of `pvnet port` are one mechanism. Each makes a new configuration; the [plan](mod@plan) compares it with what
//! runs, and only the ports that differ are touched. New devices and sockets are opened before anything else changes: if one fails,
//! nothing has changed.

mod apply;
mod plan;
mod trial;

use control_socket::{ChangeAction, ChangeReport, ChangeStep};
use tracing::{info, warn};

use crate::config::{Config, Edited, Loaded, Platform, differences, edit};
use crate::daemon::control::Control;
use crate::daemon::event::{NewConfig, Source};
use crate::daemon::ports::PluggedPort;
use crate::log::OPERATOR;
use plan::{Connected, plan};

impl Control {
    /// Makes a change, or says what it would do.
    pub(super) fn change(&mut self, change: NewConfig) -> Result<ChangeReport, String> {
        let NewConfig { source, dry_run, reconnect } = change;
        let (config, text, only) = match source {
            Source::File(loaded) => {
                let Loaded { config, text } = *loaded;
                (config, text, None)
            }
            Source::Command(change) => {
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
            Platform::Machine => Vec::new(),
            Platform::Xen => of_guests.map(|port| port.record.name().to_owned()).collect(),
        }
    }

    /// How what runs differs from a configuration.
    fn differences(&self, new: &Config) -> Vec<crate::config::Difference> {
        let (mut old, mut new) = (self.host.config.clone(), new.clone());
        let is_xen = old.daemon.platform == Platform::Xen;
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
        let connected = self.ports.values().filter(|port| port.source.is_connected());
        let names = connected.flat_map(|PluggedPort { record, source }| {
            let guest = source.guest().map(|(_, guest)| guest.name.clone());
            let names = guest.into_iter().chain([record.name().to_owned()]);
            names.map(|name| (record.identity.table, name))
        });
        let by_toolstack = self.host.config.daemon.platform == Platform::Xen;
        Connected { ports: names.collect(), by_toolstack }
    }
}

/// Why a command is not carried out.
fn not_now(step: &ChangeStep) -> String {
    let ChangeStep { name, keys, reason, .. } = step;
    let what = if keys.is_empty() { "it" } else { &*keys.join(", ") };
    format!("{name}: {what} cannot be changed now: {}", reason.as_deref().unwrap_or_default())
}
