//! The device's end of virtio's rings (VIRTIO 1.2 §2.7 and §2.8), split and packed.
//!
//! ```text
//!   driver: makes chains of buffers available          device: this crate
//!  ┌───────────────────────────────────────┐   pop    ┌────────────────────────┐
//!  │ descriptors ─► buffers in guest memory  │ ───────► │ Chain: places in regions │
//!  │ available                               │ complete │ (ring index of the chain) │
//!  │ used                                    │ ◄─────── │ publish: at most one      │
//!  └───────────────────────────────────────┘          │ notification per batch    │
//!                                                      └────────────────────────┘
//! ```
//!
//! [`Queue::pop`] copies the descriptors of the next chain, each once, checks the copies, and says where the
//! chain's buffers lie in [`GuestMemory`]. [`Queue::complete`] returns a chain, in any order.
//! [`Queue::publish`] shows the driver the chains that are complete, in the order in which they were made
//! available, so the device keeps `VIRTIO_F_IN_ORDER`, and a later device can continue from the ring alone.
//!
//! The driver may write anything at any time. What makes the ring unusable is [`RingBroken`]: an index that
//! jumps, a descriptor that does not exist, a chain that is longer than the ring. What concerns one chain only,
//! such as an address outside of the guest's memory, is that chain's [`Fault`]: it is returned unused.
//!
//! An [`InflightLog`] lets the next process continue a packed ring after this one was killed, and a [`DirtyLog`] notes each page
//! that the device writes.
//!
//! [`burst`] is a driver's end, for uplinks and measurements. [`driver`] is a plain one for tests of the device.

#![forbid(unsafe_code)]

pub mod burst;
mod chain;
mod dirty;
pub mod driver;
mod error;
mod inflight;
mod layout;
mod memory;
mod packed;
mod position;
mod queue;
mod ring_memory;
mod split;
mod taken;
mod words;

pub use chain::{CHAIN_MAX, Chain, DESCRIPTORS_MAX, Fault, Single};
pub use dirty::DirtyLog;
pub use error::{RingBroken, SetupError};
pub use inflight::InflightLog;
pub use layout::{Layout, Options, RingAddresses, RingSetup, SIZE_MAX, must_notify};
pub use memory::{Buffer, GuestMemory, MemoryError, Range};
pub use queue::{Mark, Queue, Shown};
pub use ring_memory::RingMemory;
