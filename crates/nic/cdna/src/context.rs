//! The context page: 24 mailboxes, the event word behind them, and memory for the guest's use.
//!
//! A guest writes a mailbox, then sets its bit in the event word (with a full barrier), then reads
//! the card's [sleep word](crate::completion::ASLEEP) and rings the doorbell if the card sleeps.
//! The card clears all of a context's events at once and reads only the mailboxes that they name.
//! The rest of the page is memory that the card neither reads nor writes.

use core::ops::BitOr;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bytes of a context page.
pub const PAGE_LEN: usize = 4096;
/// Mailboxes of a context; each is a `u32`, the first one at offset 0.
pub const MAILBOXES: usize = 24;
/// The event word, a `u32`: bit n says that mailbox n was written.
pub const EVENTS: usize = MAILBOXES * size_of::<u32>();
/// The first byte that is free for the guest's use.
pub const FREE: usize = 128;
/// Contexts that a card can have.
pub const CONTEXTS_MAX: usize = 256;
/// Contexts that a card has unless more are asked for.
pub const CONTEXTS_DEFAULT: usize = 32;

/// The number of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContextId(u8);

impl ContextId {
    /// The context that is kept for the hypervisor, which gives it to the driver domain.
    pub const MANAGEMENT: Self = Self(0);

    /// The context of this number.
    #[inline]
    #[must_use]
    pub const fn new(number: u8) -> Self {
        Self(number)
    }

    /// Its number, as an index.
    #[inline]
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// Its number.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u8 {
        self.0
    }
}

named::each! {
    /// What the mailboxes mean. Numbers without a name are not used; their events are ignored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum Mailbox {
        /// The index after the last TX descriptor.
        TxProducer = 0,
        /// The index after the last RX descriptor.
        RxProducer = 1,
        /// [`Enable`]'s flags.
        Enable = 2,
        /// Sent frames after which to interrupt; 0: only by time.
        TxFrames = 3,
        /// Microseconds after a sent frame after which to interrupt; 0: only by number.
        TxMicros = 4,
        /// As [`TxFrames`](Self::TxFrames), for received frames.
        RxFrames = 5,
        /// As [`TxMicros`](Self::TxMicros), for received frames.
        RxMicros = 6,
        /// With [`Enable::ONE_SHOT`]: a TX consumer index, the one that the guest has seen or a later one. It arms one
        /// interrupt for what comes after it; [`TxFrames`](Self::TxFrames) and [`TxMicros`](Self::TxMicros) count from there.
        TxSeen = 7,
        /// As [`TxSeen`](Self::TxSeen), for RX.
        RxSeen = 8,
    }
}

impl Mailbox {
    /// Its offset in the context page.
    #[inline]
    #[must_use]
    pub const fn offset(self) -> usize {
        self as usize * size_of::<u32>()
    }

    /// Its event.
    #[inline]
    #[must_use]
    pub const fn event(self) -> Events {
        Events(1 << self as u32)
    }
}

/// A set of events of one context: the second level of the event vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Events(u32);

impl Events {
    /// No event.
    pub const NONE: Self = Self(0);

    /// The events in an event word. Bits that are no mailbox's are left out: the guest can set them.
    #[inline]
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        Self(word & ((1 << MAILBOXES) - 1))
    }

    /// The event word's bits.
    #[inline]
    #[must_use]
    pub const fn word(self) -> u32 {
        self.0
    }

    /// Whether the mailbox was written.
    #[inline]
    #[must_use]
    pub const fn contains(self, mailbox: Mailbox) -> bool {
        self.0 & mailbox.event().0 != 0
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for Events {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Flags of [`Mailbox::Enable`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Enable(pub u32);

impl Enable {
    /// The card serves the TX ring.
    pub const TX: Self = Self(1);
    /// The card puts received frames into the RX ring.
    pub const RX: Self = Self(1 << 1);
    /// Broadcast frames are received.
    pub const BROADCAST: Self = Self(1 << 2);
    /// All multicast frames are received.
    pub const MULTICAST: Self = Self(1 << 3);
    /// Frames for addresses that no context has are received, and all multicast and broadcast ones. The hypervisor must
    /// [permit](crate::message::Permissions::PROMISCUOUS) it.
    pub const PROMISCUOUS: Self = Self(1 << 4);
    /// Received frames may have blank checksums ([`Flags::CSUM_BLANK`](crate::Flags::CSUM_BLANK)).
    pub const BLANK_CHECKSUMS: Self = Self(1 << 5);
    /// Received frames may be unsegmented TCP ([`Flags::GSO`](crate::Flags::GSO)). It needs
    /// [`BLANK_CHECKSUMS`](Self::BLANK_CHECKSUMS) too.
    pub const UNSEGMENTED: Self = Self(1 << 6);
    /// The card interrupts.
    pub const INTERRUPTS: Self = Self(1 << 7);
    /// It interrupts once for each write of [`Mailbox::TxSeen`] or [`Mailbox::RxSeen`] at most.
    pub const ONE_SHOT: Self = Self(1 << 8);
    /// The time of [`Mailbox::RxMicros`] counts from the last interrupt, not from the first frame: a frame after a pause
    /// interrupts at once, and only frames in a row are held back.
    pub const ADAPTIVE: Self = Self(1 << 9);

    /// Whether all of these flags are set.
    #[inline]
    #[must_use]
    pub const fn contains(self, flags: Self) -> bool {
        self.0 & flags.0 == flags.0
    }
}

impl BitOr for Enable {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Why a frame of a context, or for it, was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum DropReason {
    /// Received: too few RX descriptors.
    NoDescriptors = 0,
    /// To be sent: the offload that it asks for contradicts its headers, or the card does not have it.
    Offload = 1,
    /// To be sent: another source address than the context's.
    FalseSource = 2,
    /// To be sent: the wire refused it, as being too long.
    Wire = 3,
    /// To be sent: to the context itself, or to a group that no bridge forwards (pause, spanning tree, LACP, LLDP).
    NotForwarded = 4,
}

impl DropReason {
    /// How many reasons there are.
    pub const COUNT: usize = 5;
}

/// The counters of a context since it was assigned.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Statistics {
    /// Frames sent, before segmentation.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames received.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Times that the context was put into an interrupt vector.
    pub interrupts: u64,
    /// Mailbox events.
    pub events: u64,
    /// Faults: 0 or 1.
    pub faults: u64,
    /// Dropped frames, by [`DropReason`].
    pub drops: [u64; DropReason::COUNT],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mailboxes_events_and_free_memory_do_not_overlap() {
        for (number, mailbox) in Mailbox::ALL.into_iter().enumerate() {
            assert_eq!(mailbox.offset(), number * 4);
            assert_eq!(mailbox.event().word(), 1 << number);
            assert!(mailbox.offset() < EVENTS);
        }
        assert_eq!((EVENTS, FREE), (96, 128));
    }

    #[test]
    fn bits_of_no_mailbox_are_no_events() {
        assert!(Events::from_word(0xff00_0000).is_empty());
        let events = Events::from_word(u32::MAX);
        assert!(Mailbox::ALL.into_iter().all(|mailbox| events.contains(mailbox)));
        assert_eq!(Events::from_word(0b10), Mailbox::RxProducer.event());
    }
}
