//! Ports that get the copies of a mirror and nothing else. They are in the list of ports, and not in the switch.

use std::sync::Arc;

use switch::{Membership, PortId};

use crate::command::Command;
use crate::port::Port;
use crate::shared::Attachment;
use crate::{Datapath, PortParts};

impl Datapath {
    /// As [`attach_member`](Self::attach_member), for a port that is a mirror's [target](Self::set_target) from the beginning.
    pub fn attach_target(&self, name: &str, parts: PortParts) -> Arc<Port> {
        self.add(name, parts, Attachment::Target)
    }

    /// Takes a port out of the switch while it is in use: it gets what a [mirror's port sends to it](Self::aim) and nothing else, and its
    /// frames are dropped. Or puts it back, with this membership; its addresses must be taught again. When this returns, no worker
    /// sends to it or takes from it as before.
    pub fn set_target(&self, port: PortId, is_target: bool, membership: Option<Membership>) {
        self.shared.set_target(port, is_target, membership);
        self.ask(&self.all_workers(), |done| Command::Synchronise { port, done });
        self.shared.forget(port, false);
    }

    /// Has a port outside of the switch send all its frames to another one, which stays where it is.
    pub fn aim(&self, port: &Port, to: &Port) {
        if let Some(peer) = port.peer() {
            peer.set(to.id(), to.serial());
        }
    }

    /// Ends [that](Self::aim), unless the port sends to a third one by now.
    pub fn aim_away(&self, port: &Port, from: &Port) {
        if let Some(peer) = port.peer() {
            peer.clear_if(from.id(), from.serial());
        }
    }
}
