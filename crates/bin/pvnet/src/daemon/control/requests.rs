//! What clients of the control socket ask of the control thread.

use std::time::{SystemTime, UNIX_EPOCH};

use capture::{Capture, Request};
use control_socket::{PortStatus, Reason, Status};
use hypervisor::DomId;
use xenstore::XenbusState;

use crate::config::{EVERY_GUEST, Guest, Platform};
use crate::daemon::control::Control;
use crate::daemon::interfaces::Interfaces;
use crate::daemon::mirrors::PluggedMirror;
use crate::daemon::{carried, status};

impl Control {
    /// Sets how much memory a guest should have. `with_contexts` is its domain if it has contexts.
    pub(super) fn balloon(
        &self,
        name: &str,
        with_contexts: Option<DomId>,
        mib: usize,
    ) -> Result<(), String> {
        let mut vifs = self.interfaces.iter();
        // With the settings that it joined with: the configuration may have others by now.
        let of_vif = vifs.find(|(_, vif)| vif.guest.name == name);
        let running = match of_vif {
            Some((id, vif)) => Some((id.domain, vif.guest.clone())),
            None => with_contexts.zip(self.config.guest(name)),
        };
        let Some((domain, guest)) = running else {
            let configured = self.config.guests.iter().find(|guest| guest.name == name);
            return Err(configured.map_or_else(
                || format!("no guest {name:?} in the configuration; `pvnet status` lists them"),
                not_running,
            ));
        };
        let is_machine = self.config.daemon.platform == crate::config::Platform::Machine;
        if is_machine && !guest.balloon {
            return Err(format!(
                "guest {name:?} has no balloon, so that it can make no holes in its memory; set \
                 balloon = true in its configuration, reload it and start the guest again"
            ));
        }
        let most = guest.memory_mib;
        if !(1..=most).contains(&mib) {
            return Err(format!(
                "{mib} MiB is not 1 to the {most} MiB of guest {name:?}; for more, raise its \
                 memory_mib in the configuration, reload it and start the guest again"
            ));
        }
        self.platform.set_memory(name, domain, mib)
    }

    /// Starts a capture at the port of this name.
    pub(super) fn capture(&self, request: &Request) -> Result<Capture, String> {
        let interfaces = self.interfaces.values();
        let guests = interfaces.map(|interface| (&*interface.name, &interface.wrappers));
        let uplinks = self.uplinks.iter().map(|uplink| (uplink.name(), &uplink.wrappers));
        let machines = self.machines.iter().map(|machine| (machine.name(), &machine.wrappers));
        let ports: Vec<_> = guests.chain(machines).chain(uplinks).collect();
        if let Some((_, wrappers)) = ports.iter().find(|(name, _)| *name == request.port) {
            return wrappers.capture(&request.options);
        }
        let is_its = |guest: &&Guest| guest.vif_names().any(|name| name == request.port);
        Err(self.config.guests.iter().find(is_its).map_or_else(
            || {
                let names: Vec<_> = ports.iter().map(|(name, _)| *name).collect();
                format!("no port {:?} (there are: {})", request.port, names.join(", "))
            },
            not_running,
        ))
    }

    /// The status of everything.
    pub(super) fn status(&mut self) -> Status {
        let workers = self.workers.read(&self.datapath);
        let devices = Interfaces::read();
        let guests = self.interfaces.iter().map(|(id, interface)| {
            let state = interface.backend.state();
            let why = match (state, &interface.reason) {
                (XenbusState::Connected, _) => {
                    interface.address_owner.clone().map(Reason::AddressTaken)
                }
                (_, Some(reason)) => Some(reason.clone()),
                (_, None) => Some(Reason::WaitingForFrontend),
            };
            let mac = interface.backend.mac().to_string();
            let (port, carried) = (interface.port.as_deref(), &interface.carried);
            let name = &interface.name;
            let status = status::guest(name, id.domain.0, &mac, (state, why), port, carried);
            let status = interface.wrappers.describe(status);
            let status = interface.backend.describe(status);
            let toolstack = interface.toolstack.clone();
            let status = PortStatus { toolstack, ..status };
            match &interface.device {
                Some(device) => device.describe(status, &devices),
                None => status,
            }
        });
        let uplinks = self.uplinks.iter().map(|uplink| status::uplink(uplink, &devices));
        let machines = self.machines.iter().map(|machine| machine.status(&devices));
        let ports: Vec<_> = guests.chain(machines).chain(uplinks).collect();
        let absent = |guest: &&Guest| {
            !self.interfaces.values().any(|interface| interface.guest.name == guest.name)
        };
        let named = self.config.guests.iter().filter(|guest| guest.name != EVERY_GUEST);
        let absent = named.filter(absent);
        Status {
            config: String::new(),
            nics: Vec::new(),
            pid: std::process::id(),
            started: seconds_since_epoch(self.started),
            worker_threads: self.datapath.worker_threads(),
            workers,
            writes_together: (self.config.daemon.platform == Platform::Xen).then(uplink::has_rings),
            cpu: self.stopwatch.read(),
            meter: status::meter(self.platform.meter(), &ports),
            own_pages: self.platform.own_pages(),
            ports,
            multicast: self.datapath.multicast().map(status::multicast),
            mirrors: self.mirrors.iter().map(PluggedMirror::status).collect(),
            learning: carried::learning(self.datapath.learning()),
            absent: absent.map(|guest| guest.name.clone()).collect(),
            addresses: self.datapath.addresses().iter().map(status::address).collect(),
        }
    }
}

fn seconds_since_epoch(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The error message for a guest that is configured but not running.
fn not_running(Guest { name, .. }: &Guest) -> String {
    format!("guest {name:?} is not running; start it: `pvnet guest {name}`")
}
