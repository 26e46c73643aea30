//! The hypervisor's services, as traits.
//!
//! A driver domain and a guest need two services: pages that another domain may use
//! ([grants](grant)) and a doorbell ([event channels](event)). Each platform (`machine`, `xen`)
//! implements these traits once; `netback` and `netfront` are generic over them and never
//! learn which platform they run on. Domains find each other through
//! the store, which is crate `xenstore`.

#![forbid(unsafe_code)]

pub mod dma;
pub mod event;
pub mod flip;
pub mod foreign;
pub mod grant;
pub mod metered;

use std::fmt;
use std::sync::Arc;

pub use dma::{DmaHold, DmaMemory, DmaRange};
pub use event::EventChannel;
use flip::{PageReceiver, PageTransfer};
pub use foreign::{CopyOut, Granted, GrantedMemory, MappedPages, PeerMemory};
pub use grant::{CopyStatus, Dest, GrantCopy, GrantMap, GrantRef, MapStatus, MappedGrants, Source};
pub use metered::{Counted, Meter, Metered};

/// Bytes in a page, the unit of grants (Xen's `XEN_PAGE_SIZE`).
pub const PAGE_SIZE: usize = 4096;

/// A domain's number (`domid_t`). 0 is the driver domain of the embedded machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomId(pub u16);

impl fmt::Display for DomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// An event channel's number within its domain (`evtchn_port_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u32);

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a hypercall failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No such domain, or it is gone.
    #[error("domain {0} does not exist or is gone")]
    NoDomain(DomId),
    /// The grant reference does not permit what was asked.
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
        /// The domain asked for.
        dom: DomId,
        /// Its port.
        port: Port,
    },
    /// The other end or the hypervisor is gone.
    #[error("the other end is gone")]
    Gone,
    /// This platform does not have the service.
    #[error("this platform has no {0}")]
    Unsupported(&'static str),
    /// A device still reads pages of the domain.
    #[error("a device still reads pages of domain {0}")]
    Busy(DomId),
    /// A limit was reached (grants, ports, pages).
    #[error("out of {0}")]
    Exhausted(&'static str),
    /// The operating system failed.
    #[error("{what}: {source}")]
    Os {
        /// What was attempted.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
}

impl Error {
    /// Names the attempt beside the system's answer, for `map_err`.
    pub fn os<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::Os { what, source: source.into() }
    }
}

/// The services of the hypervisor for a backend, in the driver domain.
pub trait Hypervisor: Clone + Send + Sync + 'static {
    /// Another domain, resolved once so that a grant operation needs no look-up.
    type Peer: Clone + Send + Sync + fmt::Debug + 'static;
    /// Another domain's pages in this domain's address space. Dropping it unmaps them.
    type Mapping: std::ops::Deref<Target = shm::Region> + Send + Sync + 'static;
    /// Reserved places in this domain's address space for pages of one peer. Dropping it unmaps all
    /// pages there.
    type Aperture: std::ops::Deref<Target = shm::Region> + Send + Sync + 'static;
    /// One end of an event channel.
    type Event: EventChannel;

    /// How many copies one hypercall performs.
    const COPIES_PER_HYPERCALL: usize = usize::MAX;

    /// Resolves a domain. When the domain dies, operations on the handle fail.
    fn peer(&self, domain: DomId) -> Result<Self::Peer, Error>;

    /// Maps granted pages, in order and contiguously, readable and writable.
    fn map(&self, peer: &Self::Peer, grefs: &[GrantRef]) -> Result<Self::Mapping, Error>;

    /// Reserves `places` pages of address space for pages of `peer`. Place `n` is at byte `n *
    /// PAGE_SIZE`, and may be touched only while a page is mapped there.
    fn aperture(&self, peer: &Self::Peer, places: u32) -> Result<Self::Aperture, Error>;

    /// Maps a batch of granted pages, each at its place, readable and if asked for writable. Each
    /// operation gets its own status; a place that is taken is a bad grant.
    fn map_at(&self, aperture: &mut Self::Aperture, batch: &mut [GrantMap]);

    /// Unmaps the pages at these places; empty places are skipped.
    fn unmap(&self, aperture: &mut Self::Aperture, places: std::ops::Range<u32>);

    /// Finds out where a device can read bytes that `peer` grants, as an IOMMU does, and sets
    /// each range's address. Every grant is checked at this use.
    ///
    /// The addresses hold while `mapped` is borrowed. Where there is a [`DmaHold`], they hold as
    /// long as that lives: it is what a device needs that reads after this call.
    fn dma_map<'a>(
        &self,
        peer: &'a Self::Peer,
        mapped: Option<MappedPages<'a>>,
        batch: &mut [DmaRange<'a>],
    ) -> Option<DmaHold>;

    /// Copies a batch between grants and private memory; each operation gets its own status.
    ///
    /// Every grant is checked at every use.
    fn copy(&self, batch: &mut [GrantCopy<'_, Self::Peer>]);

    /// Page flipping, if this platform has it.
    fn page_transfer(&self) -> Option<Arc<dyn PageTransfer<Self::Peer>>> {
        None
    }

    /// Binds to an event channel that `peer` offered to this domain and that is not bound. After
    /// this end is dropped, or its process is killed, the channel can be bound again.
    fn bind_interdomain(&self, peer: &Self::Peer, port: Port) -> Result<Self::Event, Error>;

    /// Sends `event` once more when `mapping` is unmapped, also by the death of this process. A
    /// backend that is killed between a response and its event would otherwise leave the frontend
    /// waiting. On a platform whose channels do not outlive the backend, this does nothing.
    #[inline]
    fn notify_on_unmap(&self, mapping: &Self::Mapping, event: &Self::Event) {
        let _ = (mapping, event);
    }

    /// Counts work that the driver domain did itself: see [`Meter`].
    #[inline]
    fn note(&self, what: Counted, n: u64) {
        let _ = (what, n);
    }
}

/// The services of the hypervisor for a frontend, in a guest.
pub trait Guest: Clone + Send + Sync + 'static {
    /// One end of an event channel.
    type Event: EventChannel;
    /// Pages of this guest's own memory, contiguous in its address space.
    type Pages: std::ops::Deref<Target = shm::Region> + Send + Sync + 'static;

    /// This domain's number.
    fn domid(&self) -> DomId;

    /// Allocates `pages` zeroed pages and grants each to `to`, readable and writable.
    ///
    /// They are zeroed before they are shared, because stale data would leak to the backend
    /// (XSA-403). The references are in the order of the pages. Dropping the pages revokes the
    /// grants.
    fn share(&self, to: DomId, pages: usize) -> Result<(Self::Pages, Vec<GrantRef>), Error>;

    /// Offers an event channel to `to`. Returns this domain's end and its port.
    fn alloc_unbound(&self, to: DomId) -> Result<(Self::Event, Port), Error>;

    /// The receiving end of page flipping, if this platform has it.
    fn page_receiver(&self) -> Option<Arc<dyn PageReceiver>> {
        None
    }
}
