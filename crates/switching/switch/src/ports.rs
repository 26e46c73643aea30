//! Ports of the switch, and sets of them.

/// A port of the switch: an index that the owner of the ports hands out.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug, Hash)]
pub struct PortId(pub u16);

/// A set of ports: one bit per port number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSet(Vec<u64>);

impl PortSet {
    /// A set of no port.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a port.
    pub fn insert(&mut self, PortId(port): PortId) {
        let word = usize::from(port / 64);
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (port % 64);
    }

    /// Removes a port, if it is there.
    pub fn remove(&mut self, PortId(port): PortId) {
        if let Some(word) = self.0.get_mut(usize::from(port / 64)) {
            *word &= !(1 << (port % 64));
        }
    }

    /// Whether a port is in it.
    pub fn contains(&self, PortId(port): PortId) -> bool {
        self.0.get(usize::from(port / 64)).is_some_and(|word| word >> (port % 64) & 1 != 0)
    }

    /// How many ports are in it.
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no port is in it.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// The ports, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = PortId> {
        (0u16..).zip(&self.0).flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = u16::try_from(left.trailing_zeros()).ok().filter(|bit| *bit < 64)?;
                left &= left - 1;
                Some(PortId(index * 64 + bit))
            })
        })
    }
}

impl FromIterator<PortId> for PortSet {
    fn from_iter<I: IntoIterator<Item = PortId>>(ports: I) -> Self {
        let mut set = Self::default();
        ports.into_iter().for_each(|port| set.insert(port));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_ports_is_a_set(changes in prop::collection::vec((any::<bool>(), any::<u16>()), 0..200)) {
            let (mut set, mut expected) = (PortSet::default(), BTreeSet::new());
            for (insert, port) in changes {
                if insert {
                    set.insert(PortId(port));
                    expected.insert(PortId(port));
                } else {
                    set.remove(PortId(port));
                    expected.remove(&PortId(port));
                }
                prop_assert!(set.iter().eq(expected.iter().copied()));
                prop_assert_eq!((set.len(), set.is_empty()), (expected.len(), expected.is_empty()));
                prop_assert_eq!(set.contains(PortId(port)), expected.contains(&PortId(port)));
            }
        }
    }
}
