//! All that the card can reach, behind traits: the host, and the wire.

use cdna::vectors::Vector;
use cdna::{ContextId, Descriptor, Direction, Mailbox, Reason, RxCompletion, Status};
use offload::{Checksum, Features, Gso};

/// An access to the machine's memory that failed. It is a fault of the context that it was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {address:#x}")]
pub struct BusFault {
    /// [`Reason::Outside`], [`Reason::Unmapped`] or [`Reason::Forbidden`].
    pub reason: Reason,
    /// The first address that failed.
    pub address: u64,
}

/// Access to the machine's memory. Its checks are the context's protection.
pub trait Bus {
    /// The memory that the card shares with a context's guest and the hypervisor.
    type Pages: ContextPages;
    /// The ring of interrupt vectors.
    type Vectors: VectorPage;

    /// Copies bytes from `address` on, on behalf of a context. They may cross page ends.
    ///
    /// # Errors
    /// The context may not read all of them. Part of `dest` may be written.
    fn read(&mut self, context: ContextId, address: u64, dest: &mut [u8]) -> Result<(), BusFault>;

    /// Copies bytes to `address`, on behalf of a context. They may cross page ends.
    ///
    /// # Errors
    /// The context may not write all of them. Part of them may be written.
    fn write(&mut self, context: ContextId, address: u64, source: &[u8]) -> Result<(), BusFault>;

    /// The card is about to read, or to write, what is at `address`.
    #[inline]
    fn prefetch(&mut self, _context: ContextId, _address: u64, _is_write: bool) {}

    /// Called once per step, when no access is in progress: an IOMMU serves invalidations.
    #[inline]
    fn serve(&mut self) {}

    /// The card makes no access until [`wake`](Self::wake). Returns whether it may wait.
    fn fall_asleep(&mut self) -> bool {
        true
    }

    /// The card goes on.
    fn wake(&mut self) {}

    /// The context was revoked, or stopped by a fault: nothing more is accessed for it.
    fn release(&mut self, _context: ContextId) {}
}

/// A context's pages: the context page, the rings and the completion page ([`cdna`]).
///
/// The guest can write to the context page, and perhaps to the rings, at any time. Every method
/// accesses each byte once.
pub trait ContextPages {
    /// The event word.
    fn events(&self) -> u32;
    /// Takes all events. Mailboxes read after it are at least as new (acquire).
    fn take_events(&self) -> u32;
    /// A mailbox. Descriptors read after it are at least as new (acquire).
    fn mailbox(&self, mailbox: Mailbox) -> u32;
    /// Copies the descriptors of `first` and the indices after it, which do not go beyond the ring's last slot. The word
    /// with a descriptor's sequence number is read before its address (acquire), since it is written after it.
    fn descriptors(&self, direction: Direction, first: u32, into: &mut [Descriptor]);
    /// Writes the completions of `first` and the indices after it, which do not go beyond the last slot.
    fn complete(&self, first: u32, completions: &[RxCompletion]);
    /// Writes a consumer index. Everything written before is visible with it (release).
    fn publish(&self, direction: Direction, consumer: u32);
    /// Writes the sleep word.
    fn set_asleep(&self, is_asleep: bool);
    /// Writes the status word.
    fn set_status(&self, status: Status);
    /// A full barrier: it also orders earlier stores before later loads.
    fn full_barrier(&self);
}

/// The page of interrupt vectors.
pub trait VectorPage {
    /// Writes the vector of an index.
    fn write(&self, index: u32, vector: &Vector);
    /// Writes the producer index. Vectors written before are visible with it (release).
    fn publish(&self, producer: u32);
    /// The consumer index. Slots before it may be written after this (acquire).
    fn consumer(&self) -> u32;
    /// Whether the hypervisor's sleep word is set, read after a full barrier.
    fn is_hypervisor_asleep(&self) -> bool;
}

/// What is known of a frame beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// What is known of the TCP or UDP checksum.
    pub checksum: Checksum,
    /// How it must be segmented.
    pub gso: Option<Gso>,
}

/// What became of a frame that was given to the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is on the wire.
    Sent,
    /// The wire is busy: the same frame must be offered again.
    Busy,
    /// The wire does not take it, now or later.
    Refused,
}

/// Where frames leave the card, and come from.
pub trait Wire {
    /// What it takes beyond whole frames with complete checksums. It takes a frame in two parts in any case.
    fn features(&self) -> Features {
        Features::NONE
    }

    /// Sends one frame, `head` and then `body`. Its metadata needs no more than
    /// [`features`](Self::features).
    fn send(&mut self, head: &[u8], body: &[u8], metadata: Metadata) -> Sent;

    /// Takes the next frame. Returns its length, at most the buffer's, and what is known of it.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<(usize, Metadata)>;
}
