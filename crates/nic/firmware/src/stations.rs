//! Which context has a MAC address: an exact-match table.

use cdna::ContextId;
use cdna::context::CONTEXTS_MAX;
use wire::ethernet::MacAddr;

/// Slots of the table: four for each context, so that few addresses share one.
const SLOTS: usize = 4 * CONTEXTS_MAX;

/// The addresses of all contexts.
///
/// A slot is an address in its upper 48 bits and, below, the context's number plus 1; 0 is free. A lookup begins at
/// the address's slot and ends at a free one.
#[derive(Debug)]
pub(crate) struct Stations {
    slots: Box<[u64; SLOTS]>,
}

fn key(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([a, b, c, d, e, f, 0, 0])
}

/// Where the lookup of a key begins.
fn start(key: u64) -> usize {
    // Fibonacci hashing: the upper bits of the product depend on all bits of the key.
    let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - SLOTS.ilog2());
    // As many bits as number the slots.
    usize::try_from(hash).unwrap_or_default() % SLOTS
}

impl Stations {
    pub(crate) fn new() -> Self {
        Self { slots: Box::new([0; SLOTS]) }
    }

    /// Makes the table anew, which is done when a context is assigned or revoked.
    pub(crate) fn fill(&mut self, stations: impl Iterator<Item = (MacAddr, ContextId)>) {
        self.slots.fill(0);
        for (mac, context) in stations {
            let key = key(mac);
            let free = (start(key)..).map(|n| n % SLOTS).find(|n| self.slots[*n] == 0);
            if let Some(free) = free {
                self.slots[free] = key | (u64::from(context.number()) + 1);
            }
        }
    }

    /// The context with this address.
    #[inline]
    pub(crate) fn find(&self, mac: MacAddr) -> Option<ContextId> {
        let key = key(mac);
        let mut n = start(key);
        loop {
            let slot = self.slots[n];
            if slot == 0 {
                return None;
            }
            if slot & !0xffff == key {
                return u8::try_from((slot & 0xffff) - 1).ok().map(ContextId::new);
            }
            n = (n + 1) % SLOTS;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exactly_the_stations_are_found(
            stations in prop::collection::hash_map(any::<[u8; 6]>(), any::<u8>(), 0..=256),
            others in prop::collection::vec(any::<[u8; 6]>(), 0..50),
        ) {
            let mut table = Stations::new();
            table.fill([(MacAddr([1; 6]), ContextId::new(1))].into_iter());
            let entry = |(mac, context): (&[u8; 6], &u8)| (MacAddr(*mac), ContextId::new(*context));
            table.fill(stations.iter().map(entry));
            for mac in stations.keys().chain(&others) {
                let expected = stations.get(mac).copied().map(ContextId::new);
                prop_assert_eq!(table.find(MacAddr(*mac)), expected);
            }
        }
    }

    #[test]
    fn consecutive_addresses_seldom_share_a_slot() {
        let mut starts = HashMap::<_, u32>::new();
        for n in 0..=255 {
            *starts.entry(start(key(MacAddr([0, 0x16, 0x3e, 0, 0, n])))).or_default() += 1;
        }
        assert!(starts.values().all(|count| *count <= 3), "{:?}", starts.values().max());
    }
}
