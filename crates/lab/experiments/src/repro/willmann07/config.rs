//! The paper's configurations, as pvnet's.

use std::path::Path;

use schemars::JsonSchema;
use serde::Serialize;

use crate::repro::rounds;
use crate::repro::server::{Machine, PEER, Setup, card, wire, with_prefix};

named::named! {
    /// How guests reach the NICs.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
    #[serde(into = "&'static str")]
    pub enum Config {
        /// A stack on the wire, without a guest and a daemon.
        Native => "native",
        /// Software virtualisation; the driver domain has NICs that segment TCP: a context of each card.
        XenIntel => "xen-intel",
        /// The same with NICs that do not.
        XenRicenic => "xen-ricenic",
        /// Each guest has a context of each card, without protection.
        CdnaNone => "cdna-none",
        /// The same, protected by the hypervisor.
        CdnaHypervisor => "cdna-hypervisor",
        /// The same, protected by an IOMMU that unmaps a page when it leaves the guest.
        CdnaIommuStatic => "cdna-iommu-static",
        /// The same, protected by an IOMMU that unmaps a buffer at once.
        CdnaIommuStrict => "cdna-iommu-strict",
        /// The same, protected by an IOMMU that unmaps buffers in batches.
        CdnaIommuDeferred => "cdna-iommu-deferred",
        /// Protected by the hypervisor, with cards that segment TCP as the driver domain's NIC does. The paper's could not.
        CdnaTso => "cdna-hypervisor-tso",
    }
}

/// CDNA as in most of the paper.
pub const CDNA: Config = Config::CdnaHypervisor;

/// The most frames that share a guest's interrupt.
const COALESCE_FRAMES: u32 = 64;
/// How long a guest that needs room may wait for as many frames, in microseconds. They take long on a slow line.
const TX_MICROS: u32 = 2000;

/// Mappings that the daemon needs for a vif that maps sent frames and flips received ones.
const MAPPINGS: u64 = 2048;

impl Config {
    /// The configuration of that name.
    pub fn find(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|config| config.name() == name);
        let names = || Self::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("the configurations are {}", names()))
    }

    /// Whether guests reach the NICs through the driver domain.
    const fn has_driver_domain(self) -> bool {
        matches!(self, Self::XenIntel | Self::XenRicenic)
    }

    fn nic(self, nic: u8, machine: &Machine<'_>) -> String {
        let Machine { peer, rate_mbps, coalesce_us, .. } = machine;
        let (wire, card, addresses) = (wire(nic), card(nic), with_prefix(nic, PEER));
        let protection = match self {
            Self::Native => return String::new(),
            Self::CdnaNone => "\"none\"",
            Self::CdnaIommuStatic => "{ iommu = \"static\" }",
            Self::CdnaIommuStrict => "{ iommu = \"strict\" }",
            Self::CdnaIommuDeferred => "{ iommu = \"deferred\" }",
            Self::XenIntel | Self::XenRicenic | Self::CdnaHypervisor | Self::CdnaTso => {
                "\"hypervisor\""
            }
        };
        let mut text = format!(
            "\n[[nic]]\nname = \"{card}\"\nprotection = {protection}\nrate_mbps = {rate_mbps}\n\
             tso = {}\n\
             coalescing = {{ rx_frames = {COALESCE_FRAMES}, rx_micros = {coalesce_us}, \
             tx_frames = {COALESCE_FRAMES}, tx_micros = {TX_MICROS} }}\n\
             wire = {{ tap = \"{wire}\", namespace = \"{peer}\", addresses = [\"{addresses}\"] }}\n",
            matches!(self, Self::XenIntel | Self::CdnaTso)
        );
        if self.has_driver_domain() {
            let protection = format!("protection = {protection}\n");
            text += &rounds::uplink_on_card(nic, &card, &protection);
        }
        text
    }

    fn interface(self, nic: u8, guest: u8) -> String {
        let (mac, addresses) = (rounds::mac(nic, guest), with_prefix(nic, guest));
        match self {
            Self::Native => String::new(),
            // As in the paper's Xen, sent pages are mapped, received ones are flipped, and none stays mapped.
            Self::XenIntel | Self::XenRicenic => format!(
                "[[guest.vif]]\nmac = \"{mac}\"\naddresses = [\"{addresses}\"]\ngro = false\ntx = \"remap\"\n\
                 rx = \"flip\"\npersistent_grants = 0\n"
            ),
            Self::CdnaNone
            | Self::CdnaHypervisor
            | Self::CdnaIommuStatic
            | Self::CdnaIommuStrict
            | Self::CdnaIommuDeferred
            | Self::CdnaTso => format!(
                "[[guest.context]]\nnic = \"{}\"\nmac = \"{mac}\"\naddresses = [\"{addresses}\"]\n",
                card(nic)
            ),
        }
    }
}

impl Setup for Config {
    fn toml(self, folder: &Path, machine: &Machine<'_>) -> Option<String> {
        let nic = |nic| self.nic(nic, machine);
        let interface = |nic, guest| self.interface(nic, guest);
        (self != Self::Native).then(|| rounds::with_guests(folder, machine, nic, interface))
    }

    fn has_cards(self) -> bool {
        self != Self::Native
    }

    // The paper's guests did so over cards that cannot segment (§5.1).
    fn segments_early(self) -> bool {
        matches!(self, Self::XenRicenic)
    }

    fn mappings(self, guests: u8, nics: u8) -> u64 {
        let vifs = u64::from(guests) * u64::from(nics);
        if self.has_driver_domain() { vifs * MAPPINGS } else { 0 }
    }
}

impl From<Config> for &'static str {
    fn from(config: Config) -> Self {
        config.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_configurations() {
        for config in Config::ALL {
            assert_eq!(Config::find(config.name()), Ok(config));
        }
        assert!(Config::find("xen").unwrap_err().contains("xen-intel"));
    }

    #[test]
    fn every_guest_has_an_interface_on_every_nic() {
        let guests = ["red", "blue"];
        let machine =
            Machine { guests: &guests, peer: "peer", nics: 2, rate_mbps: 1000, coalesce_us: 100 };
        for config in Config::ALL.into_iter().skip(1) {
            let text = config.toml("/run".as_ref(), &machine).unwrap();
            let table: toml::Table = text.parse().unwrap();
            let count = |key: &str| table.get(key).map_or(0, |all| all.as_array().unwrap().len());
            let context = config.name().starts_with("cdna");
            let kind = if context { "context" } else { "vif" };
            for guest in table["guest"].as_array().unwrap() {
                assert_eq!(guest[kind].as_array().unwrap().len(), 2, "{text}");
            }
            assert_eq!(count("nic"), 2);
            assert_eq!(count("uplink"), if context { 0 } else { 2 });
            let segments = matches!(config, Config::XenIntel | Config::CdnaTso);
            assert_eq!(table["nic"][0]["tso"].as_bool(), Some(segments));
        }
        assert_eq!(Config::Native.toml("/run".as_ref(), &machine), None);
    }
}
