//! The sizes and costs of the presets.

use crate::config::{Config, Policy, Preset};
use crate::cost::Costs;
use crate::cost_event::EventCosts;

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
