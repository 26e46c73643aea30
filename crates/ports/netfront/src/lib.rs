//! The frontend of a Xen virtual interface (`public/io/netif.h`), for guests that are programs.
//!
//! [`Frontend::connect`] does the handshake and returns [`FrontendQueue`]s. [`TxQueue`] sends frames whose
//! bytes the caller has put into the queue's pages; [`RxQueue`] returns received frames in the
//! pages they arrived in. All pages are granted once, at the start. If the backend offers a
//! [`ControlRing`], the frontend asks it to keep them mapped, and can ask for a [hash](HashConfig) to spread its flows by. Only with a backend that flips pages
//! are pages granted per frame. With a backend that grants received frames, it copies them.
//!
//! [`Frontend`] and [`FrontendQueue`] implement `netdev`, the contract with a guest's TCP/IP stack.
//!
//! The frontend checks the backend: too many responses, an id that is not in use, or a fragment
//! outside its page is a [`Fault`], after which the queue must not be used.

#![forbid(unsafe_code)]

mod buffers;
mod control;
mod fetch;
mod free_pages;
mod handshake;
mod invalidate;
mod queue;
mod rx;
mod tx;

pub use buffers::CopyPool;
pub use control::{ControlError, ControlRing, HashConfig};
pub use handshake::{Config, ConnectError, Frontend};
pub use queue::FrontendQueue;
pub use rx::{FlowHash, Received, RxQueue};
pub use tx::{Full, TxBuffer, TxQueue};

/// Requests on a full ring, and pages of each ring.
pub const RING_LEN: usize = 256;

/// The backend broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An index is out of range.
    #[error(transparent)]
    Ring(#[from] ring::Broken),
    /// A response to a request that is not outstanding.
    #[error("a response to request {0}, which is not outstanding")]
    UnknownId(u16),
    /// An extra that does not say which request it answers, of a backend that answers in any order.
    #[error("an extra that does not say which request it answers")]
    UnnamedRequest,
    /// A packet whose last fragments are missing.
    #[error("a packet announces more fragments than were delivered")]
    Unfinished,
    /// A fragment that crosses the end of its page.
    #[error("{len} bytes at {offset} cross the end of the page")]
    CrossesPage {
        /// First byte in the page.
        offset: u16,
        /// How many bytes.
        len: u16,
    },
    /// A malformed extra.
    #[error(transparent)]
    Extra(#[from] wire::netif::extra::ExtraError),
}
