//! A wire that takes every frame and brings none.

use firmware::{Metadata, Sent, Wire};

/// The wire. It counts.
#[derive(Default)]
pub struct Sink {
    /// Frames that were sent.
    pub frames: u64,
    /// A byte of each, so that the card has to read them.
    last: u8,
}

impl Wire for Sink {
    #[inline]
    fn send(&mut self, head: &[u8], _: &[u8], _: Metadata) -> Sent {
        self.frames += 1;
        self.last ^= head.first().copied().unwrap_or_default();
        Sent::Sent
    }

    fn receive(&mut self, _: &mut [u8]) -> Option<(usize, Metadata)> {
        None
    }
}
