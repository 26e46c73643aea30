//! Events that cost more than their instructions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Defines the events, their names and the table of their costs.
macro_rules! cost_events {
    ($($(#[$doc:meta])* $event:ident $name:ident $title:literal,)*) => {
        /// An event that costs more than its instructions and misses.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CostEvent {
            $($(#[$doc])* $event,)*
        }

        impl CostEvent {
            /// All events, in the order of their numbers.
            pub const ALL: [Self; [$(Self::$event),*].len()] = [$(Self::$event),*];

            /// A description for tables.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self {
                    $(Self::$event => $title,)*
                }
            }
        }

        /// The cost of each event in model cycles, besides its instructions and misses.
        #[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct EventCosts {
            $($(#[$doc])* pub $name: f64,)*
        }

        impl EventCosts {
            /// The costs in the order of the events' numbers, with their names.
            #[must_use]
            pub fn named(&self) -> [(&'static str, f64); CostEvent::ALL.len()] {
                [$((stringify!($name), self.$name)),*]
            }
        }
    };
}

cost_events! {
    /// A write of CR3.
    Cr3 cr3 "write of CR3",
    /// A write of CR4.
    Cr4 cr4 "write of CR4",
    /// INVLPG or INVPCID.
    Invlpg invlpg "INVLPG or INVPCID",
    /// A system call of a program, and the return from it.
    Syscall syscall "system call",
    /// A return from an interrupt or an exception, and the entry before it.
    Iret iret "IRET",
    /// A call of the hypervisor, and the return from it.
    Hypercall hypercall "hypercall",
    /// An instruction that locks the bus.
    Locked locked "locked instruction",
    /// An instruction that saves or loads the state of the FPU, whose data the models do not see.
    FpuState fpu_state "FPU state saved or loaded",
    /// A switch of Xen from one virtual processor to another.
    VmSwitch vm_switch "switch of virtual processors",
}

/// How often each event happened, by number.
pub type EventCounts = [u64; CostEvent::ALL.len()];
