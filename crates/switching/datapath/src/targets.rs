//! The ports that a flooded frame goes to.

use arrayvec::ArrayVec;
use port::{DropReason, Outcome, Outcomes, WINDOW};
use switch::multicast::Reach;
use switch::{PortId, PortSet};

use crate::carrier::{Carrier, Pass};

/// Those of a set of ports that a frame reaches.
#[derive(Clone, Copy)]
pub(crate) struct Targets<'a> {
    ports: &'a PortSet,
    reach: Reach<'a>,
}

impl<'a> Targets<'a> {
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

impl Carrier {
    /// Those frames of a group (slots of the window) that their port may flood to some ports, within its
    /// budget. Drops and counts the others. Where there is no port, a frame to one station is lost; one to
    /// several has reached all that there are.
    pub(crate) fn admit(
        &self,
        targets: Targets<'_>,
        Pass { port: from, window, .. }: &Pass<'_>,
        group: &[u8],
        outcomes: &mut Outcomes,
    ) -> ArrayVec<u8, WINDOW> {
        let control = self.ports.storm_control(from);
        let others = targets.count(from.id());
        let may_go = |slot: &u8| match (window.frame(*slot), others) {
            (frame, 0) => frame.destination().is_multicast(),
            (frame, others) => control.admit(frame, others, self.now),
        };
        let reason = if others == 0 { DropReason::NoPort } else { DropReason::Storm };
        let (admitted, dropped): (ArrayVec<_, WINDOW>, ArrayVec<_, WINDOW>) =
            group.iter().copied().partition(may_go);
        for slot in &dropped {
            outcomes[usize::from(*slot)] = Outcome::Dropped(reason);
        }
        if !dropped.is_empty() {
            from.add_drops(reason, dropped.len() as u64);
        }
        admitted
    }
}
