//! IGMP and MLD snooping: which ports get the frames of a multicast group.
//!
//! ```text
//!   report, leave, query ──► Message ──► State ──publish──► Groups ◄── look-up per multicast frame
//!        private header                 one lock            a snapshot, no lock
//! ```
//!
//! A port misses a group only if that is known to be right: a querier behind a router port has asked the port twice, and the
//! port has not reported the group. So without a querier everything is flooded, and what a port sends decides only what the same
//! port gets. Groups are told apart by their MAC addresses, per VLAN.
//!
//! [`Snooping`] is shared by all workers. Only messages of IGMP and MLD take its lock.

mod address;
mod age;
mod groups;
mod message;
mod state;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use frame::Frame;

use crate::{PortId, PortSet};

pub use groups::{Groups, Reach, Router};
pub use state::{CHANGES_PER_SECOND, GROUPS_MAX, GROUPS_PER_PORT, SnoopingCounts};

use address::{family_of, family_of_message};
use groups::Domain;
use message::{Message, message};
use state::State;

/// The memberships of all ports, and the snapshot of them that workers use.
#[derive(Debug, Default)]
pub struct Snooping {
    state: Mutex<State>,
    published: RwLock<Arc<Groups>>,
    /// Counts the snapshots.
    generation: AtomicU64,
}

impl Snooping {
    /// Counts the snapshots: another value says that [`groups`](Self::groups) returns another one.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The present snapshot.
    #[must_use]
    pub fn groups(&self) -> Arc<Groups> {
        self.published.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says whether routers are behind a port. A port of which nothing was said has none.
    pub fn set_router(&self, port: PortId, router: Router) {
        let mut state = self.state();
        state.set_router(port, router);
        self.publish(&state);
    }

    /// Forgets what a port has reported. With `is_gone`, also whether routers are behind it.
    pub fn forget(&self, port: PortId, is_gone: bool) {
        let mut state = self.state();
        state.forget(port, is_gone);
        self.publish(&state);
    }

    /// Forgets what all ports have reported.
    pub fn reset(&self) {
        let mut state = self.state();
        state.reset();
        self.publish(&state);
    }

    /// Drops memberships that have not been confirmed at second `now`. Call it about once a second.
    pub fn sweep(&self, now: u32) {
        let mut state = self.state();
        if state.sweep(now) {
            self.publish(&state);
        }
    }

    /// How much is known.
    #[must_use]
    pub fn counts(&self) -> SnoopingCounts {
        self.state().counts()
    }

    /// Decides which of the ports that a multicast frame may reach get it. `groups` is the snapshot of the caller; `ports` are those that
    /// the frame may reach in its VLAN, which is 0 for none. A fresh frame that is a message changes what is known, at second `now`.
    pub fn route<'a>(
        &self,
        groups: &'a Groups,
        (vlan, ports): (u16, &PortSet),
        (port, frame): (PortId, &Frame),
        is_fresh: bool,
        now: u32,
    ) -> Reach<'a> {
        let group = frame.destination();
        let Some(message) = message(frame) else {
            let family = family_of(group);
            return family
                .map_or(Reach::All, |family| groups.reach(Domain { vlan, family }, group));
        };
        // Hosts and routers also accept a message in a broadcast, or at the address of another group.
        let domain = Domain { vlan, family: family_of_message(frame) };
        let reach = match &message {
            // A guest that queries would be taken for the querier: the other routers fall silent, and hosts answer to it.
            Message::Query { .. } if !groups.may_query(port) => return Reach::Nowhere,
            Message::Query { .. } => Reach::All,
            // Other hosts must not see reports: those of version 2 would keep their own back.
            Message::Report { .. } => groups.routers(domain),
        };
        if is_fresh {
            let mut state = self.state();
            if state.note(domain, port, &message, ports, now) {
                self.publish(&state);
            }
        }
        reach
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes what has changed. The caller holds the lock of the state.
    fn publish(&self, state: &State) {
        let groups = Arc::new(state.groups());
        *self.published.write().unwrap_or_else(PoisonError::into_inner) = groups;
        self.generation.fetch_add(1, Ordering::Release);
    }
}
