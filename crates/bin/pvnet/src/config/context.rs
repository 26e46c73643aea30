//! `[[guest.context]]`: a context of a card, as an interface of a guest.

use serde::Deserialize;
use wire::ethernet::MacAddr;

use super::nic::{CoalescingSettings, Protection};
use super::text::parsed;

/// `[[guest.context]]`
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Context {
    /// The card.
    pub nic: String,
    /// Its MAC address, the only source of the frames that it sends.
    #[serde(deserialize_with = "parsed")]
    pub mac: MacAddr,
    /// IP addresses for its guest's namespace.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// How it is protected; as the card's contexts are if absent.
    pub protection: Option<Protection>,
    /// When it is interrupted; as the card's contexts are if absent.
    pub coalescing: Option<CoalescingSettings>,
}

impl Context {
    /// The keys of its table.
    pub(super) const KEYS: [&str; 5] = ["nic", "mac", "addresses", "protection", "coalescing"];

    /// Checks what TOML cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let mac = self.mac;
        if mac.is_multicast() || mac.is_zero() {
            return Err(format!("mac {mac} is not a unicast address"));
        }
        self.protection.map_or(Ok(()), |protection| protection.check())
    }
}
