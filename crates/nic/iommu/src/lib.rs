//! An IOMMU for a card with contexts: each context has a translation table (Willmann et al. 2007,
//! §5.3, where it is only proposed).
//!
//! ```text
//!  daemon                        shared memory                      card
//!  Mapper ── map, unmap ──▶ table: a word per page ── read ──▶ Translator ─ Iotlb
//!    │                      (read-only to the card)               │
//!    └─ Invalidator ── request ──▶ words of both ◀── confirm ── Responder
//! ```
//!
//! The addresses in a context's descriptors are I/O virtual addresses. A guest can use those
//! that are mapped in its context's table, and no others. Unmapping takes two steps: the entry is
//! cleared and an invalidation is requested; later the card confirms that it has no such translation
//! in its cache and no transfer in progress that used it. Only then is the page
//! [given back](Mapper::give_back).
//!
//! The card is trusted, as in the paper. No guest can write the table or the words of the protocol.

#![forbid(unsafe_code)]

mod invalidation;
mod iotlb;
mod mapper;
mod responder;
mod table;
mod translator;

pub use invalidation::{ANSWERS_LEN, Barrier, Index, Invalidation, RegionInvalidation, Request};
pub use invalidation::{Invalidator, Ticket};
pub use iotlb::{Geometry, Iotlb, IotlbCount};
pub use mapper::{Flush, MapError, Mapper, UnmapError};
pub use responder::{Responder, Transfer};
pub use table::{Access, Entry, MACHINE_PAGES, Permission};
pub use table::{ReadTable, RegionTable, WriteTable, table_len};
pub use translator::{Fault, FaultKind, Translator};

/// Bytes in a page.
pub const PAGE_SIZE: u64 = 4096;
