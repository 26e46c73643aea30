//! What clients of the control socket ask of the control thread.

use std::time::{SystemTime, UNIX_EPOCH};

use capture::{Capture, CaptureRequest};
use control_socket::Status;
use hypervisor::DomId;

use crate::config::{EVERY_GUEST, Guest, Nic, PlatformKind};
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
        let mut guests = self.ports.values().filter_map(|port| port.source.guest());
        // With the settings that it joined with: the configuration may have others by now.
        let running = match guests.find(|(_, guest)| guest.name == name) {
            Some((id, guest)) => Some((id.domain, guest.clone())),
            None => with_contexts.zip(self.host.config.guest(name)),
        };
        let Some((domain, guest)) = running else {
            let configured = self.host.config.guests.iter().find(|guest| guest.name == name);
            return Err(configured.map_or_else(
                || format!("no guest {name:?} in the configuration; `pvnet status` lists them"),
                not_running,
            ));
        };
        let is_machine = self.host.config.daemon.platform == crate::config::PlatformKind::Machine;
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
        self.host.platform.set_memory(name, domain, mib)
    }

    /// Starts a capture at the port of this name.
    pub(super) fn capture(&self, request: &CaptureRequest) -> Result<Capture, String> {
        let mut ports = self.ports.values().map(|port| &port.record);
        if let Some(record) = ports.find(|record| record.name() == request.port) {
            return record.wrappers.capture(&request.options);
        }
        let config = &self.host.config;
        if let Some(guest) = config.guests.iter().find(|guest| guest.name == request.port)
            && let [context, ..] = &guest.contexts[..]
            && guest.vifs.is_empty()
        {
            let card = config.nics.iter().find(|nic| nic.name == context.nic);
            return Err(has_a_card(guest, card));
        }
        let is_its = |guest: &&Guest| guest.vif_names().any(|name| name == request.port);
        Err(self.host.config.guests.iter().find(is_its).map_or_else(
            || {
                let names: Vec<_> = self.ports.values().map(|port| port.record.name()).collect();
                format!("no port {:?} (there are: {})", request.port, names.join(", "))
            },
            not_running,
        ))
    }

    /// The status of everything.
    pub(super) fn status(&mut self) -> Status {
        let workers = self.workers.read(&self.host.datapath);
        let devices = Interfaces::read();
        let ports: Vec<_> = self.ports.values().map(|port| port.status(&devices)).collect();
        let guests = self.ports.values().zip(&ports).filter(|(port, _)| !port.source.leads_out());
        let guest_bytes = guests.map(|(_, port)| port.ingress.bytes + port.egress.bytes).sum();
        let has_joined = |guest: &Guest| {
            let mut joined = self.ports.values().filter_map(|port| port.source.guest());
            joined.any(|(_, joined)| joined.name == guest.name)
        };
        let named = self.host.config.guests.iter().filter(|guest| guest.name != EVERY_GUEST);
        let absent = named.filter(|guest| !has_joined(guest));
        Status {
            // `StatusReader` knows these.
            config: String::new(),
            nics: Vec::new(),
            events: Vec::new(),
            pid: std::process::id(),
            started: seconds_since_epoch(self.started),
            worker_threads: self.host.datapath.worker_threads(),
            workers,
            moves: self.host.datapath.past_moves().iter().map(super::workers::past).collect(),
            writes_together: (self.host.config.daemon.platform == PlatformKind::Xen)
                .then(uplink::has_rings),
            cpu: self.stopwatch.read(),
            meter: status::meter(self.host.platform.meter(), guest_bytes),
            own_pages: self.host.platform.own_pages(),
            ports,
            multicast: self.host.datapath.multicast().map(status::multicast),
            mirrors: self.mirrors.iter().map(PluggedMirror::status).collect(),
            learning: carried::learning(self.host.datapath.learning()),
            absent: absent.map(|guest| guest.name.clone()).collect(),
            addresses: self.host.datapath.addresses().iter().map(status::address).collect(),
        }
    }
}

fn seconds_since_epoch(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The error message for a guest whose frames do not pass the daemon.
fn has_a_card(guest: &Guest, card: Option<&Nic>) -> String {
    let wire = card.map_or("the wire", |card| &card.wire.tap);
    let namespace = card.and_then(|card| card.wire.namespace.as_ref());
    let inside = namespace.map_or_else(String::new, |name| format!("ip netns exec {name} "));
    format!(
        "guest {:?} has a context of a card, so its frames pass no port; those to and from outside the card are at \
         its wire: {inside}tcpdump -i {wire}",
        guest.name
    )
}

/// The error message for a guest that is configured but not running.
fn not_running(Guest { name, .. }: &Guest) -> String {
    format!("guest {name:?} is not running; start it: `pvnet guest {name}`")
}
