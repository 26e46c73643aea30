//! What the toolstack and its hotplug script have to say about a backend's device.

use wire::netif::keys;
use xenstore::{Store, StoreError};

use crate::daemon::backends::{Backends, VifId};

/// The script that puts the device into its place, by path.
const SCRIPT: &str = "script";
/// What the script has done.
const STATUS: &str = "hotplug-status";
/// It has put the device into its place.
const CONNECTED: &str = "connected";
/// The name that the script gives the device.
const NAME: &str = "vifname";

impl Backends {
    /// The names that the device of an interface may have by now, and at last the one that a new device gets.
    pub(super) fn device_names(&self, store: &dyn Store, id: VifId) -> Vec<String> {
        let renamed = self.key(store, id, NAME).filter(|name| !name.is_empty());
        // Before, an interface of that name is another one.
        let renamed = renamed.filter(|_| self.has_script_run(store, id));
        renamed.into_iter().chain([format!("vif{}.{}", id.domain, id.handle)]).collect()
    }

    /// The MTU that the toolstack wants the device to have.
    pub(super) fn mtu(&self, store: &dyn Store, id: VifId) -> Option<u16> {
        self.key(store, id, keys::MTU)?.trim().parse().ok()
    }

    /// Whether a script has yet to put the device into its place. The frontend must not connect before.
    pub(super) fn waits_for_script(&self, store: &dyn Store, id: VifId) -> bool {
        let has_script = self.key(store, id, SCRIPT).is_some_and(|script| !script.is_empty());
        has_script && !self.has_script_run(store, id)
    }

    fn has_script_run(&self, store: &dyn Store, id: VifId) -> bool {
        self.key(store, id, STATUS).as_deref() == Some(CONNECTED)
    }

    /// Tells the frontend the MTU of its network, as Xen's scripts do.
    pub(super) fn tell_mtu(
        &self,
        store: &dyn Store,
        id: VifId,
        mtu: u32,
    ) -> Result<(), StoreError> {
        let frontend = store.read(None, &format!("{}/frontend", self.path(id)))?;
        store.write(None, &format!("{frontend}/{}", keys::MTU), &mtu.to_string())
    }

    fn key(&self, store: &dyn Store, id: VifId, key: &str) -> Option<String> {
        store.read(None, &format!("{}/{key}", self.path(id))).ok()
    }
}

#[cfg(test)]
mod tests {
    use hypervisor::DomId;
    use machine::Machine;
    use machine::toolstack::{create_domain, create_vif};

    use super::*;

    #[test]
    fn a_script_is_waited_for_where_there_is_one() {
        let store = Machine::new().store().connect(DomId(0));
        let backends = Backends::new(DomId(0), "vif");
        create_domain(&store, DomId(7), "web").unwrap();
        create_vif(&store, DomId(7), 1, "02:00:00:00:00:01").unwrap();
        let id = VifId { domain: DomId(7), handle: 1 };
        let write = |key: &str, value: &str| {
            store.write(None, &format!("{}/{key}", backends.path(id)), value).unwrap();
        };
        let waits = || backends.waits_for_script(&store, id);
        assert!(!waits());
        write("script", "/etc/xen/scripts/vif-bridge");
        assert!(waits());
        write("hotplug-status", "error");
        assert!(waits());
        write("hotplug-status", "connected");
        assert!(!waits());
        write("vifname", "dmz");
        assert_eq!(backends.device_names(&store, id), ["dmz", "vif7.1"]);
        write("hotplug-status", "error");
        assert_eq!(backends.device_names(&store, id), ["vif7.1"]);
        assert_eq!(backends.mtu(&store, id), None);
        write("mtu", "9000");
        assert_eq!(backends.mtu(&store, id), Some(9000));
        backends.tell_mtu(&store, id, 1442).unwrap();
        let told = store.read(None, "/local/domain/7/device/vif/1/mtu");
        assert_eq!(told.as_deref(), Ok("1442"));
    }
}
