//! The other port of a pair.

use std::sync::atomic::{AtomicU64, Ordering};

use switch::PortId;

/// The other port of a pair, which may come and go.
#[derive(Debug)]
pub(crate) struct Peer(AtomicU64);

/// No peer: no port has this serial number.
const NONE: u64 = u64::MAX;
/// Bits of a port's number. Its serial number is above them.
const ID_BITS: u32 = u16::BITS;

impl Peer {
    pub(crate) fn none() -> Self {
        Self(AtomicU64::new(NONE))
    }

    /// Sets it. The serial number tells it from the port that gets its number after it.
    pub(crate) fn set(&self, PortId(id): PortId, serial: u64) {
        self.0.store(word(id, serial), Ordering::Release);
    }

    /// Leaves it without one, if it is this one.
    pub(crate) fn clear_if(&self, PortId(id): PortId, serial: u64) {
        // Otherwise it is another one by now, which stays.
        let _ =
            self.0.compare_exchange(word(id, serial), NONE, Ordering::Release, Ordering::Relaxed);
    }

    /// Its number, and its serial number.
    pub(crate) fn get(&self) -> (PortId, u64) {
        let word = self.0.load(Ordering::Acquire);
        #[expect(clippy::cast_possible_truncation, reason = "the number is in the low bits")]
        let id = PortId(word as u16);
        (id, word >> ID_BITS)
    }
}

fn word(id: u16, serial: u64) -> u64 {
    serial << ID_BITS | u64::from(id)
}
