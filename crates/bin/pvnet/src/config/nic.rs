//! `[[nic]]`: a card with a protected context for every guest; and `protection`, of a card or a context.

use std::time::Duration;

use contexts::IommuMode;
use nic_session::channel::Coalescing;
use schemars::JsonSchema;
use serde::Deserialize;
use wire::ethernet::MacAddr;

use super::coalescing::coalescing;
use super::port_settings::check_interface;
use super::table::{CARDS, Effort, parsed, table};

table! {
    /// `[[nic]]`
    Nic [Effort = CARDS] {
        /// The card's name: `pvnet nic NAME`.
        name: String = String::new();
        /// Its contexts, with the one that is kept for the driver domain.
        contexts: usize = cdna::context::CONTEXTS_DEFAULT;
        /// How its contexts are protected, unless a guest's table says otherwise.
        protection: Protection = Protection::default();
        /// The line rate in 10⁶ bits per second; 0 for none.
        rate_mbps: u32 = 0;
        /// Whether it segments TCP.
        tso: bool = false;
        /// When its contexts are interrupted, unless a guest's table says otherwise.
        coalescing: CoalescingSettings = CoalescingSettings::default();
        /// Instead of `coalescing.rx_frames`, by the name that vifs and uplinks have for it.
        coalesce_frames: Option<u32> = None;
        /// Instead of `coalescing.rx_micros`.
        coalesce_us: Option<u32> = None;
        /// Where its frames leave the host.
        wire: Wire = Wire::default();
    }
}

table! {
    /// `wire`: a tap device.
    #[derive(Eq)]
    Wire [Effort = CARDS] {
        /// The device's name.
        tap: String = String::new();
        /// The network namespace of the device; the card's if absent.
        namespace: Option<String> = None;
        /// IP addresses for the host's end.
        addresses: Vec<String> = Vec::new();
        /// Whether the host's end finishes checksums, as Linux does; otherwise the card does.
        checksum_offload: bool = true;
    }
}

/// `coalescing`: interrupts come after a number of frames, or of microseconds after the first; 0 is not by number, or not by
/// time. Both 0: at once. Without a number for received frames, one after a pause interrupts at once, and frames in a row are
/// held back. What is absent is as the guest's end has it.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct CoalescingSettings {
    /// After this many sent frames; 0: not by number.
    pub tx_frames: Option<u32>,
    /// Microseconds after a sent frame; 0: not by time.
    pub tx_micros: Option<u32>,
    /// After this many received frames; 0: not by number.
    pub rx_frames: Option<u32>,
    /// Microseconds after a received frame, or after the last interrupt if neither this nor `rx_frames` is given; 0: not by time.
    pub rx_micros: Option<u32>,
}

impl CoalescingSettings {
    /// These, with what `coalesce_frames` and `coalesce_us` say of received frames, which [`Nic::check`] or [`Context::check`] has checked.
    fn with(self, frames: Option<u32>, micros: Option<u32>) -> Self {
        match coalescing(frames, micros) {
            Ok(Some(port::Coalescing::OFF)) => {
                Self { rx_frames: Some(0), rx_micros: Some(0), ..self }
            }
            Ok(Some(port::Coalescing { frames, after })) => {
                let rx_micros = u32::try_from(after.as_micros()).ok();
                Self { rx_frames: Some(frames), rx_micros, ..self }
            }
            Ok(None) | Err(_) => self,
        }
    }
}

/// As they take effect: the default of sent frames, written out, is no change.
impl PartialEq for CoalescingSettings {
    fn eq(&self, other: &Self) -> bool {
        Coalescing::from(*self) == Coalescing::from(*other)
    }
}

impl Eq for CoalescingSettings {}

impl From<CoalescingSettings> for Coalescing {
    fn from(settings: CoalescingSettings) -> Self {
        let CoalescingSettings { tx_frames, tx_micros, rx_frames, rx_micros } = settings;
        let default = cdnafront::Coalescing::default();
        Self {
            tx_frames: tx_frames.unwrap_or(default.tx_frames),
            tx_micros: tx_micros.unwrap_or(default.tx_micros),
            rx_frames: rx_frames.unwrap_or(default.rx_frames),
            rx_micros: rx_micros.unwrap_or(default.rx_micros),
            // Numbers that were chosen are kept exactly.
            rx_adaptive: rx_frames.or(rx_micros).is_none().into(),
        }
    }
}

/// `protection`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(from = "ProtectionToml")]
#[schemars(with = "ProtectionToml")]
pub struct Protection {
    /// Who writes the rings, and what keeps the card from memory of others.
    pub mode: contexts::Protection,
    /// Translations that the context's cache holds.
    pub cache_entries: u32,
}

impl Default for Protection {
    fn default() -> Self {
        ProtectionToml::Named(Named::Hypervisor).into()
    }
}

/// Unmapped pages that are collected before the card is asked to forget them, with `iommu = "deferred"`.
const DEFERRED_PAGES: u32 = 128;
/// How long they are collected at most.
const DEFERRED_TIME: Duration = Duration::from_millis(10);

/// `protection`, as in the file: a word, or a table for an IOMMU.
#[derive(Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "is not \"hypervisor\", \"none\", or { iommu = \"static\", \"strict\" or \"deferred\" }"
)]
enum ProtectionToml {
    Named(Named),
    Iommu(Iommu),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Named {
    None,
    Hypervisor,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Iommu {
    iommu: Mode,
    #[serde(default = "cache_entries_default")]
    cache_entries: u32,
}

fn cache_entries_default() -> u32 {
    iommu::Geometry::default().entries
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    Static,
    Strict,
    Deferred,
}

impl From<ProtectionToml> for Protection {
    fn from(toml: ProtectionToml) -> Self {
        use contexts::Protection as Contexts;
        let (mode, cache_entries) = match toml {
            ProtectionToml::Named(Named::None) => (Contexts::None, cache_entries_default()),
            ProtectionToml::Named(Named::Hypervisor) => {
                (Contexts::Hypervisor, cache_entries_default())
            }
            ProtectionToml::Iommu(Iommu { iommu, cache_entries }) => {
                let mode = match iommu {
                    Mode::Static => IommuMode::Static,
                    Mode::Strict => IommuMode::Strict,
                    Mode::Deferred => {
                        IommuMode::Deferred { pages: DEFERRED_PAGES, after: DEFERRED_TIME }
                    }
                };
                (Contexts::Iommu(mode), cache_entries)
            }
        };
        Self { mode, cache_entries }
    }
}

/// The most translations of a cache.
const CACHE_MAX: u32 = 1 << 20;
/// A terabit per second.
const RATE_MAX: u32 = 1_000_000;

impl Protection {
    /// Whether pages are unmapped in batches.
    pub(super) fn is_deferred(self) -> bool {
        matches!(self.mode, contexts::Protection::Iommu(IommuMode::Deferred { .. }))
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let Self { cache_entries, .. } = *self;
        // A cache has four places for a page.
        if cache_entries > CACHE_MAX || (cache_entries > 0 && !cache_entries.is_power_of_two()) {
            return Err(format!("cache_entries is {cache_entries}, not 0 or a power of two"));
        }
        Ok(())
    }
}

impl Nic {
    /// Checks what TOML cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { contexts, rate_mbps, .. } = *self;
        if !(2..=cdna::context::CONTEXTS_MAX).contains(&contexts) {
            let most = cdna::context::CONTEXTS_MAX;
            return Err(format!(
                "contexts is {contexts}, not 2 to {most}: one is the driver domain's"
            ));
        }
        if rate_mbps > RATE_MAX {
            return Err(format!("rate_mbps is {rate_mbps}, not 0 to {RATE_MAX}"));
        }
        if self.wire.tap.is_empty() {
            return Err(
                "wire is missing, where its frames leave the host: wire = { tap = \"wire0\" }"
                    .into(),
            );
        }
        check_interface("tap", &self.wire.tap)?;
        coalescing(self.coalesce_frames, self.coalesce_us)?;
        self.protection.check()
    }

    /// When its contexts are interrupted, unless a guest's table says otherwise.
    pub fn interrupts(&self) -> Coalescing {
        self.settings().into()
    }

    fn settings(&self) -> CoalescingSettings {
        self.coalescing.with(self.coalesce_frames, self.coalesce_us)
    }
}

table! {
    /// `[[guest.context]]`
    Context [Effort = CARDS] {
        /// The card.
        nic: String = String::new();
        /// Its MAC address, the only source of the frames that it sends.
        #[serde(deserialize_with = "parsed")]
        #[schemars(with = "String")]
        mac: MacAddr = MacAddr([0; 6]);
        /// IP addresses for its guest's namespace.
        addresses: Vec<String> = Vec::new();
        /// How it is protected; as the card's contexts are if absent.
        protection: Option<Protection> = None;
        /// When it is interrupted; as the card's contexts are if absent.
        coalescing: Option<CoalescingSettings> = None;
        /// Instead of `coalescing.rx_frames`, by the name that vifs and uplinks have for it.
        coalesce_frames: Option<u32> = None;
        /// Instead of `coalescing.rx_micros`.
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
    pub fn interrupts(&self, nic: &Nic) -> Coalescing {
        let own = self.coalescing.unwrap_or(nic.settings());
        own.with(self.coalesce_frames, self.coalesce_us).into()
    }
}
