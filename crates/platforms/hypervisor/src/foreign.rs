//! Another domain's granted memory, for a user that does not know the domain's platform.
//!
//! A frame's sender and its receiver may belong to different platforms, or the receiver may be a
//! device that belongs to none. Each reaches the sender's pages through [`GrantedMemory`]. A
//! receiver of the sender's own platform asks for the [`PeerMemory`] behind it instead and copies
//! from grant to grant.

use std::any::Any;
use std::fmt;

use arrayvec::ArrayVec;

use crate::dma::{DmaHold, DmaRange};
use crate::grant::{CopyStatus, Dest, GrantCopy, MappedGrants};
use crate::hypervisor::Hypervisor;
use crate::pages::{Granted, MappedPages};

/// One copy out of granted memory: from `from` on, as many bytes as `to` has, within one page.
#[derive(Debug)]
pub struct CopyOut<'a> {
    /// Where the bytes lie.
    pub from: Granted,
    /// Where they go.
    pub to: &'a mut [u8],
}

/// Most copies of one batch: as many as a port asks for at once.
const BATCH: usize = 64;

/// Memory that one domain grants to this one, on any platform.
///
/// Every grant is checked at every use. [Mapped pages](MappedPages) stay mapped while the caller
/// borrows them.
pub trait GrantedMemory: Any + Send + Sync {
    /// Copies bytes to private memory. Returns whether all of them could be read.
    fn copy_out(&self, mapped: Option<MappedPages<'_>>, batch: &mut [CopyOut<'_>]) -> bool;

    /// Finds the addresses at which a device can read the bytes, as an IOMMU does, and sets each
    /// range's address. The addresses are valid while `mapped` is borrowed, and as long as a
    /// [hold](Self::dma_hold) lives that was taken before.
    fn dma_map<'a>(&'a self, mapped: Option<MappedPages<'a>>, batch: &mut [DmaRange<'a>]);

    /// Holds the domain's pages for a device that reads after this call. None if the platform
    /// cannot.
    fn dma_hold(&self) -> Option<DmaHold>;
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

    fn dma_map<'a>(&'a self, mapped: Option<MappedPages<'a>>, batch: &mut [DmaRange<'a>]) {
        self.hypervisor.dma_map(&self.peer, mapped, batch);
    }

    fn dma_hold(&self) -> Option<DmaHold> {
        self.hypervisor.dma_hold(&self.peer)
    }
}
