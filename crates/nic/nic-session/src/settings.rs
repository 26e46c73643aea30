//! What a card learns about itself from the daemon's configuration.

use serde::{Deserialize, Serialize};

/// The settings of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// Contexts, the management context among them.
    pub contexts: usize,
    /// The line rate in 10⁶ bits per second; 0 for none.
    pub rate_mbps: u32,
    /// Whether the card segments TCP.
    pub tso: bool,
    /// The wire.
    pub wire: WireSettings,
}

/// A tap device as the card's wire.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireSettings {
    /// The device's name.
    pub tap: String,
    /// The network namespace of the device; the card's if absent.
    pub namespace: Option<String>,
    /// IP addresses for the device.
    pub addresses: Vec<String>,
    /// Whether the stack behind the device finishes checksums; otherwise the card does.
    pub checksum_offload: bool,
}
