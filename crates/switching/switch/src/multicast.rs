//! IGMP and MLD snooping: which ports get the frames of a multicast group.
//!
//! ```text
//!   report, leave, query ──► Message ──► State ──publish──► Groups ◄── lookup per multicast frame
//!        private header                 one lock            a snapshot per round
//! ```
//!
//! A port misses a group only if it is known not to want it: a querier behind a router port has asked the port twice, and the
//! port has not reported the group. So without a querier everything is flooded, and what a port sends decides only what the same
//! port gets. Groups are told apart by their MAC addresses, per VLAN.
//!
//! [`Snooping`] is shared by all workers. Messages of IGMP and MLD take its lock, and so does a worker's first lookup after a change.

mod address;
mod groups;
mod message;
mod state;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use frame::Frame;
use wire::headers::Transport;

use crate::{PortId, PortSet};

pub use groups::{Groups, Reach, Router};
pub use state::{CHANGES_PER_SECOND, GROUPS_MAX, GROUPS_PER_PORT, SnoopingCounts};

use address::{family_of, family_of_message};
use groups::Domain;
use message::{Message, message};
use state::{Origin, State};

/// The memberships of all ports, and the snapshot of them that workers use.
#[derive(Debug, Default)]
pub struct Snooping {
    known: Mutex<Known>,
    /// Counts the changes.
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct Known {
    state: State,
    groups: Arc<Groups>,
    /// Whether `groups` is older than `state`.
    is_stale: bool,
}

/// A frame that came in, for which it is to be decided who gets it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a, 'p> {
    /// The frame.
    pub frame: &'a Frame,
    /// The port that it came from.
    pub port: PortId,
    /// Its VLAN; 0 for none.
    pub vlan: u16,
    /// The ports that it may reach there.
    pub ports: &'p PortSet,
    /// Whether it is checked for the first time: only then a message changes what is known.
    pub is_fresh: bool,
    /// The second at which it is checked.
    pub now: u32,
}

impl Snooping {
    /// Counts the changes: another value says that [`groups`](Self::groups) returns another snapshot.
    #[inline]
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The present snapshot. It is made here, and not with each change: a guest can report many groups in one turn of its queue.
    #[must_use]
    pub fn groups(&self) -> Arc<Groups> {
        let mut known = self.known();
        if std::mem::take(&mut known.is_stale) {
            known.groups = Arc::new(known.state.groups());
        }
        known.groups.clone()
    }

    /// Says whether routers are behind a port; by default none are.
    pub fn set_router(&self, port: PortId, router: Router) {
        self.change(|state| {
            state.set_router(port, router);
            true
        });
    }

    /// Forgets what a port has reported. With `is_gone`, also whether routers are behind it.
    pub fn forget(&self, port: PortId, is_gone: bool) {
        self.change(|state| {
            state.forget(port, is_gone);
            true
        });
    }

    /// Forgets what all ports have reported.
    pub fn reset(&self) {
        self.change(|state| {
            state.reset();
            true
        });
    }

    /// Drops memberships that have not been confirmed at second `now`. Call it about once a second.
    pub fn sweep(&self, now: u32) {
        self.change(|state| state.sweep(now));
    }

    /// How much is known.
    #[must_use]
    pub fn counts(&self) -> SnoopingCounts {
        self.known().state.counts()
    }

    /// Decides which of the ports that a multicast frame may reach get it. `groups` is the snapshot of the caller. A message changes what
    /// is known.
    pub fn route<'a>(&self, groups: &'a Groups, arrival: Arrival<'_, '_>) -> Reach<'a> {
        self.route_message(groups, arrival).unwrap_or_else(|| {
            let (vlan, group) = (arrival.vlan, arrival.frame.destination());
            let family = family_of(group);
            family.map_or(Reach::All, |family| groups.reach(Domain { vlan, family }, group))
        })
    }

    /// As [`route`](Self::route), for a frame to one station; none if it is no message, and may go where its address says.
    ///
    /// Hosts and routers accept a message in such a frame. A query would make a guest the querier of whoever gets it, and a report
    /// keep the receiver's own back. So both go only where they would go in a frame to a group.
    #[inline]
    pub fn route_unicast<'a>(
        &self,
        groups: &'a Groups,
        arrival: Arrival<'_, '_>,
    ) -> Option<Reach<'a>> {
        if matches!(arrival.frame.headers.transport, Transport::Tcp | Transport::Udp) {
            return None;
        }
        self.route_message(groups, arrival)
    }

    /// Who gets a message, whatever the address of its frame; none for other frames.
    fn route_message<'a>(
        &self,
        groups: &'a Groups,
        Arrival { frame, port, vlan, ports, is_fresh, now }: Arrival<'_, '_>,
    ) -> Option<Reach<'a>> {
        let message = message(frame)?;
        // Hosts and routers also accept a message in a broadcast, or at the address of another group.
        let domain = Domain { vlan, family: family_of_message(frame) };
        let reach = match &message {
            // A guest that queries would be taken for the querier: the other routers fall silent, and hosts answer to it.
            Message::Query { .. } if !groups.may_query(port) => return Some(Reach::Nowhere),
            Message::Query { .. } => Reach::All,
            // Other hosts must not see reports: those of version 2 would keep their own back.
            Message::Report { .. } => groups.routers(domain),
        };
        // A query to one station asks no port for all that is behind it.
        let asks_one =
            matches!(message, Message::Query { .. }) && !frame.destination().is_multicast();
        if is_fresh && !asks_one {
            self.change(|state| state.note(Origin { domain, port }, &message, ports, now));
        }
        Some(reach)
    }

    /// Makes a change, which says whether any port gets other groups then.
    fn change(&self, change: impl FnOnce(&mut State) -> bool) {
        let mut known = self.known();
        if change(&mut known.state) {
            known.is_stale = true;
            self.generation.fetch_add(1, Ordering::Release);
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
