//! Who wins.

use std::fmt;

use contexts::{Reason, Refusal};

use crate::guest::{Guest, PEER, frame, mac};
use crate::world::{BAD, NEIGHBOUR, World};
use cdna::{Descriptor, Direction, Status};

/// What became of an attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The guest reached what is not its own.
    GuestWins,
    /// A call was refused, and nothing of it was done.
    RefusedAt(&'static str, Refusal),
    /// The system refused the guest the access to a file that is sealed.
    Sealed,
    /// The card stopped the context, and the hypervisor has the fault with the guest's name.
    FaultReported(cdna::Reason),
    /// Nobody was harmed, for this reason.
    Harmless(&'static str),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::GuestWins => write!(f, "guest wins"),
            Self::RefusedAt(call, Refusal::Entry { why, .. }) => {
                write!(f, "refused at {call}: {why}")
            }
            Self::RefusedAt(call, why) => write!(f, "refused at {call}: {why}"),
            Self::Sealed => write!(f, "refused: the file is sealed"),
            Self::FaultReported(reason) => write!(f, "fault reported: {reason}"),
            Self::Harmless(why) => write!(f, "harmless: {why}"),
        }
    }
}

pub fn at_enqueue(refusal: Refusal) -> Outcome {
    Outcome::RefusedAt("enqueue", refusal)
}

impl World {
    /// Puts descriptors on a ring of a guest.
    pub fn post(
        &mut self,
        number: u8,
        direction: Direction,
        descriptors: &[Descriptor],
    ) -> Result<(), Outcome> {
        let protection = self.protection;
        let (guest, contexts, _) = self.caller(number);
        guest.post(contexts, protection, direction, descriptors).map_err(at_enqueue)
    }

    /// A guest sends a frame out of its page `page`.
    pub fn send(&mut self, number: u8, page: usize, bytes: &[u8]) {
        let guest = self.guest(number);
        guest.memory().copy_in(page * crate::guest::PAGE, bytes).unwrap();
        let descriptor = guest.buffer(page, bytes.len().try_into().unwrap());
        self.post(number, Direction::Tx, &[descriptor]).unwrap();
    }

    /// What the card reported of the bad guest.
    pub fn fault(&mut self) -> Option<Outcome> {
        let ended = self.ended(BAD)?;
        let Reason::Fault(fault) = ended.reason else { return None };
        let (guest, contexts, _) = self.caller(BAD);
        let (total, newest) = contexts.faults();
        assert_eq!((total, newest[0].owner, newest[0].fault), (1, guest.domain.id(), fault));
        assert_eq!(guest.status(), Some(Status::Faulted));
        Some(Outcome::FaultReported(fault.reason))
    }

    /// Who won, after the card has done all that it does.
    pub fn judge(&mut self, wins: bool, harmless: &'static str) -> Outcome {
        let fault = self.fault();
        assert!(!wins || fault.is_none(), "too late: {fault:?}");
        match fault {
            _ if wins => Outcome::GuestWins,
            Some(fault) => fault,
            None => Outcome::Harmless(harmless),
        }
    }

    /// The neighbour sends and receives as ever.
    pub fn check_neighbour(&mut self) {
        let (out, back) =
            (frame(PEER, mac(NEIGHBOUR), b"out"), frame(mac(NEIGHBOUR), PEER, b"back"));
        self.net().sent.clear();
        self.send(NEIGHBOUR, 20, &out);
        let buffer = self.guest(NEIGHBOUR).buffer(21, 2048);
        self.post(NEIGHBOUR, Direction::Rx, &[buffer]).unwrap();
        self.net().arriving.push_back(back.clone());
        self.settle();
        assert_eq!(self.net().sent, [out]);
        assert_eq!(self.guest(NEIGHBOUR).received(21), [back]);
        assert_eq!(self.guest(NEIGHBOUR).status(), Some(Status::Up));
    }
}

/// Pages of a guest that a card refers to.
pub fn references(guest: &Guest) -> usize {
    hypervisor::PageOwner::references(&*guest.domain).pages()
}
