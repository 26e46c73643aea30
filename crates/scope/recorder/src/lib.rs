//! What is recorded of a guest's execution.
//!
//! [`Tracer`] is told of every block, of the accesses of data that [`accesses`] could not derive from others, and of the few
//! instructions that [`special`] finds; it knows who runs, has threads with the models fed, and ends as a
//! [`Recording`](scope_result::Recording). Nothing here knows QEMU: `scope-plugin` does.

#![forbid(unsafe_code)]

mod accesses;
mod arguments;
mod code;
mod counts;
mod decode;
mod execution;
mod found;
mod memory;
mod recorder;
mod stage;
mod told;
mod trace;
mod tracer;

pub use accesses::{Accesses, Group, Member, accesses};
pub use arguments::Arguments;
pub use code::BlockId;
pub use decode::{Address, BEGIN, END, Mark, Special, mark, special};
pub use memory::{MEMORY, MemoryMap, bytes_at, shared_memory};
pub use told::{Plan, Told, Watch, What};
pub use trace::Step;
pub use tracer::{Start, Tracer};
