//! Backends in a driver domain that are closed: their nodes stay until the toolstack has seen that.

use std::collections::BTreeMap;
use std::time::Instant;

use netback::{CLOSED_FOR, remove_closed};
use tracing::warn;
use xenstore::Store;

use crate::daemon::backends::{Backends, VifId};

/// The closed backends, and since when each is.
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

    /// Removes the nodes that the toolstack has had the time to see.
    pub(super) fn remove_due(&mut self, store: &dyn Store, backends: &Backends, now: Instant) {
        self.remove(store, backends, |since| now.saturating_duration_since(since) >= CLOSED_FOR);
    }

    /// Removes all: nobody does later.
    pub(super) fn remove_all(&mut self, store: &dyn Store, backends: &Backends) {
        self.remove(store, backends, |_| true);
    }

    fn remove(&mut self, store: &dyn Store, backends: &Backends, is_due: impl Fn(Instant) -> bool) {
        self.0.retain(|id, since| {
            let due = is_due(*since);
            if due && let Err(error) = remove_closed(store, &backends.path(*id)) {
                warn!(vif = %id, %error, "removing the nodes of a closed backend");
            }
            !due
        });
    }
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
        // A daemon that looks at it again does not put it off.
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
