//! The multicast groups that a frontend wants: netif's multicast control.
//!
//! A frontend that has asked for it gets the groups in its list, and broadcasts. It adds and removes groups by extras on its TX
//! rings. The list belongs to the interface; each RX queue has a copy, which it refreshes when the list has changed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use wire::ethernet::MacAddr;

/// The most groups in a list, as in Linux's netback.
pub const MULTICAST_GROUPS_MAX: usize = 64;

/// What an extra asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListChange {
    Add(MacAddr),
    Remove(MacAddr),
}

/// The list of one interface.
#[derive(Debug, Default)]
pub struct MulticastList {
    /// Whether other groups are kept from the frontend.
    is_on: AtomicBool,
    /// Counts the changes.
    generation: AtomicU64,
    /// In order.
    groups: Mutex<Vec<MacAddr>>,
}

impl MulticastList {
    /// An empty list; it counts if the frontend `has_asked`.
    pub(crate) fn new(has_asked: bool) -> Self {
        Self { is_on: has_asked.into(), ..Self::default() }
    }

    /// Has the list count, or lets every group pass.
    pub(crate) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Changes the list. Returns whether that was possible.
    pub(crate) fn change(&self, change: ListChange) -> bool {
        let mut groups = self.groups();
        let is_possible = match change {
            ListChange::Add(group) => match groups.binary_search(&group) {
                Ok(_) => true,
                Err(place) if group.is_multicast() && groups.len() < MULTICAST_GROUPS_MAX => {
                    groups.insert(place, group);
                    true
                }
                Err(_) => false,
            },
            ListChange::Remove(group) => {
                groups.retain(|other| *other != group);
                true
            }
        };
        // Under the lock: who sees the number, then finds the list.
        self.generation.fetch_add(1, Ordering::Release);
        is_possible
    }

    fn groups(&self) -> MutexGuard<'_, Vec<MacAddr>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The list as a queue knows it.
pub(crate) struct WantedGroups {
    list: Arc<MulticastList>,
    generation: u64,
    groups: Vec<MacAddr>,
}

impl WantedGroups {
    pub(crate) fn new(list: Arc<MulticastList>) -> Self {
        Self { list, generation: 0, groups: Vec::new() }
    }

    /// Whether the list counts. Once per batch.
    #[inline]
    pub(crate) fn refresh(&mut self) -> bool {
        let is_on = self.list.is_on.load(Ordering::Relaxed);
        let generation = self.list.generation.load(Ordering::Acquire);
        if is_on && generation != self.generation {
            self.generation = generation;
            self.groups.clone_from(&self.list.groups());
        }
        is_on
    }

    /// Whether the frontend wants a frame for this destination.
    pub(crate) fn has(&self, destination: MacAddr) -> bool {
        !destination.is_multicast()
            || destination.is_broadcast()
            || self.groups.binary_search(&destination).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(n: u8) -> MacAddr {
        MacAddr([1, 0, 0x5e, 0, 1, n])
    }

    #[test]
    fn a_list_has_64_groups_and_no_stations() {
        let list = Arc::new(MulticastList::new(true));
        let mut wanted = WantedGroups::new(list.clone());
        let station = MacAddr([2, 0, 0, 0, 0, 1]);
        assert!(wanted.refresh() && wanted.has(MacAddr::BROADCAST) && wanted.has(station));
        assert!(!wanted.has(group(0)));
        assert!((0..64).all(|n| list.change(ListChange::Add(group(n)))));
        assert!(!list.change(ListChange::Add(group(64))) && list.change(ListChange::Add(group(5))));
        assert!(!list.change(ListChange::Add(station)));
        assert!(
            list.change(ListChange::Remove(group(0))) && list.change(ListChange::Remove(group(99)))
        );
        assert!(list.change(ListChange::Add(group(64))));
        assert!(wanted.refresh());
        assert_eq!([0, 1, 64].map(|n| wanted.has(group(n))), [false, true, true]);
        list.set(false);
        assert!(!wanted.refresh());
    }
}
