//! What the toolstack wants of interfaces.

use control_socket::{IgnoredKey, ToolstackStatus};
use tracing::warn;

use crate::config::{Limits, Vif};
use crate::daemon::backends::VifId;
use crate::daemon::control::Control;

impl Control {
    /// The limits of an interface with these settings, and what became of what the toolstack wants. It is logged if it was not so
    /// before.
    pub(super) fn with_toolstack(
        &self,
        id: VifId,
        port: &str,
        vif: &Vif,
    ) -> (ToolstackStatus, Limits) {
        // Where a daemon admits its guests, there is no other toolstack.
        if !self.platform.ends_with_its_node() {
            return (ToolstackStatus::default(), vif.limit);
        }
        let wishes = self.platform.backends().wishes(self.store(), id);
        let has_device = self.config.device_of(vif, Some(port)).is_some();
        let (status, limits) = wishes.apply(vif.limit, has_device);
        let known = self.interfaces.get(&id).map(|interface| &interface.toolstack);
        let is_known =
            |ignored: &IgnoredKey| known.is_some_and(|one| one.ignored.contains(ignored));
        for ignored in status.ignored.iter().filter(|ignored| !is_known(ignored)) {
            warn!(guest = port, "{ignored}");
        }
        (status, limits)
    }

    /// The toolstack has changed what it wants of an interface.
    pub(super) fn toolstack_changed(&mut self, id: VifId) {
        if let Err(reason) = self.set_interface(id) {
            warn!(vif = %id, reason, "what the toolstack has changed");
        }
    }
}
