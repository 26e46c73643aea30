//! What a processor's caches and TLBs make of a stream of instructions and data accesses.
//!
//! ```text
//!                  ┌─ ITLB, DTLB: 4 KiB and large pages ── every size × every policy, one pass
//!  blocks, data ──►│     └─ pages are told of by what walks the page tables
//!  CR3, INVLPG ──► └─ L1I, L1D ── misses ──► unified L2: every size, side by side
//! ```
//!
//! The method is Chadha et al.'s (2007): CASPER's caches and TLBs behind an execution-driven
//! simulator. What is new is that one pass answers for all sizes, and for policies that no
//! processor has.
//!
//! Not modelled: prefetchers, write-backs, coherence (there is one processor), the memory traffic of
//! page walks, speculation.

#![forbid(unsafe_code)]

mod cache;
mod config;
mod cost;
mod counters;
mod keys;
mod model;
mod paging;
mod policy;
mod recent;
mod second;
mod tlb;
mod walker;

pub use cache::{Asked, Cache, WAYS};
pub use config::{Config, L2_BYTES, L2_SIZES, LINE, TLB_ENTRIES, TLB_SIZES};
pub use cost::Costs;
pub use counters::{Counters, Sweep};
pub use model::{Flush, Line, Model, Outcome};
pub use paging::{PageSize, Paging, PhysicalMemory, Translation, walk};
pub use policy::{POLICIES, Policy};
pub use second::Second;
pub use tlb::{Mask, Tlb};
pub use walker::{Mapping, Side, Walker};
