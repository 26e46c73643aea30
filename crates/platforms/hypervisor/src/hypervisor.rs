//! What a backend asks of its hypervisor.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::copies::{Copies, copy_all};
use crate::dma::{DmaHold, DmaRange};
use crate::error::Error;
use crate::flip::PageTransfer;
use crate::grant::{GrantCopy, GrantMap};
use crate::guest_copy::{CopyForm, GuestCopies};
use crate::id::{DomId, EvtchnPort, FrameNumber, GrantRef};
use crate::meter::Counted;
use crate::pages::MappedPages;

/// The services of the hypervisor for a backend, in the driver domain.
pub trait Hypervisor: Clone + Send + Sync + 'static {
    /// A handle of another domain, so that grant operations need no lookup.
    type Peer: Clone + Send + Sync + fmt::Debug + 'static;
    /// Another domain's pages in this domain's address space. Dropping it unmaps them.
    type Mapping: std::ops::Deref<Target = shm::Region> + Send + Sync + 'static;
    /// Reserved address space of this domain for pages of one peer. Dropping it unmaps all pages
    /// in it.
    type Aperture: std::ops::Deref<Target = shm::Region> + Send + Sync + 'static;
    /// One end of an event channel.
    type Event: EventChannel;
    /// A batch of copies.
    type Copies<'a>: Copies<'a, Self::Peer>;

    /// How many copies one hypercall performs.
    const COPIES_PER_HYPERCALL: usize = usize::MAX;

    /// Whether pages can be mapped [unpinned](GrantMap::unpinned).
    const UNPINNED_MAPPINGS: bool = false;

    /// Whether a device reaches pages that are not mapped in this domain.
    const DMA_REACHES_UNMAPPED: bool = false;

    /// Whether a backend that resumes a guest's rings can have guest copies there: the frontend can notice
    /// that the earlier backend's copies are gone.
    const RESUMES_GUEST_COPIES: bool = false;

    /// Resolves a domain. When the domain dies, operations on the handle fail.
    fn peer(&self, domain: DomId) -> Result<Self::Peer, Error>;

    /// Maps granted pages, in order and contiguously, readable and writable.
    fn map(&self, peer: &Self::Peer, grefs: &[GrantRef]) -> Result<Self::Mapping, Error>;

    /// Reserves `places` pages of address space for pages of `peer`. Place `n` is at byte `n *
    /// PAGE_SIZE`, and may be touched only while a page is mapped there.
    fn aperture(&self, peer: &Self::Peer, places: u32) -> Result<Self::Aperture, Error>;

    /// Maps a batch of granted pages, each at its place. Each operation gets a status; a place
    /// that is in use is [`BadGrant`](crate::MapStatus::BadGrant).
    fn map_at(&self, aperture: &mut Self::Aperture, batch: &mut [GrantMap]);

    /// Whether a grant names this page and permits the access at this moment. This costs one load.
    #[inline]
    fn is_current(
        &self,
        peer: &Self::Peer,
        gref: GrantRef,
        frame: FrameNumber,
        writable: bool,
    ) -> bool {
        let _ = (peer, gref, frame, writable);
        false
    }

    /// Unmaps the pages at these places; empty places are skipped.
    fn unmap(&self, aperture: &mut Self::Aperture, places: std::ops::Range<u32>);

    /// Finds the addresses at which a device can read bytes that `peer` grants, as an IOMMU does,
    /// and sets each range's address. Every grant is checked.
    ///
    /// The addresses are valid while `mapped` is borrowed, and as long as a [`DmaHold`] lives that
    /// was taken before.
    fn dma_map<'a>(
        &self,
        peer: &'a Self::Peer,
        mapped: Option<MappedPages<'a>>,
        batch: &mut [DmaRange<'a>],
    );

    /// Holds `peer`'s pages for a device that reads after the call that delivers a frame. None if
    /// this platform cannot.
    fn dma_hold(&self, peer: &Self::Peer) -> Option<DmaHold> {
        let _ = peer;
        None
    }

    /// `peer`'s memory, for a device that writes to pages which `peer` grants. It stays mapped while
    /// the result lives, even if the domain ends; a [`DmaHold`] keeps the pages in place. None if
    /// this platform cannot.
    fn dma_region(&self, peer: &Self::Peer) -> Option<shm::Region> {
        let _ = peer;
        None
    }

    /// The first byte of a page in [`dma_region`](Self::dma_region), if `peer` lets this domain
    /// write to it. The grant is checked.
    fn dma_page(&self, peer: &Self::Peer, gref: GrantRef) -> Option<u64> {
        let _ = (peer, gref);
        None
    }

    /// Performs a batch of copies between granted, mapped and private memory. Returns whether all were done; otherwise each has its
    /// [status](Copies::status). A batch is performed once, and then dropped or cleared.
    ///
    /// Every grant is checked at every use, unless its page is mapped pinned.
    fn perform(&self, batch: &mut Self::Copies<'_>) -> bool;

    /// The same for copies that are there already; each gets its status.
    fn copy(&self, batch: &mut [GrantCopy<'_, Self::Peer>]) {
        copy_all(batch, |copies| self.perform(copies));
    }

    /// Private zeroed memory of `len` bytes for a device's receive buffers. On some platforms copies from this memory to guests cost
    /// less, at least from its first bytes: use those most.
    ///
    /// # Errors
    /// The kernel has no memory left.
    fn buffer_memory(&self, len: usize) -> std::io::Result<shm::Region> {
        shm::Region::anonymous(len)
    }

    /// Page flipping, if this platform has it.
    fn page_transfer(&self) -> Option<Arc<dyn PageTransfer<Self::Peer>>> {
        None
    }

    /// Sets up guest copies for one RX queue of `peer`, if this platform has them. A platform may use another form in
    /// place of [`CopyForm::Hypercall`]: see [`GuestCopies::form`].
    ///
    /// # Errors
    /// The platform has no guest copies, or no memory for a pool: [`Error::Exhausted`].
    fn guest_copies(
        &self,
        peer: &Self::Peer,
        form: CopyForm,
    ) -> Result<Arc<dyn GuestCopies>, Error> {
        let _ = (peer, form);
        Err(Error::Unsupported("guest copies"))
    }

    /// Binds to an event channel that `peer` offered to this domain and that is not bound. After
    /// this end is dropped, or its process is killed, the channel can be bound again.
    fn bind_interdomain(&self, peer: &Self::Peer, port: EvtchnPort) -> Result<Self::Event, Error>;

    /// Makes the hypervisor send `event` when `mapping` is unmapped, also by the end of this
    /// process. Otherwise a backend that is killed between a response and its event would leave
    /// the frontend waiting. On a platform whose channels do not outlive the backend, this does nothing.
    #[inline]
    fn notify_on_unmap(&self, mapping: &Self::Mapping, event: &Self::Event) {
        let _ = (mapping, event);
    }

    /// Counts work that the driver domain does without the hypervisor: see [`Meter`](crate::Meter).
    #[inline]
    fn note(&self, what: Counted, n: u64) {
        let _ = (what, n);
    }
}

/// One end of an event channel.
///
/// Events are not counted: several notifications before the other end polls are one event. The
/// descriptor becomes readable with an event; wait for it edge-triggered (`EPOLLET`).
pub trait EventChannel: AsFd + Send + Sync + 'static {
    /// Sends an event to the other end. Never blocks.
    fn notify(&self) -> Result<(), Error>;

    /// Clears a pending event, so that the next one makes a new edge. Never blocks.
    ///
    /// Call it before reading the ring, never after: an event in between would be lost.
    fn take(&self) -> Result<(), Error>;
}
