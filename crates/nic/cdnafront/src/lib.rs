//! The driver of a card's context (concurrent direct network access, Willmann et al. 2007), for guests
//! and for the driver domain.
//!
//! ```text
//!   guest's stack          switch of the driver domain
//!   CardQueue              ContextIngress, ContextEgress
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
//! [`open`] returns the [`Interface`] and the [`CardQueue`] of a guest (`netdev`); [`open_port`] returns a
//! port's two sides. Frames are sent from and received into pages that are allocated once.
//! A batch costs one mailbox write and at most one doorbell, and nothing is allocated per frame.
//!
//! The paper trusts the card. Here, everything that the card writes is checked nevertheless, so that a bug
//! of the card leads to a [`Fault`].

#![forbid(unsafe_code)]

mod call_page;
mod connect;
mod device;
mod egress;
mod event;
mod ingress;
mod lent;
mod pages;
mod ring;
mod rx;
mod tx;

use cdna::Direction;

pub use call_page::{BATCH, CallError, CallEvents, CallPage, Hypercalls};
pub use connect::{Access, Coalescing, Config, Context, open, open_lent, open_port};
pub use device::{CardQueue, Interface, Release};
pub use egress::ContextEgress;
pub use event::{CallChannel, FdEvent};
pub use ingress::ContextIngress;
pub use lent::{Leftover, LentCounts, LentIngress, Loan};
pub use pages::{Memory, Pages, RX_PAGES, TX_PAGES};
pub use rx::ReceivedFrame;

/// The card wrote something impossible, or the hypervisor refused a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A consumer index went back, or beyond the descriptors that the card knows of.
    #[error("{direction:?} consumer {consumer} is outside {seen} to {announced}")]
    Consumer {
        /// In which ring.
        direction: Direction,
        /// The index in the completion page.
        consumer: u32,
        /// The last one.
        seen: u32,
        /// The producer index.
        announced: u32,
    },
    /// A completion without bytes, or of more than the buffer has.
    #[error("{len} bytes in buffer {index}")]
    Length {
        /// The descriptor's index.
        index: u32,
        /// What the completion says.
        len: u16,
    },
    /// A frame without an end, or of too many buffers.
    #[error("the frame that starts in buffer {0} has no end")]
    Unfinished(u32),
    /// An unsegmented frame whose segments have no size.
    #[error("the frame that starts in buffer {0} has segments of 0 bytes")]
    SegmentSize(u32),
    /// A call failed.
    #[error(transparent)]
    Call(#[from] CallError),
}
