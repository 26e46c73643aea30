//! What lies around the queues of all ports, and changes while they are in use: captures and mirrors.

use crate::daemon::control::Control;
use crate::daemon::mirrors::{self, PluggedMirror, role_of};

impl Control {
    /// Makes the mirrors those of the configuration, of which `new` were started already.
    pub(super) fn set_mirrors(&mut self, new: Vec<PluggedMirror>) {
        let gone = mirrors::set(&mut self.mirrors, new, &self.config, &self.datapath);
        self.refresh_mirrors();
        // Before anybody hears of it, and sends frames.
        self.refresh_wrappers();
        mirrors::remove(gone, &self.datapath);
    }

    /// Gives each port its role, if it has another one. A port that comes has none.
    pub(super) fn refresh_mirrors(&mut self) {
        let Self { mirrors, datapath, interfaces, machines, uplinks, .. } = self;
        let mut back = Vec::new();
        for (id, interface) in interfaces {
            let role = role_of(&interface.name, mirrors);
            if interface.wrappers.set_role(role, datapath, interface.port.as_deref()) {
                back.push(*id);
            }
        }
        for machine in machines {
            machine.set_role(role_of(machine.name(), mirrors), datapath);
        }
        for uplink in uplinks {
            let role = role_of(uplink.name(), mirrors);
            // No address of an uplink is taught.
            let _ = uplink.wrappers.set_role(role, datapath, uplink.port.as_deref());
        }
        back.into_iter().for_each(|id| self.teach(id));
    }

    /// Puts wrappers around ports that need them now, and takes off those that are not needed any
    /// more.
    pub(super) fn refresh_wrappers(&mut self) {
        for interface in self.interfaces.values_mut() {
            interface.wrappers.refresh(&self.datapath, interface.port.as_deref());
        }
        for machine in &mut self.machines {
            machine.wrappers.refresh(&self.datapath, machine.port.as_deref());
        }
        for uplink in &mut self.uplinks {
            uplink.wrappers.refresh(&self.datapath, uplink.port.as_deref());
        }
    }
}
