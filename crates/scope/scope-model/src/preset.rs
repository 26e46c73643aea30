//! Processors whose sizes and costs are known roughly.

use serde::{Deserialize, Serialize};

named::named! {
    /// A processor: the sizes of its caches and TLBs, and the costs of its events.
    ///
    /// The costs are round numbers of the published order of magnitude. `pvscope calibrate` compares them with the host's.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub enum Preset {
        /// A server of 2007 at 3 GHz, with the sizes of Chadha et al.: 2 MiB of L2 before memory, 64 TLB entries before the page
        /// tables.
        #[serde(rename = "2007")]
        Of2007 => "2007",
        /// A present server at 3 to 4 GHz: 1 MiB of L2, a slice of 16 MiB of L3, 64 TLB entries and 1024 behind them.
        #[default]
        #[serde(rename = "server")]
        Server => "server",
    }
}

impl Preset {
    /// The preset of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }
}
