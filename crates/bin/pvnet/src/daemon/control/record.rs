//! Which ports are up.

use std::time::Instant;

use super::Control;
use crate::daemon::virtual_machines::VirtualMachine;

impl Control {
    /// Records which guests' ports are up, and carries frames once those of the last daemon are.
    pub(super) fn record_ports(&mut self) {
        let interfaces = self.interfaces.values().filter(|interface| interface.port.is_some());
        let machines = self.machines.iter().filter(|machine| machine.port.is_some());
        let names = interfaces.map(|interface| interface.name.as_str());
        let names = names.chain(machines.map(VirtualMachine::name)).collect();
        if self.ports.note(names, Instant::now()) {
            self.datapath.resume();
        }
    }
}
