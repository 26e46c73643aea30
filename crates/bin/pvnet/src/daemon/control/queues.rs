//! The queues of uplinks that guests have.

use crate::daemon::backends::VifId;
use crate::daemon::control::{Control, Interface};
use crate::daemon::guest_queues::Receiver;
use crate::daemon::uplinks::PluggedUplink;

impl Control {
    /// Gives each guest that may have one a queue of an uplink, as far as there are free ones. Only a guest that has
    /// its address may: frames in its queue are for nobody else.
    pub(super) fn assign_queues(&mut self) {
        let mut uplinks = self.uplinks.iter_mut();
        let Some(uplink) = uplinks.find(|uplink| uplink.guest_queues.is_some()) else { return };
        let PluggedUplink { guest_queues: Some(queues), wrappers, .. } = uplink else { return };
        for (id, interface) in self.interfaces.iter().filter(|(_, interface)| interface.lends) {
            if let (Some(port), true) = (&interface.port, interface.has_address) {
                let Interface { guest, name, backend, .. } = interface;
                let guest = &guest.name;
                let receiver = Receiver { id: *id, guest, name, mac: backend.mac(), port };
                queues.assign(&receiver, &self.datapath, wrappers);
            }
        }
    }

    /// Takes a guest's queue of an uplink away.
    pub(super) fn release_queue(&mut self, id: VifId) {
        for queues in self.uplinks.iter_mut().filter_map(|uplink| uplink.guest_queues.as_mut()) {
            queues.release(id, &self.datapath);
        }
    }
}
