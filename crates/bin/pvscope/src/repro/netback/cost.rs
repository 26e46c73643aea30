//! What a recording says of a byte, a packet or a round.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use scope_model::{CostEvent, Costs, Counters};
use scope_result::{Domain, Mode, Recording};
use serde::Serialize;

use super::pairs::Unit;
use crate::repro::measure::calls;
use crate::summary::{Part, Summary, Who, function_name, plain, who};
use crate::workload::Workload;

named::named! {
    /// Who works.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Share {
        Guest => "guest",
        Xen => "xen",
        Dom0Kernel => "dom0-kernel",
        Dom0Programs => "dom0-programs",
    }
}

impl Share {
    /// Whose a part of the work is. Xen's own idling is nobody's. The backend's domain is counted as dom0, which has next to nothing to do
    /// beside a driver domain.
    fn of(part: &Part, backend: &Domain) -> Option<Self> {
        let hosts = [&Domain::Xen(0), backend].map(|domain| who(Some(domain), part.mode));
        match (&part.who, part.mode) {
            (Who::Idle, _) => None,
            (Who::Xen, _) => Some(Self::Xen),
            (who, mode) if hosts.contains(who) => {
                Some(if mode == Mode::User { Self::Dom0Programs } else { Self::Dom0Kernel })
            }
            (Who::Domain(_), _) => Some(Self::Guest),
        }
    }
}

/// Counts of a share, each for a unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Counts {
    /// Instructions.
    pub instructions: f64,
    /// Model cycles.
    pub cycles: f64,
    /// Bytes that functions of Xen and of kernels have copied. Programs copy in functions that have no names.
    pub copied: f64,
}

/// A function's cost for a unit.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct FunctionCost {
    /// Whose it is: a share's name.
    pub who: String,
    /// The module.
    pub module: String,
    /// The function.
    pub function: String,
    /// Model cycles.
    pub cycles: f64,
    /// Instructions.
    pub instructions: f64,
}

/// The costs of a workload for a unit.
#[derive(Clone, Debug, Default, PartialEq, JsonSchema, Serialize)]
pub struct Cost {
    /// The workload.
    pub workload: String,
    /// How many bytes, packets or rounds were recorded.
    pub units: u64,
    /// Bytes of payload in a frame with payload, on average.
    pub frame_payload: f64,
    /// Acknowledgements of TCP for each frame with payload.
    pub acks: f64,
    /// By who works: `guest`, `xen`, `dom0-kernel`, `dom0-programs`. The last two have a driver domain's too.
    pub shares: BTreeMap<String, Counts>,
    /// For a unit: `hypercalls`, `vm-switches`, `notifications` (events that domains send), `system-calls` of all domains, `cr3-writes`.
    pub events: BTreeMap<String, f64>,
    /// The functions, those with the most cycles first.
    #[serde(skip)]
    pub functions: Vec<FunctionCost>,
}

/// The shares of dom0's kernel and programs.
pub const DOM0: [Share; 2] = [Share::Dom0Kernel, Share::Dom0Programs];

impl Cost {
    pub fn new(recording: &Recording, workload: Workload, unit: Unit, costs: Costs) -> Self {
        let work = &recording.work;
        let units = match unit {
            Unit::Byte => work.payload,
            Unit::Packet => work.data_frames,
            Unit::Round => work.data_frames / 2,
        };
        let per = |count: f64| count / units.max(1) as f64;
        let summary = Summary::new(recording, costs);
        let mut shares: BTreeMap<String, Counts> =
            Share::ALL.map(|share| (share.name().to_owned(), Counts::default())).into();
        let mut functions = Vec::new();
        let mut total = Counters::default();
        let backend = workload.backend();
        let parts = summary.by(|part| (Share::of(part, &backend), part.function.clone()));
        for ((share, function), counters) in parts {
            let Some(share) = share else { continue };
            total += &counters;
            let (instructions, cycles) =
                (per(counters.instructions as f64), per(summary.cycles(&counters)));
            let sum = shares.entry(share.name().to_owned()).or_default();
            sum.instructions += instructions;
            sum.cycles += cycles;
            let width = copy_width(&function.module, &function.name);
            sum.copied += per((counters.writes * width) as f64);
            let (module, function) = function_name(&function);
            let who = share.name().to_owned();
            functions.push(FunctionCost { who, module, function, cycles, instructions });
        }
        let event = |event: CostEvent| per(total.events[event as usize] as f64);
        let events = [
            ("hypercalls", event(CostEvent::Hypercall)),
            ("vm-switches", event(CostEvent::VmSwitch)),
            ("notifications", per(calls(recording, "evtchn_send") as f64)),
            ("system-calls", event(CostEvent::Syscall)),
            ("cr3-writes", event(CostEvent::Cr3)),
        ];
        Self {
            workload: workload.name.to_owned(),
            units,
            frame_payload: work.payload as f64 / work.data_frames.max(1) as f64,
            acks: work.acks as f64 / work.data_frames.max(1) as f64,
            shares,
            events: events.map(|(name, count)| (name.to_owned(), count)).into(),
            functions,
        }
    }

    /// The sum over some shares.
    pub fn sum(&self, shares: &[Share]) -> Counts {
        let counts = shares.iter().filter_map(|share| self.shares.get(share.name()));
        counts.fold(Counts::default(), |sum, counts| Counts {
            instructions: sum.instructions + counts.instructions,
            cycles: sum.cycles + counts.cycles,
            copied: sum.copied + counts.copied,
        })
    }
}

/// Functions of Linux and of Xen that copy, by their names without suffixes. They write 8 bytes at a time.
const COPIES: [&str; 9] = [
    "copy_user_generic_unrolled",
    "copy_user_generic_string",
    "copy_user_enhanced_fast_string",
    "__memcpy",
    "memcpy",
    "memcpy_orig",
    "memmove",
    "csum_partial_copy_generic",
    "copy_page",
];

/// How many bytes a write of this function copies; 0 for those that do something else, or whose copies have no names (C libraries').
fn copy_width(module: &str, name: &str) -> u64 {
    let is_copy = matches!(module, "vmlinux" | "xen") && COPIES.contains(&plain(name));
    if is_copy { 8 } else { 0 }
}

#[cfg(test)]
pub mod tests {
    use scope_result::{Block, Function, Work};

    use super::*;

    /// A recording of 10 packets, with a block of 100 instructions for each kind of code.
    pub fn recording() -> Recording {
        let block = |address: u64, function, domain, mode| Block {
            mode,
            domain,
            function,
            counters: vec![(
                domain,
                Counters { executions: 100, instructions: 100, writes: 50, ..Counters::default() },
            )],
            ..Block::at(address)
        };
        Recording {
            domains: vec![Domain::Xen(0), Domain::Xen(1), Domain::Idle],
            functions: vec![
                Function::default(),
                Function::new("vmlinux", "copy_user_generic_unrolled"),
                Function::new("xen", "common/event_channel.c#evtchn_send"),
            ],
            blocks: vec![
                block(0xffff_82d0_4000_0000, 2, 0, Mode::Hypervisor),
                block(0xffff_82d0_4000_1000, 2, 2, Mode::Hypervisor),
                block(0xffff_ffff_8100_0000, 1, 0, Mode::Kernel),
                block(0x40_0000, 0, 0, Mode::User),
                block(0xffff_ffff_8100_0000, 0, 1, Mode::Kernel),
                block(0x40_0000, 0, 1, Mode::User),
            ],
            work: Work { data_frames: 10, payload: 1000, acks: 5, ..Work::default() },
            ..Recording::default()
        }
    }

    pub fn cost(workload: &str, unit: Unit) -> Cost {
        Cost::new(&recording(), Workload::named(workload).unwrap(), unit, Costs::default())
    }

    #[test]
    fn a_packet_costs_what_everybody_but_the_idle_domain_does() {
        let cost = super::tests::cost("rounds-pvnet", Unit::Packet);
        let instructions = |share: Share| cost.shares[share.name()].instructions;
        assert_eq!(Share::ALL.map(instructions), [20.0, 10.0, 10.0, 10.0]);
        assert_eq!(cost.sum(&DOM0).instructions, 20.0);
        assert_eq!(cost.shares["dom0-kernel"].copied, 40.0);
        assert_eq!(cost.shares["guest"].copied, 0.0);
        // The first block of the function runs 100 times.
        assert_eq!(cost.events["notifications"], 10.0);
        assert_eq!((cost.units, cost.frame_payload, cost.acks), (10, 100.0, 0.5));
        let units = |unit| super::tests::cost("rounds-pvnet", unit).units;
        assert_eq!([Unit::Round, Unit::Byte].map(units), [5, 1000]);
    }

    #[test]
    fn a_driver_domain_is_counted_as_dom0_and_not_as_a_guest() {
        let cost = cost("domain-rounds-pvnet", Unit::Packet);
        let instructions = |share: Share| cost.shares[share.name()].instructions;
        assert_eq!(Share::ALL.map(instructions), [0.0, 10.0, 20.0, 20.0]);
    }
}
