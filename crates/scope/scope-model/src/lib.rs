//! Simulates the caches and TLBs of a processor on a stream of instructions and data accesses.
//!
//! ```text
//!                  ┌─ ITLB, DTLB: 4 KiB and large pages ── every size × every policy, one pass
//!  blocks, data ──►│     └─ mappings come from a walker of the page tables
//!  CR3, INVLPG ──► └─ L1I, L1D ── misses ──► unified L2: every size, side by side
//! ```
//!
//! The method is that of Chadha et al. (2007): CASPER's caches and TLBs behind an execution-driven simulator. New here is that
//! one pass covers all sizes, and policies that no processor has.
//!
//! Not modelled: prefetchers, write-backs, coherence (there is one processor), the memory traffic of page walks, speculation.

#![forbid(unsafe_code)]

mod address_space;
mod cache;
mod config;
mod cost;
mod cost_event;
mod counters;
mod hot_pages;
mod keys;
mod layout_lines;
mod layout_pages;
mod layouts;
mod line_id;
mod lru_tlbs;
mod mapping;
mod model;
mod paging;
mod preset_values;
mod processor;
mod section;
mod streams;
mod tlb;
mod tlbs;
mod walker;

pub use cache::{Cache, L2Bank, Lookup, WAYS};
pub use config::{
    Config, L2_BYTES, L2_SIZES, LAYOUTS, LINE, Policy, Preset, TLB_ENTRIES, TLB_SIZES, TlbSet,
};
pub use cost::Costs;
pub use cost_event::{CostEvent, EventCosts, EventCounts};
pub use counters::{Counters, Sweep};
pub use layouts::{FixedPage, LayoutMisses, Layouts};
pub use line_id::LineId;
pub use lru_tlbs::LAYOUT_TLBS;
pub use mapping::{Mapping, PAGE_SLOTS, Side};
pub use model::{Model, Outcome};
pub use paging::{Flush, FlushSite, PageSize, Paging, PhysicalMemory, Translation, walk};
pub use processor::Processor;
pub use section::Section;
pub use streams::Streams;
pub use tlb::Tlb;
pub use walker::Walker;
