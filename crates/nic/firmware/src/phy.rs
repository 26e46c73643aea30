//! The wire, behind a trait.

use offload::{Checksum, Features, Gso};

/// What is known of a frame beside its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Of the TCP or UDP checksum.
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
    /// What it takes beyond whole frames with complete checksums. It gathers in any case.
    fn features(&self) -> Features {
        Features::NONE
    }

    /// Sends one frame, `head` and then `body`. Its metadata needs no more than
    /// [`features`](Self::features).
    fn send(&mut self, head: &[u8], body: &[u8], metadata: Metadata) -> Sent;

    /// Takes the next frame. Returns its length, at most the buffer's, and what is known of it.
    fn receive(&mut self, buffer: &mut [u8]) -> Option<(usize, Metadata)>;
}
