//! Interfaces that are found in the store, and those that are gone from it.

use std::collections::BTreeSet;
use std::time::Instant;

use tracing::{info, warn};
use xenstore::WatchEvent;

use crate::daemon::backends::{Backends, Presence, VifId};
use crate::daemon::control::Control;
use crate::daemon::event::NewInterface;
use crate::daemon::ports::vif::with_addresses;
use crate::daemon::ports::{PortEvent, PortId};

impl Control {
    /// Follows a change in the store.
    pub(super) fn store_changed(&mut self, event: &WatchEvent) {
        if let Ok(id) = event.token.parse() {
            self.serve_port(PortId::Vif(id), PortEvent::Frontend);
        } else if event.token == Backends::TOKEN {
            match self.host.platform.backends().parse(&event.path) {
                Some(id) if Backends::is_wish(&event.path) => {
                    self.serve_port(PortId::Vif(id), PortEvent::Wish);
                }
                Some(id) => self.discover(id),
                None => self.discover_all(),
            }
        }
    }

    /// Discovers all backends: after the start, and when the store has come back.
    pub(super) fn discover_all(&mut self) {
        match self.host.platform.backends().list(self.host.store()) {
            Ok(present) => {
                let served = self.ports.values().filter_map(|port| port.source.guest());
                let served = served.map(|(id, _)| id);
                let ids: BTreeSet<_> = served.chain(present).collect();
                ids.into_iter().for_each(|id| self.discover(id));
            }
            Err(error) => warn!(%error, "cannot look for interfaces"),
        }
    }

    /// Serves an interface that the toolstack has created, or forgets one that it has removed.
    fn discover(&mut self, id: VifId) {
        let port = PortId::Vif(id);
        match self.host.platform.backends().presence(self.host.store(), id) {
            Ok(presence) => match (presence, self.ports.contains_key(&port)) {
                (Presence::Wanted, false) => {
                    self.closed.forget(id);
                    self.plug_named(id);
                }
                (Presence::Gone, true) => {
                    let guest = self.ports.get(&port).map(|one| one.record.name());
                    info!(vif = %id, guest, "removed");
                    self.unplug(port);
                }
                (Presence::Wanted, true) => self.serve_port(port, PortEvent::Script),
                (Presence::Leaving, true) => {}
                // An earlier daemon has closed it.
                (Presence::Leaving, false) => self.note_closed(id),
                (Presence::Gone, false) => self.closed.forget(id),
            },
            // Frames are carried on while the store is away.
            Err(error) => warn!(vif = %id, %error, "cannot look for an interface"),
        }
    }

    /// Notes that a backend is closed.
    pub(super) fn note_closed(&mut self, id: VifId) {
        let platform = &self.host.platform;
        if platform.ends_with_its_node() {
            self.closed.note(platform.backends(), id, Instant::now());
        }
    }

    /// Removes the nodes of closed backends: those that the toolstack has had the time to see, or all.
    pub(super) fn remove_closed(&mut self, all: bool) {
        let platform = &self.host.platform;
        let (store, backends) = (&**platform.store(), platform.backends());
        match all {
            true => self.closed.remove_all(store, backends),
            false => self.closed.remove_due(store, backends, Instant::now()),
        }
    }

    /// Serves an interface that was found in the store.
    fn plug_named(&mut self, id: VifId) {
        let name = self.host.platform.backends().name(self.host.store(), id);
        let guest = self.host.config.guest(&name).unwrap_or_default();
        let vif = guest.vifs.first().cloned().unwrap_or_default();
        let vif = with_addresses(id, vif, &self.host);
        let plugged =
            vif.and_then(|vif| self.plug(NewInterface { id, guest, name: name.clone(), vif }));
        if let Err(reason) = plugged {
            warn!(vif = %id, guest = name, reason, "not served");
        }
    }
}
