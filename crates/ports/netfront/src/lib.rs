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
mod handshake;
mod rx;
mod tx;

pub use control::{ControlError, ControlRing};
pub use handshake::{Config, ConnectError, Frontend};
pub use rx::{Received, RxQueue};
pub use tx::{Full, Place, TxQueue};

use hypervisor::Guest;

/// Requests outstanding on a full ring, and pages behind each ring.
pub const RING_LEN: usize = 256;

/// One queue: a ring each way.
pub struct Queue<G: Guest> {
    /// To the backend.
    pub tx: TxQueue<G>,
    /// From the backend.
    pub rx: RxQueue<G>,
}

/// The backend broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An index ran away.
    #[error(transparent)]
    Ring(#[from] ring::Broken),
    /// A response to a request that is not outstanding.
    #[error("a response to request {0}, which is not outstanding")]
    UnknownId(u16),
    /// A packet whose last fragments are missing.
    #[error("a packet announces more fragments than were delivered")]
    Unfinished,
    /// A fragment that leaves its page.
    #[error("{len} bytes at {offset} cross the end of the page")]
    CrossesPage {
        /// First byte in the page.
        offset: u16,
        /// How many bytes.
        len: u16,
    },
    /// An extra that is not one.
    #[error(transparent)]
    Extra(#[from] wire::netif::extra::ExtraError),
}
