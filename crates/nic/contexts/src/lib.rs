//! The hypervisor's part of a card with a context for every guest (concurrent direct network access,
//! Willmann et al. 2007, §3.2 and §3.3).
//!
//! A guest's context works without the hypervisor, except for what protects others from the guest:
//!
//! | protection | who writes descriptors | who keeps the card from other memory | calls |
//! | --- | --- | --- | --- |
//! | none | the guest | nobody | none |
//! | hypervisor | [`Caller::enqueue`], after checks | the checks, and a reference to each page | per batch of descriptors |
//! | IOMMU, static | the guest | the context's table, filled once | none |
//! | IOMMU, strict or deferred | the guest | the context's table | [`map`](Caller::map) and [`unmap`](Caller::unmap) per batch of buffers |
//!
//! Whatever the protection, the domain keeps a page while there are
//! [references](hypervisor::PageReferences) to it. A descriptor holds one to each page that it touches, until
//! the card has consumed it; a mapping holds one, until the card has confirmed the
//! invalidation. The end of a context releases them all, and comes only when the card is
//! quiet: it has confirmed the revocation, stopped the context with a fault, or ended.
//!
//! The card is trusted and guests are not, as in the paper. All calls may come from any thread; a call takes two
//! locks: its context's and its domain's references'.

#![forbid(unsafe_code)]

mod assign;
mod call;
mod context;
mod contexts;
mod enqueue;
mod hypercalls;
mod mapping;
mod refusal;
mod state;
mod vectors;
mod writer;

pub use assign::{AssignError, Assignment, ContextMemory, Unsupported};
pub use call::{Call, MalformedCall, write_answer};
pub use contexts::Contexts;
pub use contexts::{FAULTS_KEPT, FaultRecord};
pub use hypercalls::{Caller, Performed};
pub use mapping::{CALL_PAGES, Unmapping};
pub use refusal::{EntryError, Refusal};
pub use state::{ContextStatus, Ended, Reason, State};
pub use state::{IommuMode, Protection};
pub use vectors::{BadVectors, VectorConsumer, VectorRing};
