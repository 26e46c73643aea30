//! The driver of a card's context (concurrent direct network access, Willmann et al. 2007), for guests
//! and for the driver domain.
//!
//! ```text
//!   guest's stack          switch of the driver domain
//!     Queue                ContextIngress, ContextEgress
//!        └───────┬───────────────┘
//!          TxRing, RxRing           buffers in own memory
//!                │
//!              Ring                 indices, mailboxes, interrupts
//!                │
//!             Publish               none, iommu static: writes the ring
//!                                   hypervisor: one hypercall per 64 descriptors
//!                                   iommu strict, deferred: maps, then writes the ring
//! ```
//!
//! [`open`] returns the [`Interface`] and the [`Queue`] of a guest (`netdev`); [`open_port`] returns a
//! port's two sides. Frames are sent from and received into pages that are allocated once.
//! A batch costs one mailbox write and at most one doorbell, and nothing is allocated per frame.
//!
//! The paper trusts the card. Everything that it writes is checked nevertheless, so that a card with a
//! bug leads to a [`Fault`].

#![forbid(unsafe_code)]

mod call_page;
mod connect;
mod device;
mod egress;
mod event;
mod fault;
mod ingress;
mod lent;
mod pages;
mod ring;
mod rx;
mod tx;

pub use call_page::{BATCH, CallError, Hypercalls};
pub use call_page::{CallEvents, CallPage};
pub use connect::{Access, Coalescing, Config, Context, open, open_lent, open_port};
pub use device::{Interface, Queue, Release};
pub use egress::ContextEgress;
pub use event::{CallChannel, FdEvent};
pub use fault::Fault;
pub use ingress::ContextIngress;
pub use lent::{Leftover, LentCounts, LentIngress, Loan};
pub use pages::Pages;
pub use pages::{Memory, RX_PAGES, TX_PAGES};
pub use rx::Received;
