//! Ports outside of the switch: pairs, of which each takes all frames of the other, and the targets of mirrors.
//!
//! A guest whose interface has a device on the host is such a pair. The network behind that device decides where frames go, so
//! nothing is looked up, learnt or flooded here. All else is as for ports in the switch. A mirror's target gets copies and nothing else:
//! it is in the list of ports, and not in the switch.

use std::sync::Arc;

use switch::{Membership, PortId};

use crate::command::Command;
use crate::port::{MemorySleep, Peer, Port, PortMemory};
use crate::shared::Attachment;
use crate::{Datapath, PortParts};

impl Datapath {
    /// As [`attach`](Self::attach), outside of the switch: all frames of the port go to its peer, and nothing else comes to it.
    /// `peer` is a port outside of the switch whose peer it becomes; [`pair`](Self::pair) gives it one later. Before it has one, and
    /// after its peer is detached, its frames are dropped. Both are one guest's, so the rules for frames between guests do not hold: its
    /// memory decides only whether workers are watched beside it.
    pub fn attach_apart(&self, name: &str, parts: PortParts, peer: Option<&Port>) -> Arc<Port> {
        let own = Peer::none();
        if let Some(peer) = peer {
            own.set(peer.id(), peer.serial());
        }
        let sleep = match parts.memory.sleep {
            MemorySleep::Never => MemorySleep::Never,
            MemorySleep::Swapped | MemorySleep::AtWill => MemorySleep::Swapped,
        };
        let memory = PortMemory { sleep, ..PortMemory::default() };
        let port = self.add(name, PortParts { memory, ..parts }, Attachment::Pair(own));
        if let Some(peer) = peer {
            self.pair(&port, peer);
        }
        port
    }

    /// Makes two ports each other's peer, in place of those that they had. Ports in the switch have none, and stay as they are.
    pub fn pair(&self, one: &Port, other: &Port) {
        if let (Some(of_one), Some(of_other)) = (one.peer(), other.peer()) {
            of_one.set(other.id(), other.serial());
            of_other.set(one.id(), one.serial());
        }
    }

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
