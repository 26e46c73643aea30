//! `[[guest.context]]`: a context of a card, as an interface of a guest.

use serde::Deserialize;
use wire::ethernet::MacAddr;

use super::coalescing::coalescing;
use super::nic::{CoalescingSettings, Nic, Protection};
use super::text::parsed;

/// `[[guest.context]]`
#[derive(Clone, Debug, PartialEq, Deserialize)]
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
    /// Instead of `coalescing.rx_frames`, by the name that vifs and uplinks have for it,
    pub coalesce_frames: Option<u32>,
    /// and instead of `coalescing.rx_micros`.
    pub coalesce_us: Option<u32>,
}

impl Context {
    /// The keys of its table.
    pub(super) const KEYS: [&str; 7] =
        ["nic", "mac", "addresses", "protection", "coalescing", "coalesce_frames", "coalesce_us"];

    /// Checks what TOML cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let mac = self.mac;
        if mac.is_multicast() || mac.is_zero() {
            return Err(format!("mac {mac} is not a unicast address"));
        }
        coalescing(self.coalesce_frames, self.coalesce_us)?;
        self.protection.map_or(Ok(()), |protection| protection.check())
    }

    /// When it is interrupted, as a context of this card.
    pub fn interrupts(&self, nic: &Nic) -> CoalescingSettings {
        let own = self.coalescing.unwrap_or(nic.interrupts());
        own.with(self.coalesce_frames, self.coalesce_us)
    }
}
