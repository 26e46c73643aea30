//! Another domain's granted memory, for whoever does not know the platform that it belongs to.
//!
//! A frame's sender and its receiver may belong to different platforms, or the receiver may be a
//! device that belongs to none. Each reaches the sender's pages through [`GrantedMemory`]. A
//! receiver of the sender's own platform asks for the [`PeerMemory`] behind it instead and copies
//! from grant to grant.

use std::any::Any;
use std::fmt;

use arrayvec::ArrayVec;
use shm::{Piece, Region};

use crate::{
    CopyStatus, Dest, DmaHold, DmaRange, GrantCopy, GrantRef, Hypervisor, MappedGrants, PAGE_SIZE,
    Source,
};

/// Granted pages that are also mapped in this domain. Whose they are is said elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct MappedPages<'a> {
    /// Where they lie: place after place, each of a page.
    pub region: &'a Region,
    /// What is mapped at each place.
    pub grefs: &'a [Option<GrantRef>],
}

impl<'a> MappedPages<'a> {
    /// What is mapped at a place.
    #[inline]
    #[must_use]
    pub fn at(&self, place: u16) -> Option<GrantRef> {
        self.grefs.get(usize::from(place)).copied().flatten()
    }

    /// The place where granted bytes are mapped, if they are: `len` of them, within one page.
    #[inline]
    #[must_use]
    pub fn find(&self, bytes: Granted, len: u16) -> Option<u16> {
        // The owner may have had the page unmapped, and another one mapped in its place, since it
        // was found there. And nothing may be touched beyond the page.
        let within_page = usize::from(bytes.offset) + usize::from(len) <= PAGE_SIZE;
        bytes.mapped.filter(|place| within_page && self.at(*place) == Some(bytes.gref))
    }

    /// Where granted bytes lie in this domain's address space, if they do.
    #[must_use]
    pub fn address(&self, bytes: Granted, len: u16) -> Option<Piece<'a>> {
        let place = usize::from(self.find(bytes, len)?);
        let offset = place * PAGE_SIZE + usize::from(bytes.offset);
        Some(Piece::Shared { region: self.region, offset, len: len.into() })
    }
}

/// Bytes within one granted page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Which page.
    pub gref: GrantRef,
    /// First byte within the page.
    pub offset: u16,
    /// Where the page is [mapped](MappedPages), if it is. A hint: checked at every use, because
    /// the owner may have had another page mapped in its place since.
    pub mapped: Option<u16>,
}

impl Granted {
    /// The bytes from the byte `skip` on.
    #[inline]
    #[must_use]
    pub fn skip(self, skip: u16) -> Self {
        Self { offset: self.offset.saturating_add(skip), ..self }
    }

    /// `len` of the bytes as a platform's copy reads them.
    #[inline]
    pub fn source<'a, P>(
        self,
        peer: &'a P,
        mapped: Option<&'a MappedGrants<'a, P>>,
        len: u16,
    ) -> Source<'a, P> {
        let Self { gref, offset, .. } = self;
        let place = mapped.and_then(|mapped| mapped.pages.find(self, len));
        match (mapped, place) {
            (Some(pages), Some(place)) => Source::MappedGrant { pages, place, offset },
            _ => Source::Grant { peer, gref, offset },
        }
    }
}

/// One copy out of granted memory: from `from` on, as many bytes as `to` has, within one page.
#[derive(Debug)]
pub struct CopyOut<'a> {
    /// Where the bytes lie.
    pub from: Granted,
    /// Where they go.
    pub to: &'a mut [u8],
}

/// Most copies of one batch: more than a body has pieces.
const BATCH: usize = 32;

/// Memory that one domain grants to this one, on any platform.
///
/// Every grant is checked at every use. What is [mapped](MappedPages) as well stays so while the
/// caller borrows it.
pub trait GrantedMemory: Any + Send + Sync {
    /// Copies bytes to private memory. Returns whether all of them could be read.
    fn copy_out(&self, mapped: Option<MappedPages<'_>>, batch: &mut [CopyOut<'_>]) -> bool;

    /// Finds out where a device can read the bytes, as an IOMMU does, and sets each range's
    /// address. The addresses hold while `mapped` is borrowed, and as long as the hold lives, if
    /// there is one.
    fn dma_map<'a>(
        &'a self,
        mapped: Option<MappedPages<'a>>,
        batch: &mut [DmaRange<'a>],
    ) -> Option<DmaHold>;
}

/// The memory that one peer of one platform grants.
pub struct PeerMemory<H: Hypervisor> {
    /// The platform.
    pub hypervisor: H,
    /// Whose memory.
    pub peer: H::Peer,
}

impl<H: Hypervisor> fmt::Debug for PeerMemory<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerMemory").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl<H: Hypervisor> GrantedMemory for PeerMemory<H> {
    fn copy_out(&self, mapped: Option<MappedPages<'_>>, batch: &mut [CopyOut<'_>]) -> bool {
        let Self { hypervisor, peer } = self;
        let mapped = mapped.map(|pages| MappedGrants { peer, pages });
        let mut readable = true;
        for some in batch.chunks_mut(BATCH) {
            let mut copies = ArrayVec::<GrantCopy<'_, H::Peer>, BATCH>::new();
            for CopyOut { from, to } in some {
                // A longer one would cross the page's end, which is refused.
                let len = u16::try_from(to.len()).unwrap_or(u16::MAX);
                let source = from.source(peer, mapped.as_ref(), len);
                copies.push(GrantCopy::new(source, Dest::Private(to), len));
            }
            hypervisor.copy(&mut copies);
            readable &= copies.iter().all(|copy| copy.status == CopyStatus::Okay);
        }
        readable
    }

    fn dma_map<'a>(
        &'a self,
        mapped: Option<MappedPages<'a>>,
        batch: &mut [DmaRange<'a>],
    ) -> Option<DmaHold> {
        self.hypervisor.dma_map(&self.peer, mapped, batch)
    }
}
