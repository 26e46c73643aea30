//! Interfaces that are found in the store, and those that are gone from it.

use std::collections::BTreeSet;
use std::time::Instant;

use tracing::{info, warn};
use xenstore::WatchEvent;

use crate::config::Vif;
use crate::daemon::backends::{Backends, Presence, VifId};
use crate::daemon::control::Control;
use crate::daemon::event::NewInterface;

impl Control {
    /// Follows a change in the store.
    pub(super) fn store_changed(&mut self, event: &WatchEvent) {
        if let Ok(id) = event.token.parse() {
            self.frontend_changed(id);
        } else if event.token == Backends::TOKEN {
            match self.platform.backends().parse(&event.path) {
                Some(id) if Backends::is_wish(&event.path) => self.toolstack_changed(id),
                Some(id) => self.look_for(id),
                None => self.look_for_all(),
            }
        }
    }

    /// Looks for all backends: after the start, and when the store has come back.
    pub(super) fn look_for_all(&mut self) {
        match self.platform.backends().list(self.store()) {
            Ok(present) => {
                let served = self.interfaces.keys().copied();
                let ids: BTreeSet<_> = served.chain(present).collect();
                ids.into_iter().for_each(|id| self.look_for(id));
            }
            Err(error) => warn!(%error, "looking for interfaces"),
        }
    }

    /// Serves an interface that the toolstack has created, or forgets one that it has removed.
    fn look_for(&mut self, id: VifId) {
        match self.platform.backends().presence(self.store(), id) {
            Ok(presence) => match (presence, self.interfaces.contains_key(&id)) {
                (Presence::Wanted, false) => {
                    self.closed.forget(id);
                    self.plug_named(id);
                }
                (Presence::Gone, true) => {
                    let guest = self.interfaces.get(&id).map(|one| one.name.as_str());
                    info!(vif = %id, guest, "removed");
                    self.unplug(id);
                }
                (Presence::Wanted, true) => self.script_has_run(id),
                (Presence::Leaving, true) => {}
                // An earlier daemon has closed it.
                (Presence::Leaving, false) => self.note_closed(id),
                (Presence::Gone, false) => self.closed.forget(id),
            },
            // Frames are carried on while the store is away.
            Err(error) => warn!(vif = %id, %error, "looking for an interface"),
        }
    }

    /// Notes that a backend is closed.
    pub(super) fn note_closed(&mut self, id: VifId) {
        let platform = self.platform.clone();
        if platform.ends_with_its_node() {
            self.closed.note(platform.backends(), id, Instant::now());
        }
    }

    /// Removes the nodes of closed backends: those that the toolstack has had the time to see, or all.
    pub(super) fn remove_closed(&mut self, all: bool) {
        let platform = self.platform.clone();
        let (store, backends) = (&**platform.store(), platform.backends());
        match all {
            true => self.closed.remove_all(store, backends),
            false => self.closed.remove_due(store, backends, Instant::now()),
        }
    }

    /// Serves an interface that was found in the store.
    fn plug_named(&mut self, id: VifId) {
        let name = self.platform.backends().name(self.store(), id);
        let guest = self.config.guest(&name).unwrap_or_default();
        let vif = self.with_addresses(id, guest.vifs.first().cloned().unwrap_or_default());
        let plugged =
            vif.and_then(|vif| self.plug(NewInterface { id, guest, name: name.clone(), vif }));
        if let Err(reason) = plugged {
            warn!(vif = %id, guest = name, reason, "not served");
        }
    }

    /// Adds the toolstack's addresses if the configuration wants addresses checked and has none.
    pub(super) fn with_addresses(&self, id: VifId, vif: Vif) -> Result<Vif, String> {
        if !vif.wants_addresses() {
            return Ok(vif);
        }
        let text = self.platform.backends().addresses(self.store(), id);
        let text = text.map_err(|error| error.to_string())?;
        let addresses = text.split_whitespace().map(str::parse).collect::<Result<_, _>>();
        let guard_addresses = addresses.map_err(|error| format!("the toolstack's ip: {error}"))?;
        Ok(Vif { guard_addresses, ..vif })
    }
}
