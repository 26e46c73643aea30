//! The features and limits that a backend offers.

use offload::Features;
use port::Coalescing;

use crate::channel::{RxChannel, TxChannel};

/// What a backend offers to its frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Most queues.
    pub max_queues: u32,
    /// Offloads the frontend may leave to the backend on transmit.
    pub features: Features,
    /// An event channel for each ring instead of one for both.
    pub split_event_channels: bool,
    /// The channel of packets from the guest.
    pub tx: TxChannel,
    /// The channel of packets to the guest.
    pub rx: RxChannel,
    /// Most pages of each queue that stay mapped, if the channels permit it; see
    /// [`persistent_pages`](Self::persistent_pages).
    pub persistent_grants: u16,
    /// When the guest is notified of frames; by default so that a single frame waits for nothing.
    pub coalescing: Option<Coalescing>,
}

impl Offered {
    /// Most pages of each queue that stay mapped. Zero if packets are mapped or flipped, where it
    /// would save nothing.
    pub fn persistent_pages(&self) -> u16 {
        match (self.tx, self.rx) {
            (TxChannel::Header, rx) if rx.is_copy() => self.persistent_grants,
            _ => 0,
        }
    }
}
