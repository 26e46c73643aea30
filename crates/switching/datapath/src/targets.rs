//! The ports that a flooded frame goes to.

use switch::multicast::Reach;
use switch::{PortId, PortSet};

/// Those of a set of ports that a frame reaches.
#[derive(Clone, Copy)]
pub(crate) struct Targets<'a> {
    ports: &'a PortSet,
    reach: Reach<'a>,
}

impl<'a> Targets<'a> {
    /// All ports of a set.
    pub(crate) fn all(ports: &'a PortSet) -> Self {
        Self { ports, reach: Reach::All }
    }

    /// Those of a set that get the frames of a multicast group.
    pub(crate) fn within(ports: &'a PortSet, reach: Reach<'a>) -> Self {
        Self { ports, reach }
    }

    /// The ports but the one that the frame came from.
    pub(crate) fn others(self, from: PortId) -> impl Iterator<Item = PortId> {
        self.ports.iter().filter(move |id| *id != from && self.reach.takes(*id))
    }

    /// How many these are.
    pub(crate) fn count(self, from: PortId) -> usize {
        match self.reach {
            Reach::All => self.ports.len() - usize::from(self.ports.contains(from)),
            _ => self.others(from).count(),
        }
    }

    /// Whether both are the same ports, of the same set.
    pub(crate) fn is(self, other: Self) -> bool {
        std::ptr::eq(self.ports, other.ports) && self.reach.is(other.reach)
    }
}
