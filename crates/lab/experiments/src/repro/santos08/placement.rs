//! Which CPUs the guest and the driver domain have.

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;

use crate::repro::cpus::Cpus;

/// Where the guest and the driver domain run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Both on one CPU, cards and peer on another.
    Together,
    /// The guest on one CPU; the driver domain, cards and peer on another, as in the paper.
    Apart,
}

impl Placement {
    /// Its name in rows.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Together => "together",
            Self::Apart => "apart",
        }
    }

    /// The CPUs.
    pub fn cpus(self, chosen: &Cpus) -> Cpus {
        match self {
            Self::Together => chosen.clone(),
            Self::Apart => chosen.apart(),
        }
    }
}
