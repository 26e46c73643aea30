//! `[[guest.context]]`: a context of a card, as an interface of a guest.

use wire::ethernet::MacAddr;

use super::coalescing::coalescing;
use super::nic::{CoalescingSettings, Nic, Protection};
use super::table::{CARDS, Effort, table};
use super::text::parsed;

table! {
    /// `[[guest.context]]`
    Context [Effort = CARDS] {
        /// The card.
        nic: String = String::new();
        /// Its MAC address, the only source of the frames that it sends.
        #[serde(deserialize_with = "parsed")]
        mac: MacAddr = MacAddr([0; 6]);
        /// IP addresses for its guest's namespace.
        addresses: Vec<String> = Vec::new();
        /// How it is protected; as the card's contexts are if absent.
        protection: Option<Protection> = None;
        /// When it is interrupted; as the card's contexts are if absent.
        coalescing: Option<CoalescingSettings> = None;
        /// Instead of `coalescing.rx_frames`, by the name that vifs and uplinks have for it,
        coalesce_frames: Option<u32> = None;
        /// and instead of `coalescing.rx_micros`.
        coalesce_us: Option<u32> = None;
    }
}

impl Context {
    /// Checks what TOML cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let mac = self.mac;
        if self.nic.is_empty() || mac.is_zero() {
            return Err("a context needs nic and mac".into());
        }
        if mac.is_multicast() {
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
