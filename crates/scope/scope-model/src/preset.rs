//! Processors whose sizes and costs are known roughly.

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::cost::Costs;
use crate::cost_event::EventCosts;
use crate::policy::Policy;

/// A processor: the sizes of its caches and TLBs, and the costs of its events.
///
/// The costs are round numbers of the published order of magnitude. `pvscope calibrate` compares them with the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Preset {
    /// A server of 2007 at 3 GHz, with the sizes of Chadha et al.: 2 MiB of L2 before memory, 64 TLB entries before the page
    /// tables.
    #[serde(rename = "2007")]
    Of2007,
    /// A present server at 3 to 4 GHz: 1 MiB of L2, a slice of 16 MiB of L3, 64 TLB entries and 1024 behind them.
    #[default]
    #[serde(rename = "server")]
    Server,
}

impl Preset {
    /// All presets.
    pub const ALL: [Self; 2] = [Self::Of2007, Self::Server];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Of2007 => "2007",
            Self::Server => "server",
        }
    }

    /// The preset of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|preset| preset.name() == name)
    }
}

impl Default for Config {
    fn default() -> Self {
        Preset::default().config()
    }
}

impl Default for Costs {
    fn default() -> Self {
        Preset::default().costs()
    }
}

impl Preset {
    /// The sizes.
    #[must_use]
    pub fn config(self) -> Config {
        let base = Config {
            preset: self,
            l1_bytes: 32 << 10,
            l2: 3,
            l3: None,
            tlb: 2,
            tlb2: None,
            kernel_superpages: false,
            policy: Policy::Real,
            single: false,
        };
        match self {
            Self::Of2007 => base,
            Self::Server => Config { l2: 2, l3: Some(6), tlb2: Some(6), ..base },
        }
    }

    /// The costs.
    #[must_use]
    pub fn costs(self) -> Costs {
        match self {
            Self::Of2007 => Costs {
                instruction: 0.6,
                l2_hit: 14.0,
                l2_sequential: 5.0,
                l3_hit: 40.0,
                l3_sequential: 15.0,
                memory: 270.0,
                memory_sequential: 54.0,
                tlb2_hit: 7.0,
                page_walk: 30.0,
                event: EventCosts {
                    cr3: 300.0,
                    cr4: 300.0,
                    invlpg: 200.0,
                    syscall: 150.0,
                    iret: 300.0,
                    hypercall: 150.0,
                    locked: 20.0,
                    fpu_state: 100.0,
                    vm_switch: 500.0,
                },
            },
            Self::Server => Costs {
                instruction: 0.3,
                l2_hit: 14.0,
                l2_sequential: 3.0,
                l3_hit: 50.0,
                l3_sequential: 5.0,
                memory: 330.0,
                memory_sequential: 15.0,
                tlb2_hit: 7.0,
                page_walk: 30.0,
                event: EventCosts {
                    cr3: 200.0,
                    cr4: 200.0,
                    invlpg: 120.0,
                    syscall: 100.0,
                    iret: 200.0,
                    hypercall: 100.0,
                    locked: 18.0,
                    fpu_state: 100.0,
                    vm_switch: 400.0,
                },
            },
        }
    }
}
