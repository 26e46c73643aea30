//! What the device offers, and what the driver has accepted.

use offload::Features;
use virtqueue::{Layout, Options};

/// Feature bits of virtio and its network device (VIRTIO 1.2 §5.1.3 and §6), and one of vhost-user.
#[expect(missing_docs, reason = "the specification's names")]
pub mod bit {
    pub const CSUM: u64 = 1 << 0;
    pub const GUEST_CSUM: u64 = 1 << 1;
    pub const MTU: u64 = 1 << 3;
    pub const GUEST_TSO4: u64 = 1 << 7;
    pub const GUEST_TSO6: u64 = 1 << 8;
    pub const HOST_TSO4: u64 = 1 << 11;
    pub const HOST_TSO6: u64 = 1 << 12;
    pub const MRG_RXBUF: u64 = 1 << 15;
    pub const STATUS: u64 = 1 << 16;
    pub const CTRL_VQ: u64 = 1 << 17;
    pub const GUEST_ANNOUNCE: u64 = 1 << 21;
    pub const MQ: u64 = 1 << 22;
    /// Of vhost: written pages are logged.
    pub const LOG_ALL: u64 = 1 << 26;
    pub const INDIRECT_DESC: u64 = 1 << 28;
    pub const EVENT_IDX: u64 = 1 << 29;
    pub const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub const VERSION_1: u64 = 1 << 32;
    pub const RING_PACKED: u64 = 1 << 34;
    pub const IN_ORDER: u64 = 1 << 35;
    pub const GUEST_USO4: u64 = 1 << 54;
    pub const GUEST_USO6: u64 = 1 << 55;
    pub const HOST_USO: u64 = 1 << 56;
}

/// What the device offers, as far as an operator decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Pairs of rings.
    pub queues: u16,
    /// Whether packed rings are offered.
    pub packed: bool,
    /// Offloads of frames from the guest, and of those for it unless `guest_offloads` is false.
    pub offloads: Features,
    /// Whether frames for the guest may have unfinished checksums, and be longer than its MTU.
    pub guest_offloads: bool,
}

impl DeviceOptions {
    /// The most pairs of rings.
    pub const QUEUES_MAX: u16 = 64;

    /// The feature bits offered. Control queues never come here: the front-end executes their commands, and says what concerns
    /// rings by messages.
    ///
    /// Each of them must be one that QEMU passes on to a back-end, or executes alone without harm: docs/kvm.md has the table.
    /// `RING_RESET` is neither: QEMU resets the ring, says nothing, and the device would go on writing to a ring that the guest has freed.
    #[must_use]
    pub fn bits(&self) -> u64 {
        let Features { csum_v4, csum_v6, tso_v4, tso_v6, uso_v4, uso_v6, .. } = self.offloads;
        let (csum, uso) = (csum_v4 && csum_v6, uso_v4 && uso_v6);
        let to_guest = self.guest_offloads;
        let optional = [
            (self.queues > 1, bit::MQ),
            (self.packed, bit::RING_PACKED),
            (csum, bit::CSUM),
            (csum && to_guest, bit::GUEST_CSUM),
            (tso_v4, bit::HOST_TSO4),
            (tso_v4 && to_guest, bit::GUEST_TSO4),
            (tso_v6, bit::HOST_TSO6),
            (tso_v6 && to_guest, bit::GUEST_TSO6),
            (uso, bit::HOST_USO),
            (uso && to_guest, bit::GUEST_USO4 | bit::GUEST_USO6),
        ];
        let always = bit::MRG_RXBUF
            | bit::MTU
            | bit::STATUS
            | bit::CTRL_VQ
            | bit::GUEST_ANNOUNCE
            | bit::INDIRECT_DESC
            | bit::EVENT_IDX
            | bit::LOG_ALL
            | bit::PROTOCOL_FEATURES
            | bit::VERSION_1
            | bit::IN_ORDER;
        optional.iter().fold(always, |bits, (wanted, bit)| bits | if *wanted { *bit } else { 0 })
    }
}

/// The feature bits that the driver has accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Negotiated(u64);

impl Negotiated {
    /// None if the driver accepted what was not offered.
    #[must_use]
    pub fn new(accepted: u64, offered: u64) -> Option<Self> {
        (accepted & !offered == 0).then_some(Self(accepted))
    }

    fn has(self, bit: u64) -> bool {
        self.0 & bit != 0
    }

    /// Whether rings are disabled until the front-end enables them.
    pub(crate) fn has_protocol_features(self) -> bool {
        self.has(bit::PROTOCOL_FEATURES)
    }

    /// Whether the pages that the device writes are logged.
    pub(crate) fn logs_pages(self) -> bool {
        self.has(bit::LOG_ALL)
    }

    /// How its rings work.
    #[must_use]
    pub fn rings(self) -> Options {
        Options {
            layout: if self.has(bit::RING_PACKED) { Layout::Packed } else { Layout::Split },
            event_idx: self.has(bit::EVENT_IDX),
            indirect: self.has(bit::INDIRECT_DESC),
        }
    }

    /// Whether the guest's driver knows that buffers come back in order.
    #[must_use]
    pub fn is_in_order(self) -> bool {
        self.has(bit::IN_ORDER)
    }

    /// Bytes of the header before each frame: without the last field in a legacy device without mergeable buffers.
    #[must_use]
    pub fn header_len(self) -> usize {
        if self.has(bit::VERSION_1 | bit::MRG_RXBUF) { 12 } else { 10 }
    }

    /// Whether the header of a frame for the guest may say something about its checksum.
    pub(crate) fn has_checksum_flags(self) -> bool {
        self.has(bit::GUEST_CSUM)
    }

    /// Whether a frame for the guest may take several chains.
    #[must_use]
    pub fn has_mergeable_buffers(self) -> bool {
        self.has(bit::MRG_RXBUF)
    }

    /// What the guest can receive.
    #[must_use]
    pub fn receives(self) -> Features {
        let csum = self.has(bit::GUEST_CSUM);
        Features {
            sg: true,
            csum_v4: csum,
            csum_v6: csum,
            tso_v4: csum && self.has(bit::GUEST_TSO4),
            tso_v6: csum && self.has(bit::GUEST_TSO6),
            uso_v4: csum && self.has(bit::GUEST_USO4),
            uso_v6: csum && self.has(bit::GUEST_USO6),
            tagged: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_offered_is_accepted() {
        let all = DeviceOptions {
            queues: 4,
            packed: true,
            offloads: Features::ALL,
            guest_offloads: true,
        };
        let plain = DeviceOptions { queues: 1, packed: false, offloads: Features::NONE, ..all };
        assert!(Negotiated::new(all.bits(), all.bits()).is_some());
        assert!(Negotiated::new(all.bits(), plain.bits()).is_none());
        assert!(Negotiated::new(1 << 5, all.bits()).is_none());
        assert_eq!(
            plain.bits()
                & (bit::MQ | bit::RING_PACKED | bit::CSUM | bit::HOST_TSO4 | bit::HOST_USO),
            0
        );
        let accepted = Negotiated::new(all.bits(), all.bits()).unwrap();
        assert_eq!(accepted.rings().layout, Layout::Packed);
        assert_eq!((accepted.header_len(), accepted.receives()), (12, Features::ALL));
        let legacy = Negotiated::new(0, all.bits()).unwrap();
        assert_eq!(legacy.header_len(), 10);
        assert_eq!(legacy.receives(), Features { sg: true, tagged: true, ..Features::NONE });
    }

    #[test]
    fn offloads_to_the_guest_can_be_kept_off_alone() {
        let both = DeviceOptions {
            queues: 1,
            packed: false,
            offloads: Features::ALL,
            guest_offloads: true,
        };
        let one = DeviceOptions { guest_offloads: false, ..both };
        let gone = both.bits() & !one.bits();
        let to_guest =
            bit::GUEST_CSUM | bit::GUEST_TSO4 | bit::GUEST_TSO6 | bit::GUEST_USO4 | bit::GUEST_USO6;
        assert_eq!((gone, one.bits() & !both.bits()), (to_guest, 0));
        let accepted = Negotiated::new(one.bits(), one.bits()).unwrap();
        assert_eq!(accepted.receives(), Features { sg: true, tagged: true, ..Features::NONE });
    }

    /// The bits that QEMU takes for itself or passes on: `user_feature_bits` of its `hw/net/vhost_net.c`, and what its device
    /// executes alone. A new one needs a row in docs/kvm.md.
    #[test]
    fn only_what_qemu_passes_on_or_executes_alone_is_offered() {
        let passed_on = bit::CSUM
            | bit::GUEST_CSUM
            | bit::MTU
            | bit::GUEST_TSO4
            | bit::GUEST_TSO6
            | bit::HOST_TSO4
            | bit::HOST_TSO6
            | bit::MRG_RXBUF
            | bit::GUEST_ANNOUNCE
            | bit::MQ
            | bit::INDIRECT_DESC
            | bit::EVENT_IDX
            | bit::VERSION_1
            | bit::RING_PACKED
            | bit::IN_ORDER
            | bit::GUEST_USO4
            | bit::GUEST_USO6
            | bit::HOST_USO;
        let executed_alone = bit::STATUS | bit::CTRL_VQ;
        let of_vhost = bit::LOG_ALL | bit::PROTOCOL_FEATURES;
        let all = DeviceOptions {
            queues: 2,
            packed: true,
            offloads: Features::ALL,
            guest_offloads: true,
        };
        assert_eq!(all.bits(), passed_on | executed_alone | of_vhost);
    }
}
