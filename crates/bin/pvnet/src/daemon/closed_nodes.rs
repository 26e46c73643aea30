//! Backends in a driver domain that are closed: their nodes stay until the toolstack has seen that.

use std::collections::BTreeMap;
use std::time::Instant;

use netback::{CLOSED_FOR, remove_closed};
use tracing::warn;
use xenstore::Store;

use crate::daemon::backends::{Backends, VifId};

/// The closed backends, and since when each is, or when the store last refused to remove its nodes.
#[derive(Debug, Default)]
pub(super) struct ClosedNodes(BTreeMap<VifId, Instant>);

impl ClosedNodes {
    /// Notes that a backend is closed, if this domain must remove its nodes. The first note counts.
    pub(super) fn note(&mut self, backends: &Backends, id: VifId, now: Instant) {
        if backends.must_be_removed() {
            self.0.entry(id).or_insert(now);
        }
    }

    /// The toolstack wants the backend, or has removed it.
    pub(super) fn forget(&mut self, id: VifId) {
        self.0.remove(&id);
    }

    /// Removes the nodes that the toolstack has had the time to see. Those that the store refuses to remove are tried again after as
    /// long: `xl` waits for their end.
    pub(super) fn remove_due(&mut self, store: &dyn Store, backends: &Backends, now: Instant) {
        self.0.retain(|id, since| {
            if now.saturating_duration_since(*since) < CLOSED_FOR {
                return true;
            }
            *since = now;
            !remove(store, backends, *id)
        });
    }

    /// Removes all: nobody does later.
    pub(super) fn remove_all(&mut self, store: &dyn Store, backends: &Backends) {
        for (id, _) in std::mem::take(&mut self.0) {
            remove(store, backends, id);
        }
    }
}

/// Removes the nodes of a closed backend, unless the toolstack has or wants them. Returns whether the store did not refuse it.
fn remove(store: &dyn Store, backends: &Backends, id: VifId) -> bool {
    let removed = remove_closed(store, &backends.path(id));
    if let Err(error) = &removed {
        warn!(vif = %id, %error, "cannot remove the nodes of a closed backend");
    }
    removed.is_ok()
}

#[cfg(test)]
mod tests {
    use hypervisor::DomId;
    use machine::Machine;
    use xenstore::VifNodes;

    use super::*;

    const OWN: DomId = DomId(5);

    fn id(handle: u32) -> VifId {
        VifId { domain: DomId(7), handle }
    }

    #[test]
    fn the_toolstack_has_the_time_to_see_that_a_backend_is_closed() {
        let machine = Machine::new();
        let toolstack = machine.store().connect(DomId(0));
        let store = machine.store().connect(OWN);
        let backends = Backends::new(OWN, "vif");
        let state = |id| format!("{}/state", backends.path(id));
        let closed = |handle: u32, online: &str| {
            let (kind, domain) = ("vif".to_owned(), DomId(7));
            let nodes = VifNodes { backend: OWN, kind, domain, handle };
            nodes.create(&toolstack, "02:00:00:00:00:01").unwrap();
            let path = backends.path(id(handle));
            toolstack.write(None, &format!("{path}/online"), online).unwrap();
            toolstack.write(None, &state(id(handle)), "6").unwrap();
        };
        let is_there = |handle| toolstack.read(None, &state(id(handle))).is_ok();
        let now = Instant::now();
        let mut nodes = ClosedNodes::default();
        for handle in 0..4 {
            closed(handle, "0");
            nodes.note(&backends, id(handle), now);
        }
        // A daemon that finds it again does not put it off.
        nodes.note(&backends, id(0), now + CLOSED_FOR / 2);
        nodes.remove_due(&store, &backends, now + CLOSED_FOR / 2);
        assert!(is_there(0), "libxl may not have read it yet");
        // Three whose nodes the toolstack has removed, and perhaps made again.
        toolstack.remove(None, &backends.path(id(1))).unwrap();
        closed(2, "1");
        nodes.forget(id(3));
        nodes.remove_due(&store, &backends, now + CLOSED_FOR);
        assert_eq!([0, 1, 2, 3].map(is_there), [false, false, true, true]);
        closed(0, "0");
        nodes.remove_due(&store, &backends, now + 2 * CLOSED_FOR);
        assert!(is_there(0), "each is removed once");
        // A store that refuses is asked again. This one has too many transactions.
        let open: Vec<_> = std::iter::from_fn(|| store.begin().ok()).collect();
        nodes.note(&backends, id(0), now);
        nodes.remove_due(&store, &backends, now + CLOSED_FOR);
        assert!(is_there(0));
        open.into_iter().for_each(|one| store.end(one, false).unwrap());
        nodes.remove_due(&store, &backends, now + CLOSED_FOR * 3 / 2);
        assert!(is_there(0), "not at once");
        nodes.remove_due(&store, &backends, now + 2 * CLOSED_FOR);
        assert!(!is_there(0), "forgotten");
        closed(0, "0");
        nodes.note(&backends, id(0), now);
        nodes.remove_all(&store, &backends);
        assert!(!is_there(0));
    }

    #[test]
    fn libxl_removes_the_nodes_of_domain_0() {
        for (own, kind, must) in
            [(OWN, "vif", true), (DomId(0), "vif", false), (OWN, "pvnet", false)]
        {
            assert_eq!(Backends::new(own, kind).must_be_removed(), must, "{own} {kind}");
        }
    }
}
