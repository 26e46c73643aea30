//! What becomes of a frame.

use crate::Frame;

named::named! {
    /// Why a frame that came in on a port, or was meant for it, went nowhere.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum DropReason {
        /// It must not be forwarded: its destination is on its ingress port, or is a link-local group; or its port must not query multicast
        /// groups, or gets copies of other ports only.
        NotForwarded => "not_forwarded",
        /// Its headers are truncated, or contradict themselves or the offload asked for.
        Malformed => "malformed",
        /// It could not be read from, or written to, a guest's memory.
        MemoryFault => "memory_fault",
        /// The egress port had no room, and the frame was flooded: such frames do not wait.
        NoRoom => "no_room",
        /// The egress port is stalled: frames no longer wait for it.
        Stalled => "stalled",
        /// It is longer than the egress port can take.
        TooLarge => "too_large",
        /// The egress port is gone or disabled.
        PortGone => "port_gone",
        /// Its source MAC address is not its port's.
        SpoofedMac => "spoofed_mac",
        /// It is ARP and claims an address that is not its port's.
        SpoofedArp => "spoofed_arp",
        /// Its IPv4 source address is not its port's.
        SpoofedIpv4 => "spoofed_ipv4",
        /// Its IPv6 source address is not its port's, or its neighbour discovery claims another's.
        SpoofedIpv6 => "spoofed_ipv6",
        /// Its port has used up its rate.
        RateLimit => "rate_limit",
        /// It was flooded, and its port has used up what it may flood.
        Storm => "storm",
        /// An operator has set its port down.
        SetDown => "set_down",
        /// Its port is not in its VLAN, or it would leave with another VLAN's tag.
        Vlan => "vlan",
        /// It is for a multicast group that its receiver does not want.
        NotWanted => "not_wanted",
        /// It is for a station that is not known, and there is no other port that it could be flooded to.
        NoPort => "no_port",
    }
}

/// A frame offered to an egress port, and its outcome.
#[derive(Debug)]
pub struct Offer<'a> {
    /// The frame.
    pub frame: &'a Frame,
    /// How many of its segments earlier offers to this port have sent ([`Outcome::Partial`]). 0 for
    /// most frames.
    pub sent: u16,
    /// Whether the transport's checksum is right, once this or an earlier offer has verified it. The caller passes it on with the next offer, so the
    /// payload is summed once.
    pub is_right: Option<bool>,
    /// [`Outcome::Waiting`] until the port sets it.
    pub outcome: Outcome,
}

impl<'a> Offer<'a> {
    /// The first offer of a frame, without an outcome yet.
    #[inline]
    #[must_use]
    pub fn new(frame: &'a Frame) -> Self {
        Self { frame, sent: 0, is_right: None, outcome: Outcome::Waiting }
    }
}

/// The number of a delivery that continues after the call that began it. Each egress queue has its
/// own numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u16);

/// What became of a frame that was offered to an egress port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// None yet: the port has no room at present, and the datapath offers the frame again.
    Waiting,
    /// The port has done as much as it may in one call: it has sent `segments` segments of this frame,
    /// those that [`Offer::sent`] counts included, and 0 where it has not begun. It has not looked at
    /// the frames that follow. The datapath offers this frame and those again as soon as others have
    /// had their turns.
    Partial {
        /// [`Offer::sent`] of the next offer.
        segments: u16,
    },
    /// A device is reading the frame. It is not offered again. The sender's pages stay in
    /// use until the egress port reports how the delivery ended.
    InFlight(Ticket),
    /// The port has taken it; the sender's pages are no longer needed.
    Delivered,
    /// It was dropped.
    Dropped(DropReason),
    /// The sender's pages could not be read.
    SourceFault,
}

impl Outcome {
    /// Whether the frame is done with, so that its sender can be answered.
    #[inline]
    #[must_use]
    pub fn is_final(self) -> bool {
        !matches!(self, Self::Waiting | Self::Partial { .. } | Self::InFlight(_))
    }

    /// Whether the datapath offers the frame, and those behind it, to the port again.
    #[inline]
    #[must_use]
    pub fn is_offered_again(self) -> bool {
        matches!(self, Self::Waiting | Self::Partial { .. })
    }
}
