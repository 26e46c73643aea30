//! What a guest sends or receives, and who carries it.

/// The guest.
pub const GUEST: &str = "guest";

/// The guest's backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// The kernel's xen-netback and a bridge.
    Stock,
    /// The same for an interface without offloads: frames have a checksum and are no longer than the MTU.
    Basic,
    /// pvnet.
    Pvnet,
    /// pvnet, and `pvnet frontend` in place of the guest's xen-netfront.
    Frontend(Channel),
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
