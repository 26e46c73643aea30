//! Paths through a card with contexts.

use super::window::{Counts, Path, Size, batch, carry};
use crate::bench::nic::{Kind, Machine, To};

/// A card, and two guests that send to the wire.
pub struct Card {
    machine: Machine,
}

impl Card {
    /// Makes them.
    pub fn new(protection: Kind, size: Size) -> Result<Self, String> {
        let machine = Machine::new(protection.protection(), To::Wire, size.bytes())?;
        // The card's time would be measured, which takes system calls.
        Ok(Self { machine: machine.with_clock(|| std::time::Duration::ZERO) })
    }
}

impl Path for Card {
    fn turn(&mut self, frames: u64) -> Result<u64, String> {
        let before = self.machine.carried();
        self.machine.send(frames)?;
        Ok(self.machine.carried() - before)
    }

    fn batch(&self) -> u64 {
        batch(Size::Full)
    }

    fn count(&mut self, frames: u64) -> Result<Counts, String> {
        let before = self.machine.hypercalls();
        carry(self, frames)?;
        Ok(Counts { hypercalls: self.machine.hypercalls() - before, ..Counts::default() })
    }
}
