//! The frontend of a Xen virtual interface (`public/io/netif.h`), for guests that are programs.
//!
//! [`Frontend::connect`] does the handshake and answers [`Queue`]s. [`TxQueue`] sends frames
//! whose bytes the caller has put into the queue's pages; [`RxQueue`] hands out received frames
//! where they lie. All pages are granted once, at the start, and a backend that offers it is asked
//! over the [`ControlRing`] to keep them mapped; only with one that flips pages they come and go
//! with the frames.
//!
//! The backend is checked as well: more responses than requests, an id that is not in use, a
//! fragment outside its page are a [`Fault`], after which the queue must not be used.

#![forbid(unsafe_code)]

mod buffers;
mod control;
mod fault;
mod handshake;
mod queue;
mod rx;
mod tx;

pub use control::{ControlError, ControlRing};
pub use fault::Fault;
pub use handshake::{Config, ConnectError, Frontend};
pub use queue::Queue;
pub use rx::{Received, RxQueue};
pub use tx::{Full, Place, TxQueue};

/// Requests outstanding on a full ring, and pages behind each ring.
pub const RING_LEN: usize = 256;
