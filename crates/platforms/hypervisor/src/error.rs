//! Why a hypercall failed.

use crate::id::{DomId, EvtchnPort, GrantRef};

/// Why a hypercall failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such domain, or it is gone.
    #[error("domain {0} does not exist or is gone")]
    NoDomain(DomId),
    /// The grant reference does not permit the access.
    #[error("domain {dom} does not grant {what} of reference {gref}")]
    BadGrant {
        /// The granting domain.
        dom: DomId,
        /// The reference in its table.
        gref: GrantRef,
        /// "read", "write" or "transfer".
        what: &'static str,
    },
    /// The page does not belong to the domain.
    #[error("domain {dom} does not own page {frame}")]
    NotOwner {
        /// The domain that tried.
        dom: DomId,
        /// The page's number.
        frame: u32,
    },
    /// No such event channel, or it is not for this domain.
    #[error("domain {dom} has no event channel {port} for the caller")]
    BadPort {
        /// The domain that owns the port.
        dom: DomId,
        /// Its port.
        port: EvtchnPort,
    },
    /// The other end or the hypervisor is gone.
    #[error("the other end is gone")]
    Gone,
    /// This platform lacks the service.
    #[error("this platform has no {0}")]
    Unsupported(&'static str),
    /// A device still reads pages of the domain.
    #[error("a device still reads pages of domain {0}")]
    Busy(DomId),
    /// The domain has not finished joining.
    #[error("domain {0} has not finished joining")]
    NotReady(DomId),
    /// A limit was reached (grants, ports, pages).
    #[error("out of {0}")]
    Exhausted(&'static str),
    /// The operating system failed.
    #[error("{what}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// The error that it returned.
        source: std::io::Error,
    },
}

impl Error {
    /// Adds what was attempted to the system's error, for `map_err`.
    pub fn os<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Os { what, source: source.into() }
    }
}
