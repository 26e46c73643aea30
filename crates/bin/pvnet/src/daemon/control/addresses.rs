//! The addresses of guests, which the switch is taught.

use std::sync::Arc;

use datapath::{Port, TeachError};
use tracing::warn;

use crate::daemon::backends::VifId;
use crate::daemon::control::{Control, Interface};

impl Control {
    /// Teaches the switch a guest's address. A guest that has the same address and was faster keeps it.
    pub(super) fn teach(&mut self, id: VifId) {
        let Some(interface) = self.interfaces.get(&id) else { return };
        let Some(port) = interface.port.as_deref() else { return };
        let mac = interface.backend.mac();
        let taught = self.datapath.teach(port.id(), mac);
        let has_address = taught.is_ok();
        let owner = match taught {
            Ok(()) => None,
            Err(TeachError::Taken(other)) => {
                let has_it = |port: &Arc<Port>| port.id() == other;
                let mut others = self.interfaces.values();
                let owner = others.find(|owner| owner.port.as_ref().is_some_and(has_it));
                owner.map(|owner| owner.name.clone())
            }
            Err(error) => {
                warn!(guest = interface.name, %mac, %error, "its address can be taken");
                None
            }
        };
        if let Some(owner) = &owner
            && interface.address_owner.as_ref() != Some(owner)
        {
            warn!(guest = interface.name, %mac, owner, "another guest has its address");
        }
        if let Some(interface) = self.interfaces.get_mut(&id) {
            interface.address_owner = owner;
            interface.has_address = has_address;
        }
    }

    /// Teaches the addresses that another guest had, which may have gone.
    pub(super) fn teach_waiting(&mut self) {
        let waits = |interface: &Interface| interface.address_owner.is_some();
        let waiting = self.interfaces.iter().filter(|(_, interface)| waits(interface));
        let waiting: Vec<_> = waiting.map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|id| self.teach(id));
    }
}
