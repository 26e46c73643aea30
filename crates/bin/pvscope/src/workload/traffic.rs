//! What a guest sends or receives, and who carries it.

pub const GUEST: &str = "guest";
/// The other guest.
pub const PEER: &str = "peer";

/// The guest's backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The kernel's xen-netback and a bridge.
    Stock,
    /// The same for an interface without offloads: frames have a checksum and are no longer than the MTU.
    Basic,
    Pvnet(Uplink),
    /// pvnet, and `pvnet frontend` in place of the guest's xen-netfront.
    Frontend(Channel),
}

/// Where pvnet's frames from and to the outside go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    /// A tap, whose other end is dom0's stack.
    Host,
    /// A tap in a bridge, which has the network card too.
    Tap,
    /// A packet socket of the network card.
    Packet,
    /// AF_XDP on the network card.
    Xdp,
    /// No switch of pvnet's: each interface has a device in a bridge, as with xen-netback.
    Device,
}

/// How frames come from `pvnet frontend`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// Every page is mapped and unmapped.
    Remap,
    /// Headers lie in pages that stay mapped; each body needs a grant operation when it is sent.
    Header,
    /// The same, and buffers stay mapped too.
    Reuse,
}

/// What a guest sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Traffic {
    /// TCP from the guest to dom0.
    Tx,
    /// TCP from dom0 to the guest.
    Rx,
    /// TCP from the guest to dom0 with `sendfile`.
    Sendfile,
    /// UDP from the guest through dom0's bridge to a network card. Nobody answers.
    Udp,
}

/// Traffic of guests whose backend is looked at: dom0 has no program that sends or receives, but on a wire behind its network card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// TCP from the guest to the other guest.
    Guests,
    /// TCP from the guest to a machine on the wire.
    ToWire,
    /// TCP from there to the guest.
    FromWire,
    /// UDP in frames of 64 bytes from the guest to the wire. Nobody answers.
    SmallToWire,
    /// UDP in frames of 64 bytes from a machine on the wire to the guest, in bursts.
    SmallFromWire,
    /// A request of 100 bytes of TCP from the guest to the other guest, and an answer of as many, again and again.
    Rounds,
}

impl Flow {
    /// Whether there is another guest.
    pub fn has_peer(self) -> bool {
        matches!(self, Self::Guests | Self::Rounds)
    }

    /// Whether there is a machine on the wire: the second network card, in a namespace.
    pub fn has_machine(self) -> bool {
        matches!(self, Self::ToWire | Self::FromWire | Self::SmallFromWire)
    }
}
