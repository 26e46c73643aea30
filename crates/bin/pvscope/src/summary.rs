//! Sums over a recording, by domain and function, and per frame.

use std::collections::BTreeMap;

use clap::ValueEnum;
use scope_model::{Costs, Counters, Sweep};
use scope_result::{Block, Domain, EventKind, Function, Mode, Owner, Recording};

/// Who works.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    /// The hypervisor, on behalf of any domain.
    Xen,
    /// The kernel and programs of a domain, by the domain's name.
    Domain(String),
    /// The idle domain.
    Idle,
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Xen => "Xen",
            Self::Domain(name) => name,
            Self::Idle => "idle",
        })
    }
}

/// Who works when this kind of code runs for this domain.
pub fn who(domain: Option<&Domain>, mode: Mode) -> Who {
    match (domain, mode) {
        (Some(Domain::Idle), _) => Who::Idle,
        (_, Mode::Hypervisor) => Who::Xen,
        (Some(Domain::Xen(0)), _) => Who::Domain("dom0".to_owned()),
        (Some(Domain::Xen(number)), _) => Who::Domain(format!("domU {number}")),
        (Some(Domain::Machine), _) => Who::Domain("machine".to_owned()),
        (Some(Domain::Unknown) | None, _) => Who::Domain("unknown".to_owned()),
    }
}

/// A kind of code in words.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Hypervisor => "hypervisor",
        Mode::Kernel => "kernel",
        Mode::User => "user",
    }
}

/// A part of the work, for sums.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part {
    /// Who works.
    pub who: Who,
    /// The kind of code.
    pub mode: Mode,
    pub function: Function,
}

impl Part {
    /// The part that a block is of when it runs for a domain.
    pub fn of(recording: &Recording, block: &Block, domain: u8) -> Self {
        let function = recording.functions.get(block.function as usize);
        let (mode, function) = (block.mode, function.cloned().unwrap_or_default());
        Self { who: who(recording.domains.get(usize::from(domain)), mode), mode, function }
    }
}

/// Sums over a recording.
#[derive(Debug)]
pub struct Summary<'a> {
    pub recording: &'a Recording,
    costs: Costs,
    event: Event,
    parts: BTreeMap<Part, Counters>,
    /// The counts of everything.
    pub total: Counters,
    /// The misses under every size and policy of the owners that are selected, whatever their functions.
    pub sweep: Sweep,
}

impl<'a> Summary<'a> {
    /// The sums of a recording, with the costs of events.
    pub fn new(recording: &'a Recording, costs: Costs) -> Self {
        let mut parts = BTreeMap::<Part, Counters>::new();
        let mut total = Counters::default();
        for block in &recording.blocks {
            for (domain, counters) in &block.counters {
                *parts.entry(Part::of(recording, block, *domain)).or_default() += counters;
                total += counters;
            }
        }
        let (event, sweep) = (Event::Cycles, Sweep::default());
        Self { recording, costs, event, parts, total, sweep }.of_owners(|_, _| true)
    }

    /// The same with the sizes and policies of those who `selects` has: who works, and the kind of code.
    pub fn of_owners(mut self, selects: impl Fn(&Who, Mode) -> bool) -> Self {
        let domain = |owner: &Owner| self.recording.domains.get(usize::from(owner.domain));
        let mut sweep = Sweep::default();
        let owners = self.recording.sweeps.iter();
        owners
            .filter(|(owner, _)| selects(&who(domain(owner), owner.mode), owner.mode))
            .for_each(|(_, part)| sweep += part);
        self.sweep = sweep;
        self
    }

    /// The same with the parts that `selects` has; the total stays that of everything.
    pub fn only(mut self, selects: impl Fn(&Part) -> bool) -> Self {
        self.parts.retain(|part, _| selects(part));
        self
    }

    /// The same, with code weighed by something else than cycles.
    pub fn weighed_by(self, event: Event) -> Self {
        Self { event, ..self }
    }

    /// What code is weighed by.
    pub fn event(&self) -> Event {
        self.event
    }

    /// The weight of these counts.
    pub fn weight(&self, counters: &Counters) -> f64 {
        self.event.of(counters, &self.costs)
    }

    /// The costs of events.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// The model cycles of these counts.
    pub fn cycles(&self, counters: &Counters) -> f64 {
        self.costs.cycles(counters)
    }

    /// The sums of all parts with the same `key`, those with the most weight first.
    pub fn by<K: Ord + Clone>(&self, key: impl Fn(&Part) -> K) -> Vec<(K, Counters)> {
        let mut sums = BTreeMap::<K, Counters>::new();
        for (part, counters) in &self.parts {
            *sums.entry(key(part)).or_default() += counters;
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by(|(_, a), (_, b)| self.weight(b).total_cmp(&self.weight(a)));
        sums
    }

    /// A count per frame; the total if no frames were counted.
    pub fn per_frame(&self, count: f64) -> f64 {
        count / self.frames()
    }

    /// The number of frames, or 1 if none were counted.
    pub fn frames(&self) -> f64 {
        self.recording.work.frames.max(1) as f64
    }

    /// A count per 10⁹ bytes of frames.
    pub fn per_gigabyte(&self, count: f64) -> f64 {
        count / self.recording.work.bytes.max(1) as f64 * 1e9
    }

    /// The number of events of some kinds.
    pub fn events(&self, is: impl Fn(EventKind) -> bool) -> u64 {
        let events = self.recording.events.iter();
        events.filter(|event| is(event.kind)).count() as u64
    }
}

/// A C function's name without the file name that Xen puts before static functions, and without the compiler's suffixes, as in
/// `common/event_fifo.c#evtchn_fifo_set_pending`, `xenvif_tx_build_gops.constprop.0`.
pub fn plain(name: &str) -> &str {
    let name = name.rsplit('#').next().unwrap_or(name);
    name.split('.').next().unwrap_or(name)
}

/// A function's module and name for display.
pub fn function_name(function: &Function) -> (String, String) {
    let unknown = |text: &str| if text.is_empty() { "unknown".to_owned() } else { text.to_owned() };
    (unknown(&function.module), unknown(&function.name))
}

named::named! {
    /// What code is weighed by: the order of rows, their shares, and the widths of a flame graph.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
    pub enum Event {
        /// Model cycles.
        #[default]
        Cycles => "cycles",
        /// Instructions.
        Instructions => "instructions",
        /// Lines of code that L1 missed.
        L1i => "L1I misses",
        /// Lines of data that L1 missed.
        L1d => "L1D misses",
        /// Lines that L2 missed.
        L2 => "L2 misses",
        /// Lines from memory.
        Memory => "lines from memory",
        /// Misses of the ITLB.
        Itlb => "ITLB misses",
        /// Misses of the DTLB.
        Dtlb => "DTLB misses",
        /// Walks of the page tables.
        PageWalks => "page walks",
    }
}

impl Event {
    /// The weight of counts.
    pub fn of(self, counters: &Counters, costs: &Costs) -> f64 {
        let count = match self {
            Self::Cycles => return costs.cycles(counters),
            Self::Instructions => counters.instructions,
            Self::L1i => counters.l1i_misses,
            Self::L1d => counters.read_misses + counters.write_misses,
            Self::L2 => counters.l2i_misses + counters.l2d_misses,
            Self::Memory => counters.l3_misses,
            Self::Itlb => counters.itlb_misses,
            Self::Dtlb => counters.dtlb_misses,
            Self::PageWalks => counters.page_walks,
        };
        count as f64
    }
}

#[cfg(test)]
mod tests {
    use scope_result::Work;

    use super::*;

    fn block(address: u64, function: u32, instructions: &[(u8, u64)]) -> Block {
        let counters = |n| Counters { instructions: n, ..Counters::default() };
        let counters = instructions.iter().map(|(domain, n)| (*domain, counters(*n))).collect();
        Block { function, counters, ..Block::at(address) }
    }

    #[test]
    fn sizes_and_policies_can_be_those_of_one_owner() {
        let sweep = |misses| Sweep { l2d: [misses; scope_model::L2_SIZES], ..Sweep::default() };
        let owner = |domain, mode| Owner { domain, mode };
        let recording = Recording {
            domains: vec![Domain::Xen(0), Domain::Xen(1)],
            sweeps: vec![
                (owner(0, Mode::Kernel), sweep(1)),
                (owner(0, Mode::Hypervisor), sweep(10)),
                (owner(1, Mode::Kernel), sweep(100)),
                (owner(1, Mode::Hypervisor), sweep(1000)),
            ],
            ..Recording::default()
        };
        let all = Summary::new(&recording, Costs::default());
        assert_eq!(all.sweep.l2d[0], 1111);
        let of = |wanted: Who| {
            let summary = Summary::new(&recording, Costs::default());
            summary.of_owners(|who, _| *who == wanted).sweep.l2d[0]
        };
        assert_eq!((of(Who::Xen), of(Who::Domain("dom0".to_owned()))), (1010, 1));
    }

    #[test]
    fn sums_by_any_key_add_up_and_include_unknown_code() {
        let function = |module: &str| Function::new(module, "f");
        let recording = Recording {
            instructions: 111,
            domains: vec![Domain::Xen(0), Domain::Xen(1), Domain::Idle],
            blocks: vec![
                block(0xffff_82d0_4000_0000, 1, &[(0, 1), (2, 10)]),
                block(0xffff_ffff_8100_0000, 2, &[(1, 60)]),
                block(0x40_0000, 0, &[(0, 40)]),
            ],
            functions: vec![Function::default(), function("xen"), function("vmlinux")],
            work: Work { frames: 3, bytes: 1500, ..Work::default() },
            ..Recording::default()
        };
        let summary = Summary::new(&recording, Costs::default());
        assert_eq!(summary.total.instructions, recording.instructions);
        let sum =
            |rows: &[(_, Counters)]| rows.iter().map(|(_, row)| row.instructions).sum::<u64>();
        assert_eq!(sum(&summary.by(|part| part.who.to_string())), 111);
        assert_eq!(sum(&summary.by(|part| part.function.module.clone())), 111);
        let rows = summary.by(|part| part.who.clone());
        let of =
            |who: &Who| rows.iter().find(|(own, _)| own == who).map(|(_, row)| row.instructions);
        assert_eq!(of(&Who::Idle), Some(10));
        assert_eq!(of(&Who::Xen), Some(1));
        assert_eq!(of(&Who::Domain("dom0".to_owned())), Some(40));
        assert!((summary.per_frame(111.0) - 37.0).abs() < 1e-9);
    }
}
