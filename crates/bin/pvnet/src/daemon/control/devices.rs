//! The devices on the host of guests that are not in the switch.

use std::sync::Arc;

use control_socket::Reason;
use datapath::Port;
use tracing::{info, warn};
use xenstore::XenbusState;

use crate::config::Vif;
use crate::daemon::backends::VifId;
use crate::daemon::control::Control;
use crate::daemon::device::{DeviceOptions, GuestDevice};

impl Control {
    /// Opens an interface's device, if it should have one, and says its MTU to a guest that has nobody else to say it. A guest in
    /// the switch is told what the configuration says.
    pub(super) fn open_device(
        &self,
        id: VifId,
        port: &str,
        vif: &Vif,
    ) -> Result<Option<GuestDevice>, String> {
        let (store, backends) = (self.store(), self.platform.backends());
        let Some(device) = self.config.device_of(vif, Some(port)) else {
            self.tell_mtu(id, port, self.config.mtu_of(vif).map(u32::from));
            return Ok(None);
        };
        let mut options = DeviceOptions::named(device, self.datapath.workers());
        let by_toolstack = self.platform.ends_with_its_node();
        if by_toolstack {
            options.names = backends.device_names(store, id);
            options.mtu = backends.mtu(store, id).or(options.mtu);
        }
        let device = GuestDevice::open(options, self.platform.device_services())?;
        info!(guest = port, device = device.name(), new = device.is_new(), "its device");
        self.tell_mtu(id, port, device.mtu().filter(|_| !by_toolstack));
        Ok(Some(device))
    }

    fn tell_mtu(&self, id: VifId, port: &str, mtu: Option<u32>) {
        let told = mtu.map(|mtu| self.platform.backends().tell_mtu(self.store(), id, mtu));
        if let Some(Err(error)) = told {
            warn!(guest = port, %error, "it is not told its MTU");
        }
    }

    /// An interface is gone. The toolstack wants its device gone too; one with a name of its own stays for the next guest.
    pub(super) fn abandon_device(&self, device: Option<GuestDevice>) {
        if let Some(device) = device.filter(|_| self.platform.ends_with_its_node()) {
            device.delete(&self.datapath);
        }
    }

    /// Whether a frontend could be connected, and a script has yet to put its device into its place.
    pub(super) fn waits_for_script(&mut self, id: VifId) -> bool {
        let Some(interface) = self.interfaces.get(&id) else { return false };
        let Some(device) = &interface.device else { return false };
        let store = self.store();
        let frontend = store.read(None, &format!("{}/state", interface.backend.frontend()));
        let is_ready = frontend.is_ok_and(|state| {
            XenbusState::parse(&state) == Some(XenbusState::Connected)
                && interface.backend.state() == XenbusState::InitWait
        });
        let waits = is_ready && self.platform.backends().waits_for_script(store, id);
        let reason = waits.then(|| Reason::WaitingForScript(device.name()));
        if let (Some(reason), Some(interface)) = (reason, self.interfaces.get_mut(&id)) {
            interface.reason = Some(reason);
        }
        waits
    }

    /// The toolstack has written something for an interface: perhaps that its script has run.
    pub(super) fn script_has_run(&mut self, id: VifId) {
        let interface = self.interfaces.get(&id);
        let waits = |interface: &super::Interface| {
            matches!(interface.reason, Some(Reason::WaitingForScript(_)))
        };
        if interface.is_some_and(waits) {
            self.frontend_changed(id);
        }
    }

    /// Looks whether all devices are there.
    pub(super) fn look_for_devices(&mut self) {
        for device in self.interfaces.values_mut().filter_map(|interface| interface.device.as_mut())
        {
            device.look(&self.datapath);
        }
        for machine in &mut self.machines {
            machine.look_for_device(&self.datapath);
        }
    }

    /// A port broke, which may be a device's.
    pub(super) fn fail_device(&mut self, port: &Arc<Port>, reason: &str) {
        for device in self.interfaces.values_mut().filter_map(|interface| interface.device.as_mut())
        {
            device.fail(port, reason, &self.datapath);
        }
        for machine in &mut self.machines {
            machine.fail_device(port, reason, &self.datapath);
        }
    }
}
