//! The frontend of a Xen virtual interface (`public/io/netif.h`), for guests that are programs.
//!
//! [`Frontend::connect`] does the handshake and returns [`Queue`]s. [`TxQueue`] sends frames whose
//! bytes the caller has put into the queue's pages; [`RxQueue`] returns received frames in the
//! pages they arrived in. All pages are granted once, at the start. If the backend offers a
//! [`ControlRing`], the frontend asks it to keep them mapped, and can ask for a [hash](HashConfig) to spread its flows by. Only with a backend that flips pages
//! are pages granted per frame. With a backend that grants received frames, it copies them.
//!
//! [`Frontend`] and [`Queue`] implement `netdev`, the contract with a guest's TCP/IP stack.
//!
//! The frontend checks the backend: too many responses, an id that is not in use, or a fragment
//! outside its page is a [`Fault`], after which the queue must not be used.

#![forbid(unsafe_code)]

mod buffers;
mod control;
mod device;
mod fault;
mod fetch;
mod free_pages;
mod handshake;
mod invalidate;
mod pages;
mod pool;
mod rx;
mod tx;

pub use control::{ControlError, ControlRing, HashConfig};
pub use device::Queue;
pub use fault::Fault;
pub use handshake::{Config, ConnectError, Frontend};
pub use pool::CopyPool;
pub use rx::{FlowHash, Received, RxQueue};
pub use tx::{Full, TxBuffer, TxQueue};

/// Requests on a full ring, and pages of each ring.
pub const RING_LEN: usize = 256;
