//! What outlives a device's process: where a packed ring is, and what it was publishing when it ended.
//!
//! A split ring needs no such log, because chains come back in order: its used index says which ones are in flight, and
//! the available ring still names them. A packed ring is overwritten in place, and has no index in shared memory.
//!
//! The log is a redo log. Before a batch is published, its chains and both positions are written; once it is published,
//! the later position alone. The next device publishes again what may be half done. It does not touch what was done, because the
//! driver may have used those places again.

use std::sync::atomic::{Ordering, fence};

use shm::Region;

use crate::SetupError;
use crate::taken::TakenChain;

/// Bytes before the chains. As in vhost-user's layout, features come first, then the version and the ring's size.
const HEADER_LEN: usize = 64;
const VERSION: usize = 8;
const SIZE: usize = 10;
/// Whether a device serves the ring, or ended while it did.
const RUNNING: usize = 12;
/// Both positions in one word: the published one in the lower half, and the one that is being published.
const POSITIONS: usize = 16;
/// Bytes of a chain.
const ENTRY_LEN: usize = 8;
/// Of this layout. Vhost-user leaves it to the device, and has 1 for the one that it recommends.
const THIS_VERSION: u16 = 0x5056;

/// The log of one ring.
#[derive(Debug)]
pub struct InflightLog {
    region: Region,
    size: u16,
}

/// Where a ring was when its device ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Positions {
    pub(crate) published: u16,
    pub(crate) publishing: u16,
}

impl InflightLog {
    /// Bytes for a ring of `size` entries.
    #[must_use]
    pub fn bytes(size: u16) -> usize {
        (HEADER_LEN + ENTRY_LEN * usize::from(size)).next_multiple_of(64)
    }

    /// The log of a ring of at most `size` entries, in memory that is zero at first. None if it does not fit.
    #[must_use]
    pub fn new(region: Region, size: u16) -> Option<Self> {
        (region.len() >= Self::bytes(size)).then_some(Self { region, size })
    }

    /// The ring was stopped in good order: the next device starts at the place that it is given.
    pub fn stop(&self) {
        // `new` has checked the bounds, here and below.
        if let Ok(word) = self.region.atomic_u16(RUNNING) {
            word.store(0, Ordering::Release);
        }
    }

    /// Where a device ended that served a ring of `size` entries.
    pub(crate) fn found(&self, size: u16) -> Option<Positions> {
        let read = |at| self.region.read::<u16>(at).unwrap_or(0);
        let is_ours = read(VERSION) == THIS_VERSION && read(SIZE) == size && read(RUNNING) == 1;
        let word = self.region.atomic_u32(POSITIONS).ok()?.load(Ordering::Acquire);
        let [a, b, c, d] = word.to_le_bytes();
        let (published, publishing) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        is_ours.then_some(Positions { published, publishing })
    }

    /// A device starts at this position.
    pub(crate) fn start(&self, size: u16, position: u16) -> Result<(), SetupError> {
        if size > self.size {
            return Err(SetupError::Inflight);
        }
        self.set(Positions { published: position, publishing: position });
        let _ = self.region.write(VERSION, THIS_VERSION);
        let _ = self.region.write(SIZE, size);
        fence(Ordering::Release);
        if let Ok(word) = self.region.atomic_u16(RUNNING) {
            word.store(1, Ordering::Release);
        }
        Ok(())
    }

    /// Sets both positions at once.
    pub(crate) fn set(&self, Positions { published, publishing }: Positions) {
        let ([a, b], [c, d]) = (published.to_le_bytes(), publishing.to_le_bytes());
        // A process that is killed has done what it did before this, and nothing of what it would have done after it.
        fence(Ordering::Release);
        if let Ok(word) = self.region.atomic_u32(POSITIONS) {
            word.store(u32::from_le_bytes([a, b, c, d]), Ordering::Relaxed);
        }
        fence(Ordering::Release);
    }

    /// Notes the chain that is published `n`th in a batch.
    pub(crate) fn note(&self, n: u16, entry: TakenChain) {
        let ([a, b], [c, d]) = (entry.id.to_le_bytes(), entry.descriptors.to_le_bytes());
        let [e, f, g, h] = entry.written.to_le_bytes();
        let at = HEADER_LEN + ENTRY_LEN * usize::from(n);
        let _ = self.region.write(at, u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }

    /// What [`note`](Self::note) noted: id, descriptors, and bytes written.
    pub(crate) fn noted(&self, n: u16) -> (u16, u16, u32) {
        let at = HEADER_LEN + ENTRY_LEN * usize::from(n);
        let word: u64 = self.region.read(at).unwrap_or(0);
        let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
        let [id, descriptors] = [[a, b], [c, d]].map(u16::from_le_bytes);
        (id, descriptors, u32::from_le_bytes([e, f, g, h]))
    }
}
