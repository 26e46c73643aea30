//! How a backend breaks the protocol.

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
