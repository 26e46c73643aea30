//! What is done about all ports: their addresses, their wrappers, and the queues that guests have of uplinks.

use std::time::Instant;

use datapath::TeachError;
use tracing::warn;

use crate::daemon::control::Control;
use crate::daemon::mirrors::{self, PluggedMirror, role_of};
use crate::daemon::ports::{Address, PluggedPort, PortId, Record, Transition};

impl Control {
    /// Those of guests.
    pub(super) fn guests_ports(&self) -> Vec<PortId> {
        let mut ports: Vec<_> = self.ports.iter().collect();
        ports.retain(|(_, port)| !port.source.leads_out());
        ports.into_iter().map(|(id, _)| *id).collect()
    }

    /// Checks whether what ports have is still there.
    pub(super) fn check_ports(&mut self) {
        let now = Instant::now();
        let mut transitions = Vec::new();
        for (id, PluggedPort { record, source }) in &mut self.ports {
            if let Some(device) = &mut record.device {
                device.check(&self.host.datapath);
            }
            if let Some(port) = &record.port {
                port.suspect(record.suspicion.is_on(now));
            }
            match source.check(record, &self.host) {
                Transition::None => {}
                transition => transitions.push((*id, transition)),
            }
        }
        transitions.into_iter().for_each(|(id, transition)| self.follow(id, transition));
    }

    /// Records which guests' ports are up, and carries frames once those of the last daemon are.
    pub(super) fn record_ports(&mut self) {
        let is_up = |port: &&PluggedPort| port.record.port.is_some() && !port.source.leads_out();
        let names = self.ports.values().filter(is_up).map(|port| port.record.name()).collect();
        if self.last_up.note(names, Instant::now()) {
            self.host.datapath.resume();
        }
    }

    /// Teaches the switch addresses of ports in it: those that it was not taught yet, and those that other ports had, which may have gone.
    /// A port that was faster keeps the address.
    pub(super) fn teach_addresses(&mut self) {
        let is_wanting = |record: &Record| {
            let is_in_switch = record.port.is_some() && record.device.is_none();
            is_in_switch && matches!(record.address, Address::Untaught | Address::Taken(_))
        };
        let wanting = self.ports.iter().filter(|(_, port)| is_wanting(&port.record));
        let wanting: Vec<_> = wanting.map(|(id, _)| *id).collect();
        for id in wanting {
            if let Some(address) = self.teach(id)
                && let Some(port) = self.ports.get_mut(&id)
            {
                port.record.address = address;
            }
        }
    }

    fn teach(&self, id: PortId) -> Option<Address> {
        let PluggedPort { record, source } = self.ports.get(&id)?;
        let (name, mac) = (record.name(), source.mac()?);
        let error = match self.host.datapath.teach(record.port.as_ref()?.id(), mac) {
            Ok(()) => return Some(Address::Kept),
            Err(error) => error,
        };
        let has_it = |other: &&PluggedPort| match (&error, &other.record.port) {
            (TeachError::Taken(id), Some(port)) => port.id() == *id,
            _ => false,
        };
        let Some(owner) = self.ports.values().find(has_it) else {
            warn!(port = name, %mac, %error, "its address is not reserved: another port can take it");
            return Some(Address::Refused);
        };
        let (owner, taken) = (owner.record.name(), Address::Taken(owner.record.name().to_owned()));
        if taken != record.address {
            warn!(port = name, %mac, owner, "another port has its address");
        }
        Some(taken)
    }

    /// Gives each guest that may have one a queue of an uplink, as far as there are free ones.
    pub(super) fn assign_queues(&mut self) {
        let mut ports = self.ports.iter_mut();
        let found = ports.find_map(|(id, port)| Some((*id, port.record.guest_queues.take()?)));
        let Some((id, mut queues)) = found else { return };
        if let Some(uplink) = self.ports.get(&id) {
            for receiver in self.ports.values().filter_map(PluggedPort::receiver) {
                queues.assign(&receiver, &self.host.datapath, &uplink.record.wrappers);
            }
        }
        if let Some(uplink) = self.ports.get_mut(&id) {
            uplink.record.guest_queues = Some(queues);
        }
    }

    /// Takes a guest's queue of an uplink away.
    pub(super) fn release_queue(&mut self, id: PortId) {
        let guest = self.ports.get(&id).and_then(|port| port.source.guest());
        let Some(vif) = guest.map(|(vif, _)| vif) else { return };
        for port in self.ports.values_mut() {
            if let Some(queues) = &mut port.record.guest_queues {
                queues.release(vif, &self.host.datapath);
            }
        }
    }

    /// Takes away all queues that guests have of an uplink.
    pub(super) fn release_queues_of(&mut self, id: PortId) {
        let taken = self.ports.get_mut(&id).and_then(|port| port.record.guest_queues.take());
        let Some(mut queues) = taken else { return };
        for (vif, _) in self.ports.values().filter_map(|port| port.source.guest()) {
            queues.release(vif, &self.host.datapath);
        }
        if let Some(port) = self.ports.get_mut(&id) {
            port.record.guest_queues = Some(queues);
        }
    }

    /// Makes the mirrors those of the configuration. `new` are those of them that were started already.
    pub(super) fn set_mirrors(&mut self, new: Vec<PluggedMirror>) {
        let datapath = &self.host.datapath;
        let gone = mirrors::set(&mut self.mirrors, new, &self.host.config, datapath);
        self.refresh_mirrors();
        // Before anybody hears of it, and sends frames.
        self.refresh_wrappers();
        mirrors::remove(gone, &self.host.datapath);
    }

    /// Gives each port its role, if it has another one. A port that comes has none.
    pub(super) fn refresh_mirrors(&mut self) {
        for PluggedPort { record, .. } in self.ports.values_mut() {
            let Record { identity, wrappers, port, address, .. } = record;
            let role = role_of(&identity.name, &self.mirrors);
            if wrappers.set_role(role, &self.host.datapath, port.as_deref()) {
                *address = Address::Untaught;
            }
        }
        self.teach_addresses();
    }

    /// Puts wrappers around ports that need them now, and takes off those that are not needed any
    /// more.
    pub(super) fn refresh_wrappers(&mut self) {
        for PluggedPort { record, .. } in self.ports.values_mut() {
            record.wrappers.refresh(&self.host.datapath, record.port.as_deref());
        }
    }

    /// Allows captures, or forbids them and ends those that run.
    pub(super) fn allow_captures(&mut self, allowed: bool) {
        for PluggedPort { record, .. } in self.ports.values_mut() {
            let port = record.port.as_deref();
            record.wrappers.allow_capture(allowed, &self.host.datapath, port);
        }
    }
}
