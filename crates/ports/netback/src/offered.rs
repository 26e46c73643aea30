//! The features and limits that a backend offers.

use std::time::Duration;

use offload::Features;
use port::Coalescing;

use frame::{FRAGMENTS_MAX, WINDOW};
use ring::Slots;
use ring::netif::Rx;

use crate::channel::{GrantReuse, RxChannel, TxChannel};

/// What a backend offers to its frontend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offered {
    /// Most queues.
    pub max_queues: u32,
    /// Offloads the frontend may leave to the backend on transmit.
    pub features: Features,
    /// Whether the guest gets frames with unfinished checksums and beyond the MTU, as far as its frontend takes them.
    pub guest_offloads: bool,
    /// An event channel for each ring instead of one for both.
    pub split_event_channels: bool,
    /// The channel of packets from the guest.
    pub tx: TxChannel,
    /// The channel of packets to the guest.
    pub rx: RxChannel,
    /// Most pages of each queue that stay mapped, if the channels permit it; see
    /// [`persistent_pages`](Self::persistent_pages) and [`cached_pages`](Self::cached_pages).
    pub persistent_grants: u16,
    /// Who decides which pages stay mapped.
    pub reuse: GrantReuse,
    /// Whether the frontend may say which multicast groups it wants.
    pub multicast_control: bool,
    /// When the guest is notified of frames; by default so that a single frame waits for nothing.
    pub coalescing: Option<Coalescing>,
    /// How long the answer to a lone frame of the guest's may stay unannounced: most guests find it when they send the next. None: it is announced
    /// at once.
    pub completion_delay: Option<Duration>,
}

impl Offered {
    /// What is delivered to a guest without more work, if its frontend takes these `features`.
    pub(crate) fn delivered(&self, features: Features) -> Features {
        match self.guest_offloads {
            true => features,
            // Nobody takes unsegmented frames without unfinished checksums.
            false => features.without(Features { csum_v4: true, csum_v6: true, ..Features::NONE }),
        }
    }

    /// Most pages of each queue that stay mapped as the frontend asks: of its packets, unless each is
    /// mapped anew, and of its buffers, a ring's worth. Zero if pages change hands, where it would save nothing.
    pub fn persistent_pages(&self) -> u16 {
        match (self.rx, self.reuse) {
            (rx, GrantReuse::Agreed) if rx.is_copy() => match self.tx {
                TxChannel::Header => self.persistent_grants,
                TxChannel::Remap => self.persistent_grants.min(BUFFERS),
            },
            _ => 0,
        }
    }

    /// Places of each queue's grant caches, from the guest and to it: half of the pages for each
    /// direction, and for packets that are mapped at least a window of them. Zero without a cache.
    pub fn cached_pages(&self) -> [u16; 2] {
        if self.reuse == GrantReuse::Agreed || self.persistent_grants == 0 {
            return [0; 2];
        }
        let half = (self.persistent_grants / 2).max(1);
        let tx = match self.tx {
            TxChannel::Header => half,
            TxChannel::Remap => half.max(MAPPED_WINDOW),
        };
        [tx, if self.rx.is_copy() { half } else { 0 }]
    }
}

/// Buffers on a ring.
#[expect(clippy::cast_possible_truncation, reason = "asserted")]
const BUFFERS: u16 = {
    assert!(Rx::COUNT <= u16::MAX as u32);
    Rx::COUNT as u16
};

/// Pages of a window of packets.
#[expect(clippy::cast_possible_truncation, reason = "asserted")]
const MAPPED_WINDOW: u16 = {
    assert!(WINDOW * FRAGMENTS_MAX <= u16::MAX as usize);
    (WINDOW * FRAGMENTS_MAX) as u16
};
