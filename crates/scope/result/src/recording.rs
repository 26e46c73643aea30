//! The contents.

use scope_model::{Config, Counters, Sweep};
use serde::{Deserialize, Serialize};

/// All that was recorded between two marks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// What was modelled.
    pub config: Config,
    /// Instructions in all.
    pub instructions: u64,
    /// Who ran, in the order in which they were met; others name them by their place here.
    pub domains: Vec<Domain>,
    /// The code that ran.
    pub blocks: Vec<Block>,
    /// Misses of all sizes and policies.
    pub sweeps: Vec<(Owner, Sweep)>,
    /// What happened when.
    pub events: Vec<Event>,
    /// Events that came when there was no room for them any more.
    pub events_lost: u64,
    /// Counts as they grew.
    pub samples: Vec<Sample>,
    /// Misses in the time after events.
    pub after: Vec<After>,
    /// What was executed, block by block, in a part of the time.
    pub flow: Vec<Step>,
    /// What speaks for and against the rest.
    pub checks: Checks,
    /// The names of the code; the first is that of unknown code.
    pub functions: Vec<Function>,
    /// How much work was done meanwhile.
    pub work: Work,
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Function {
    /// Whose it is: `xen`, `vmlinux`, a module, a program, a library. Empty where that is unknown.
    pub module: String,
    /// Its name; empty where that is unknown.
    pub name: String,
}

/// What the guests did, by their own counters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// What was done, in the words of who had it done.
    pub what: String,
    /// Frames that crossed, however long.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Who runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Domain {
    /// A domain of Xen's, by its number.
    Xen(u16),
    /// Nobody.
    Idle,
    /// The one system of a machine without a hypervisor of its own.
    Machine,
    /// It could not be told.
    Unknown,
}

/// What kind of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// The hypervisor's.
    Hypervisor,
    /// A kernel's.
    Kernel,
    /// A program's.
    User,
}

impl Mode {
    /// By the place of its address.
    #[must_use]
    pub fn of(address: u64) -> Self {
        match address {
            0xffff_8000_0000_0000..0xffff_8800_0000_0000 => Self::Hypervisor,
            0xffff_8800_0000_0000.. => Self::Kernel,
            _ => Self::User,
        }
    }
}

/// Whom a sweep is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// Who runs: the place in [`Recording::domains`].
    pub domain: u8,
    /// What kind of code.
    pub mode: Mode,
}

/// Instructions that are executed one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The first one's virtual address.
    pub address: u64,
    /// Bytes of all.
    pub bytes: u16,
    /// How many.
    pub instructions: u16,
    /// Of a program: the root of its page tables when it was first met. 0 of other code.
    pub space: u64,
    /// Who ran when it was first met.
    pub home: u8,
    /// Whose code it is: the place in [`Recording::functions`].
    pub function: u32,
    /// What was counted, for each that it ran for.
    pub counters: Vec<(u8, Counters)>,
}

impl Block {
    /// What was counted in all.
    #[must_use]
    pub fn total(&self) -> Counters {
        let mut total = Counters::default();
        self.counters.iter().for_each(|(_, counters)| total += counters);
        total
    }
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Instructions until then.
    pub at: u64,
    /// What.
    pub kind: EventKind,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EventKind {
    /// Another domain runs: its place in [`Recording::domains`].
    Switch(u8),
    /// CR3 was written.
    Cr3,
    /// CR4 was written.
    Cr4,
    /// A page was taken out of the TLBs.
    Invalidate,
    /// A place that was asked for was reached: its number.
    Probe(u8),
}

/// Counts at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Instructions until then.
    pub at: u64,
    /// Misses of the ITLB until then.
    pub itlb: u64,
    /// Misses of the DTLB.
    pub dtlb: u64,
    /// Misses of L2, of code and data.
    pub l2: u64,
}

/// What comes after an event, on average.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct After {
    /// Which: its data is nothing.
    pub kind: EventKind,
    /// Sums over all such events, by the time since.
    pub profile: Profile,
}

/// Sums over events, in steps of [`Profile::STEP`] instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Events after which this step was reached before the next of the kind.
    pub events: Vec<u64>,
    /// Misses of both TLBs in the step.
    pub tlb: Vec<u64>,
    /// Misses of L2 in the step.
    pub l2: Vec<u64>,
}

impl Profile {
    /// Instructions of a step.
    pub const STEP: u64 = 500;
    /// How many steps there are.
    pub const STEPS: usize = 64;
}

/// A block that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Which: the place in [`Recording::blocks`].
    pub block: u32,
    /// For whom: the place in [`Recording::domains`].
    pub domain: u8,
    /// Lines that L1 did not have, code and data.
    pub l1: u16,
    /// Lines that L2 did not have.
    pub l2: u16,
    /// Translations that the ITLB did not have.
    pub itlb: u16,
    /// Translations that the DTLB did not have.
    pub dtlb: u16,
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    /// Accesses whose page tables could not be read.
    pub untranslated: u64,
    /// Hits of the model's DTLB that were compared with QEMU's own translation.
    pub compared: u64,
    /// Those that differed.
    pub stale: u64,
    /// Switches to a domain whose number could not be read.
    pub unknown_switches: u64,
}
