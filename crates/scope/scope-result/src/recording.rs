//! The contents of a recording.

use schemars::JsonSchema;
use scope_model::{Config, Counters, EventCounts, LayoutMisses, Sweep};
use serde::{Deserialize, Serialize};

/// Everything that was recorded between two marks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    /// The caches and TLBs that were modelled.
    pub config: Config,
    /// All instructions.
    pub instructions: u64,
    /// The domains that ran, in the order of their appearance. Other fields refer to them by index.
    pub domains: Vec<Domain>,
    /// The blocks of code that ran.
    pub blocks: Vec<Block>,
    /// Misses under several layouts of a program; none if they were not modelled.
    pub layouts: Option<LayoutCounts>,
    /// Misses under every size and policy.
    pub sweeps: Vec<(Owner, Sweep)>,
    /// Events, in the order of time.
    pub events: Vec<Event>,
    /// The number of events that were dropped because there were too many.
    pub events_lost: u64,
    /// Counts over time.
    pub samples: Vec<Sample>,
    /// Misses after events.
    pub after: Vec<After>,
    /// The flow: every executed block, for a part of the time.
    pub flow: Vec<Step>,
    /// The call graph; empty if it was not recorded.
    pub calls: Vec<CallNode>,
    /// The frames of each interface.
    pub frames: Vec<InterfaceFrames>,
    /// Checks of the recording's validity.
    pub checks: Checks,
    /// The functions of the code; the first one stands for unknown code.
    pub functions: Vec<Function>,
    /// Source lines of code with debug information, in the order of blocks and of their code.
    pub lines: Vec<SourceLine>,
    /// The files of source lines.
    pub files: Vec<String>,
    /// The names of inlined functions.
    pub inlined: Vec<String>,
    /// The work that was done meanwhile.
    pub work: Work,
    /// What the recording was made with.
    pub provenance: Provenance,
}

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Function {
    /// Its module: `xen`, `vmlinux`, a kernel module, a program or a library. Empty if unknown.
    pub module: String,
    /// Its name; empty if unknown.
    pub name: String,
}

impl Function {
    /// A module's function.
    #[must_use]
    pub fn new(module: &str, name: &str) -> Self {
        Self { module: module.to_owned(), name: name.to_owned() }
    }
}

/// The work of the guests: the frames of one interface in both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Work {
    /// A description of the work.
    pub what: String,
    /// Frames that crossed, of any length.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames with a payload; 0 if they were not told apart.
    pub data_frames: u64,
    /// Segments of TCP without a payload.
    pub acks: u64,
    /// Bytes of payload.
    pub payload: u64,
    /// The interface whose driver saw the frames between the marks. Empty if a guest's own counters were read before and
    /// after.
    pub interface: String,
}

/// A domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Domain {
    /// A Xen domain, by its number.
    Xen(u16),
    /// Xen's idle domain.
    Idle,
    /// The system of a machine without a hypervisor.
    Machine,
    /// A domain that could not be determined.
    Unknown,
}

/// A kind of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Mode {
    /// Hypervisor code.
    Hypervisor,
    /// Kernel code.
    Kernel,
    /// Program code.
    User,
}

impl Mode {
    /// The kind of the code at an address, which the processor executes with this privilege level (CPL), if that is known.
    ///
    /// Xen's guests run their kernels and their programs at the same level, 3: there the address tells. A unikernel has its
    /// own program below, at level 0.
    #[must_use]
    pub fn of(address: u64, level: Option<u8>) -> Self {
        match address {
            0xffff_8000_0000_0000..0xffff_8800_0000_0000 => Self::Hypervisor,
            0xffff_8800_0000_0000.. => Self::Kernel,
            _ if level.is_some_and(|level| level < 3) => Self::Kernel,
            _ => Self::User,
        }
    }
}

/// The owner of misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Owner {
    /// The domain that runs: an index into [`Recording::domains`].
    pub domain: u8,
    /// A kind of code.
    pub mode: Mode,
}

/// A block: instructions that are executed one after the other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    /// The virtual address of the first instruction.
    pub address: u64,
    /// The bytes of all instructions, as they were when the block was first executed.
    pub code: Vec<u8>,
    /// The number of instructions.
    pub instructions: u16,
    /// The kind of code.
    pub mode: Mode,
    /// The root of the page tables when it was first executed, for program code; otherwise 0.
    pub space: u64,
    /// The domain that ran when it was first executed: an index into [`Recording::domains`].
    pub domain: u8,
    /// Its function: an index into [`Recording::functions`].
    pub function: u32,
    /// The counts, by the domain that it was executed for.
    pub counters: Vec<(u8, Counters)>,
}

impl Block {
    /// A block for tests: one instruction of four bytes at an address, which tells the kind of code.
    #[must_use]
    pub fn at(address: u64) -> Self {
        let (code, mode) = (vec![0x90; 4], Mode::of(address, None));
        let (space, domain, function, counters) = (0, 0, 0, Vec::new());
        Self { address, code, instructions: 1, mode, space, domain, function, counters }
    }

    /// The counts of all domains together.
    #[must_use]
    pub fn total(&self) -> Counters {
        let mut total = Counters::default();
        self.counters.iter().for_each(|(_, counters)| total += counters);
        total
    }

    /// The events of one execution that cost more than an instruction, by number.
    #[must_use]
    pub fn events(&self) -> EventCounts {
        let counters = self.counters.iter().map(|(_, counters)| counters);
        let executed = counters.into_iter().find(|counters| counters.executions > 0);
        executed.map_or(EventCounts::default(), |counters| {
            counters.events.map(|count| count / counters.executions)
        })
    }
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Instructions until then.
    pub at: u64,
    /// What happened.
    pub kind: EventKind,
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EventKind {
    /// A switch to another domain: an index into [`Recording::domains`].
    Switch(u8),
    /// A write of CR3.
    Cr3,
    /// A write of CR4.
    Cr4,
    /// The invalidation of a page in the TLBs.
    Invalidate,
    /// The execution of a probe's address: its number.
    Probe(u8),
}

/// Counts at one point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Instructions until then.
    pub at: u64,
    /// Misses of the ITLB until then.
    pub itlb: u64,
    /// Misses of the DTLB.
    pub dtlb: u64,
    /// Misses of L2 for code and data.
    pub l2: u64,
}

/// The misses after events of a kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct After {
    /// The kind of event; its data has no meaning.
    pub kind: EventKind,
    /// Sums over all these events, by the time since.
    pub profile: Profile,
}

/// Sums over events, in steps of [`Profile::STEP`] instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Profile {
    /// Events after which this step ended before the next event of the kind.
    pub events: Vec<u64>,
    /// Misses of both TLBs in the step.
    pub tlb: Vec<u64>,
    /// Misses of L2 in the step.
    pub l2: Vec<u64>,
}

impl Profile {
    /// Instructions of a step.
    pub const STEP: u64 = 500;
    /// The number of steps.
    pub const STEPS: usize = 64;
}

/// A block of the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// The block: an index into [`Recording::blocks`].
    pub block: u32,
    /// The domain: an index into [`Recording::domains`].
    pub domain: u8,
    /// Lines of code and data that L1 missed.
    pub l1: u16,
    /// Those of them that followed a neighbouring line.
    pub l1_sequential: u16,
    /// Lines that L2 missed.
    pub l2: u16,
    /// Those of them that followed a neighbouring line.
    pub l2_sequential: u16,
    /// Lines that came from memory.
    pub l3: u16,
    /// Those of them that followed a neighbouring line.
    pub l3_sequential: u16,
    /// Walks of the page tables.
    pub page_walks: u16,
    /// Translations that the ITLB missed.
    pub itlb: u16,
    /// Translations that the DTLB missed.
    pub dtlb: u16,
    /// The node of the call graph: an index into [`Recording::calls`].
    pub node: u32,
}

/// Checks of a recording's validity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    /// Page walks that found nothing mapped.
    pub untranslated: u64,
    /// Hits of the model's DTLB that were compared with QEMU's own translation.
    pub compared: u64,
    /// Those of them that differed.
    pub stale: u64,
    /// Switches to a domain whose number could not be read.
    pub unknown_switches: u64,
    /// Instructions by QEMU's own clock, of the time between the time stamps at the marks. Idle time counts as instructions
    /// that would have fitted in. None if a mark had no time stamp.
    pub clock: Option<u64>,
    /// Calls of functions that get frames, with arguments that are no frames.
    pub not_frames: u64,
    /// Writes of CR3 in the hypervisor's function for another address space.
    pub new_spaces: u64,
}

/// A function that was entered by one chain of calls. [`Recording::calls`](crate::Recording::calls) has the parents before their
/// children; the first node is the root, which no code belongs to and which is its own parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallNode {
    /// The caller: an index into [`Recording::calls`](crate::Recording::calls).
    pub parent: u32,
    /// How the execution comes here.
    pub kind: CallKind,
    /// The block that was entered first, and so the function: an index into [`Recording::blocks`](crate::Recording::blocks).
    pub block: u32,
    /// The block that called first; none for a node below the root.
    pub site: Option<u32>,
    /// The domain that ran then: an index into [`Recording::domains`](crate::Recording::domains).
    pub domain: u8,
    /// The root of the page tables then.
    pub space: u64,
    /// The counts without those of its children. The executions are the calls; accesses are not counted.
    pub counters: Counters,
}

/// How the execution comes to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum CallKind {
    /// By a call.
    Call,
    /// By a jump to another function, as in a tail call: both return to the caller of the first.
    Jump,
    /// By a system call, a hypercall or an exception of the parent.
    Trap,
    /// By an interrupt. Its parent is the root.
    Interrupt,
    /// The caller was not seen: it called before the recording began. Its parent is the root.
    Unknown,
}

/// Misses under several layouts of a program at once. Interrupts are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutCounts {
    /// The misses of each layout.
    pub layouts: Vec<LayoutMisses>,
    /// The misses of each block, by its number, under all layouts together.
    pub blocks: Vec<BlockMisses>,
}

/// The misses of a block under all layouts together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockMisses {
    /// Lines of code and data that L1 missed.
    pub lines: u64,
    /// Pages of data that the DTLBs of all sizes missed.
    pub pages: u64,
}

/// The frames of an interface in one direction, counted where its driver gets or gives them.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct InterfaceFrames {
    /// The domain: an index into [`Recording::domains`](crate::Recording::domains).
    pub domain: u8,
    /// The interface's name in its domain.
    pub interface: String,
    /// Whether the kernel sends them, else it receives.
    pub sent: bool,
    /// The counts.
    pub counts: FrameCounts,
}

/// Counts of frames. A frame is what the driver handles as one, of up to 64 KiB with offloads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct FrameCounts {
    /// Frames with a payload.
    pub data: u64,
    /// Segments of TCP without a payload.
    pub acks: u64,
    /// All other frames.
    pub others: u64,
    /// Bytes of all of them, from the Ethernet header on.
    pub bytes: u64,
    /// Bytes of payload above TCP or UDP.
    pub payload: u64,
}

impl FrameCounts {
    /// All frames.
    #[must_use]
    pub fn frames(&self) -> u64 {
        self.data + self.acks + self.others
    }
}

impl std::ops::AddAssign for FrameCounts {
    fn add_assign(&mut self, other: Self) {
        self.data += other.data;
        self.acks += other.acks;
        self.others += other.others;
        self.bytes += other.bytes;
        self.payload += other.payload;
    }
}

/// The source line of a part of a block: of instructions in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceLine {
    /// The block: an index into [`Recording::blocks`](crate::Recording::blocks).
    pub block: u32,
    /// The bytes of the block before these instructions.
    pub offset: u16,
    /// The number of the instructions.
    pub instructions: u16,
    /// Their line; of inlined code, the line that was inlined.
    pub line: FileLine,
    /// The functions that were inlined there, the outermost first.
    pub inlined: Vec<Inlined>,
}

/// A line of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileLine {
    /// The file: an index into [`Recording::files`](crate::Recording::files).
    pub file: u32,
    /// The line, from 1; 0 for code that belongs to no line.
    pub line: u32,
}

/// An inlined function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Inlined {
    /// Its name: an index into [`Recording::inlined`](crate::Recording::inlined).
    pub name: u32,
    /// Where the function around it calls it.
    pub call: FileLine,
}

impl SourceLine {
    /// The line of the function that was not inlined: where it calls the outermost one, if there is one.
    #[must_use]
    pub fn outermost(&self) -> FileLine {
        self.inlined.first().map_or(self.line, |inlined| inlined.call)
    }
}

/// What a recording's numbers depend on besides the modelled processor.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct Provenance {
    /// The version of pvscope; empty if the plugin ran without it.
    pub pvscope: String,
    /// QEMU, as it names itself.
    pub qemu: String,
    /// QEMU's arguments, for a machine of the user's; folders that differ between runs have a fixed name.
    pub machine: Vec<String>,
    /// The name of the workload.
    pub workload: String,
    /// Options that change counts.
    pub options: Vec<String>,
    /// Whether the machine was loaded from a snapshot at its first mark; otherwise it booted.
    pub from_snapshot: bool,
    /// What the machine boots: kernel, hypervisor, file systems.
    pub images: Vec<FileDigest>,
    /// Programs whose files were given: in the guests by these paths.
    pub programs: Vec<FileDigest>,
}

/// A file that a recording was made with.
#[derive(Clone, Debug, Default, PartialEq, Eq, JsonSchema, Serialize, Deserialize)]
pub struct FileDigest {
    /// What it is, or its path.
    pub name: String,
    /// The first eight bytes of its SHA-256, in hexadecimal digits.
    pub digest: String,
    /// The compiler and the profile, as far as they are known.
    pub built_by: String,
}
