//! The interface of a card with a protected context for every guest (concurrent direct network
//! access, Willmann et al. 2007), as guest, hypervisor and card share it.
//!
//! | memory of one context | guest | hypervisor | card | layout |
//! | --- | --- | --- | --- | --- |
//! | context page | writes | | reads, clears events | [`context`] |
//! | ring pages | writes if its protection says so, else reads | writes if not the guest | reads | [`ring`] |
//! | completion page | reads | reads | writes | [`completion`] |
//!
//! The card and the hypervisor also share the ring of interrupt vectors ([`vectors`]) and a socket
//! for [`message`]s. Descriptors have the [`layout`] that the card announces.
//!
//! All indices run freely and wrap at 2³². All words are of the host's byte order: both ends are on
//! one host. This crate has types, constants and index arithmetic only. Mappings enforce who may write
//! what, and every reader checks what it reads.

#![forbid(unsafe_code)]

pub mod address;
pub mod call;
pub mod completion;
pub mod context;
pub mod descriptor;
pub mod fault;
pub mod layout;
pub mod message;
pub mod ring;
pub mod vectors;

pub use completion::{RxCompletion, Status};
pub use context::{ContextId, DropReason, Enable, Events, Mailbox, Statistics};
pub use descriptor::{Descriptor, Flags, Offload};
pub use fault::{Fault, Reason};
pub use layout::{Announcement, Field, Layout};
pub use message::{Command, Report};
pub use ring::Direction;
