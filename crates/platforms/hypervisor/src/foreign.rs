//! Another domain's granted memory, for a user that does not know the domain's platform.
//!
//! A frame's sender and its receiver may belong to different platforms, or the receiver may be a
//! device that belongs to none. Each reaches the sender's pages through [`GrantedMemory`]. A
//! receiver of the sender's own platform asks for the [`PeerMemory`] behind it instead and copies
//! from grant to grant.

use std::any::Any;
use std::fmt;

use shm::Region;

use crate::copies::{COPIES_MAX, Copies as _};
use crate::dma::{DmaHold, DmaRange};
use crate::grant::{Dest, MappedGrants};
use crate::hypervisor::Hypervisor;
use crate::pages::{Granted, MappedPages};

/// One copy out of granted memory: from `from` on, as many bytes as `to` has, within one page.
#[derive(Debug)]
pub struct CopyOut<'a> {
    /// Where the bytes lie.
    pub from: Granted,
    /// Where they go.
    pub to: Target<'a>,
}

/// Bytes of this process that are to be written.
#[derive(Debug)]
pub enum Target<'a> {
    /// Private memory.
    Private(&'a mut [u8]),
    /// Bytes of mapped memory, which a platform may reach [at less cost](Hypervisor::buffer_memory).
    Mapped {
        /// The memory.
        region: &'a Region,
        /// The first byte.
        offset: usize,
        /// How many bytes.
        len: usize,
    },
}

impl<'a> Target<'a> {
    /// How many bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::Private(bytes) => bytes.len(),
            Self::Mapped { len, .. } => *len,
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The address of the first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        match self {
            Self::Private(bytes) => bytes.as_ptr().addr(),
            Self::Mapped { region, offset, .. } => {
                region.address(*offset, 0).map_or(0, <*mut u8>::addr)
            }
        }
    }

    /// The first `mid` bytes, and the rest.
    #[must_use]
    pub fn split_at(self, mid: usize) -> Option<(Self, Self)> {
        match self {
            Self::Private(bytes) => {
                let (first, rest) = bytes.split_at_mut_checked(mid)?;
                Some((Self::Private(first), Self::Private(rest)))
            }
            Self::Mapped { region, offset, len } => {
                let rest = len.checked_sub(mid)?;
                let first = Self::Mapped { region, offset, len: mid };
                Some((first, Self::Mapped { region, offset: offset + mid, len: rest }))
            }
        }
    }

    /// Copies the first bytes of `source` here, as many as fit. Returns false if the mapped memory ends before them.
    // Without the hint the compiler emits a call here, and a second one for a copy of a few bytes.
    #[inline(always)]
    pub fn write(&mut self, source: &[u8]) -> bool {
        match self {
            Self::Private(bytes) => {
                let len = bytes.len().min(source.len());
                bytes[..len].copy_from_slice(&source[..len]);
                true
            }
            Self::Mapped { region, offset, len } => {
                region.copy_in(*offset, &source[..source.len().min(*len)]).is_ok()
            }
        }
    }

    /// Fills the target from byte `from` of `source`. Returns false if either memory ends too early.
    pub fn fill_from(&mut self, source: &Region, from: usize) -> bool {
        match self {
            Self::Private(bytes) => source.copy_out(from, bytes).is_ok(),
            Self::Mapped { region, offset, len } => {
                Region::copy_between(source, from, region, *offset, *len).is_ok()
            }
        }
    }

    fn dest<P>(&mut self) -> Dest<'_, P> {
        match self {
            Self::Private(bytes) => Dest::Private(bytes),
            Self::Mapped { region, offset, .. } => Dest::Mapped { region, offset: *offset },
        }
    }
}

/// Memory that one domain grants to this one, on any platform.
///
/// Every grant is checked at every use. [Mapped pages](MappedPages) stay mapped while the caller
/// borrows them.
pub trait GrantedMemory: Any + Send + Sync {
    /// Copies bytes to this process's memory. Returns whether all of them could be read.
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
        for some in batch.chunks_mut(COPIES_MAX) {
            let mut copies = H::Copies::default();
            for CopyOut { from, to } in some {
                // A longer one would cross the page's end, which is refused.
                let len = u16::try_from(to.len()).unwrap_or(u16::MAX);
                copies.push(from.source(peer, mapped.as_ref(), len), to.dest(), len);
            }
            readable &= hypervisor.perform(&mut copies);
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
