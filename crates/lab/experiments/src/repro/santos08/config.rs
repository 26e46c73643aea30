//! The paper's lines, as pvnet's configurations.

use std::fmt::Write as _;
use std::path::Path;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;

use crate::repro::cpus::Cpus;
use crate::repro::rounds;
use crate::repro::server::{Machine, PEER, Setup, card, wire, with_prefix};

named::named! {
    /// How a guest receives.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize)]
    #[serde(into = "&'static str")]
    pub enum Line {
        /// A stack on the wire, without a guest and a daemon.
        Linux => "linux",
        /// The driver domain keeps no page mapped, and flips pages to the guest.
        Original => "original",
        /// The receiving guest copies.
        GuestCopy => "guest-copy",
        /// The guest has a queue of the card, which writes into pages that stay mapped.
        MultiqueueReuse => "multiqueue-reuse",
        /// The guest has a context of the card.
        Direct => "direct",
        /// Not in the paper: the driver domain copies from a tap's buffers, pvnet's default.
        Copy => "copy",
        /// Not in the paper: the guest has a queue of a tap, from which the kernel copies into the guest's pages.
        Steered => "steered",
        /// Not in the paper: the driver domain copies from its context's buffers.
        CopyFromCard => "copy-from-card",
    }
}

impl Line {
    /// The line of that name.
    pub fn find(name: &str) -> Result<Self, String> {
        let found = Line::ALL.into_iter().find(|line| line.name() == name);
        let names = || Line::ALL.map(Self::name).join(", ");
        found.ok_or_else(|| format!("the lines are {}", names()))
    }
}

impl From<Line> for &'static str {
    fn from(line: Line) -> Self {
        line.name()
    }
}

/// A line and its interrupt coalescing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalesced {
    /// How the guest receives.
    pub line: Line,
    /// Packets per interrupt.
    pub frames: u16,
    /// The longest wait after the last packet, in microseconds.
    pub us: u32,
}

impl Setup for Coalesced {
    fn toml(self, folder: &Path, machine: &Machine<'_>) -> Option<String> {
        let nic = |nic| self.nic(nic, machine);
        let interface = |nic, guest| self.interface(nic, guest);
        (self.line != Line::Linux).then(|| rounds::with_guests(folder, machine, nic, interface))
    }

    fn has_cards(self) -> bool {
        matches!(self.line, Line::MultiqueueReuse | Line::Direct | Line::CopyFromCard)
    }
}

impl Coalesced {
    fn nic(self, nic: u8, machine: &Machine<'_>) -> String {
        let Machine { peer, rate_mbps, .. } = machine;
        let (wire, card, addresses) = (wire(nic), card(nic), with_prefix(nic, PEER));
        let Self { frames, us, .. } = self;
        let coalesce = format!("coalesce_frames = {frames}\ncoalesce_us = {us}\n");
        let is_direct = matches!(self.line, Line::MultiqueueReuse | Line::Steered);
        let queues = if is_direct { "queues = \"per-guest\"\n" } else { "" };
        let mut text = String::new();
        if self.has_cards() {
            let _ = write!(
                text,
                "\n[[nic]]\nname = \"{card}\"\nprotection = {{ iommu = \"static\" }}\n\
                 rate_mbps = {rate_mbps}\n{coalesce}\
                 wire = {{ tap = \"{wire}\", namespace = \"{peer}\", addresses = [\"{addresses}\"] }}\n"
            );
        }
        match self.line {
            Line::Linux | Line::Direct => {}
            Line::Original | Line::GuestCopy | Line::Copy | Line::Steered => {
                let _ = write!(
                    text,
                    "\n[[uplink]]\nname = \"nic{nic}\"\ntap = \"{wire}\"\nnamespace = \"{peer}\"\n\
                     addresses = [\"{addresses}\"]\nlarge_receive = false\n{coalesce}{queues}"
                );
            }
            Line::MultiqueueReuse | Line::CopyFromCard => {
                text += &rounds::uplink_on_card(nic, &card, queues);
            }
        }
        text
    }

    fn interface(self, nic: u8, guest: u8) -> String {
        let (mac, addresses) = (rounds::mac(nic, guest), with_prefix(nic, guest));
        let vif = |how: &str| {
            let Self { frames, us, .. } = self;
            format!(
                "[[guest.vif]]\nmac = \"{mac}\"\naddresses = [\"{addresses}\"]\ngro = false\n\
                 coalesce_frames = {frames}\ncoalesce_us = {us}\n{how}"
            )
        };
        match self.line {
            Line::Linux => String::new(),
            Line::Original => vif("tx = \"remap\"\nrx = \"flip\"\npersistent_grants = 0\n"),
            Line::GuestCopy => vif("rx = \"guest-copy\"\n"),
            Line::MultiqueueReuse | Line::Steered => vif("rx = \"direct\"\n"),
            Line::Copy | Line::CopyFromCard => vif("rx = \"copy\"\n"),
            Line::Direct => format!(
                "[[guest.context]]\nnic = \"{}\"\nmac = \"{mac}\"\naddresses = [\"{addresses}\"]\n",
                card(nic)
            ),
        }
    }
}

named::named! {
    /// Where the guest and the driver domain run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, ValueEnum)]
    #[serde(rename_all = "lowercase")]
    pub enum Placement {
        /// Both on one CPU, cards and peer on another.
        Together => "together",
        /// The guest on one CPU; the driver domain, cards and peer on another, as in the paper.
        Apart => "apart",
    }
}

impl Placement {
    /// The CPUs.
    pub fn cpus(self, chosen: &Cpus) -> Cpus {
        match self {
            Self::Together => chosen.clone(),
            Self::Apart => chosen.apart(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back_to_lines() {
        for line in Line::ALL {
            assert_eq!(Line::find(line.name()), Ok(line));
        }
        assert!(Line::find("xen").unwrap_err().contains("guest-copy"));
    }

    #[test]
    fn every_line_coalesces_where_its_interrupts_are() {
        for line in Line::ALL.into_iter().skip(1) {
            let line16 = Coalesced { line, frames: 16, us: 18 };
            let text = line16.toml("/run".as_ref(), &Machine::EXAMPLE);
            let table: toml::Table = text.unwrap().parse().unwrap();
            let guest = &table["guest"][0];
            let nic = if line == Line::Direct { "nic" } else { "uplink" };
            assert!(table.contains_key(nic), "{line:?}");
            match guest.get("vif") {
                Some(vif) => assert_eq!(vif[0]["coalesce_frames"].as_integer(), Some(16)),
                None => assert_eq!(table["nic"][0]["coalesce_frames"].as_integer(), Some(16)),
            }
        }
    }
}
