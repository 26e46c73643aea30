//! Records the execution of a guest.
//!
//! [`Tracer`] gets every block, the data accesses that [`accesses`] could not derive from others, and the few instructions that
//! [`flush_instruction`] finds. It knows which domain runs, sends events to the threads of the models, and ends as a
//! [`Recording`](scope_result::Recording). Nothing here depends on QEMU: `scope-plugin` does.

#![forbid(unsafe_code)]

mod access_groups;
mod accesses;
mod arguments;
mod batch;
mod block_flow;
mod blocks;
mod call_graph;
mod call_tree;
mod cost_events;
mod counts;
mod decode;
mod execution;
mod frames;
mod functions;
mod group_word;
mod instrumentation;
mod layout_plan;
mod layout_trace;
mod memory;
mod recorder;
mod register_values;
mod return_slots;
mod stage;
mod trace;
mod tracer;

pub use access_groups::{Accesses, Group, Member};
pub use accesses::accesses;
pub use arguments::Arguments;
pub use blocks::BlockId;
pub use decode::{
    FlushInstruction, MARK_BEGIN, MARK_END, Mark, MemoryOperand, TIME_STAMP, decoded, enters_guest,
    flush_instruction, mark,
};
pub use frames::{FrameEntry, FrameProbe, SkbLayout};
pub use functions::{EntryKind, Functions};
pub use group_word::GroupWord;
pub use instrumentation::{AccessCallback, Covers, Instrumentation};
pub use layout_plan::{LayoutPlan, PlacedSection, disjoint};
pub use memory::{MemoryMap, bytes_at, shared_memory};
pub use trace::TraceEvent;
pub use tracer::{ControlRegisters, Tracer};
