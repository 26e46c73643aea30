//! Another domain's granted memory, for a user that does not know the domain's platform.
//!
//! A frame's sender and its receiver may belong to different platforms, or the receiver may be a
//! device that belongs to none. Each reaches the sender's pages through [`GrantedMemory`]. A
//! receiver of the sender's own platform asks for the [`PeerMemory`] behind it instead and copies
//! from grant to grant.

use std::any::Any;
use std::fmt;
use std::mem::take;

use shm::Region;

use crate::copies::{COPIES_MAX, Copies};
use crate::dma::{DmaHold, DmaRange};
use crate::grant::{Dest, MappedGrants, Source};
use crate::hypervisor::Hypervisor;
use crate::pages::{Granted, MappedPages};

/// One copy out of granted memory, within one page.
#[derive(Clone, Copy, Debug)]
pub struct CopyOut {
    /// Where the bytes lie.
    pub from: Granted,
    /// Where in the target they go: the first byte.
    pub at: u32,
    /// How many.
    pub len: u16,
}

/// Memory of this process that copies fill.
#[derive(Debug)]
pub enum Target<'a> {
    /// Private memory.
    Private(&'a mut [u8]),
    /// Mapped memory, which a platform may reach [at less cost](Hypervisor::buffer_memory).
    Mapped(&'a Region),
}

impl Target<'_> {
    /// Copies `source` to byte `at`. Returns false if the memory ends before it.
    // Without the hint the compiler emits a call here, and a second one for a copy of a few bytes.
    #[inline(always)]
    pub fn write(&mut self, at: usize, source: &[u8]) -> bool {
        match self {
            Self::Private(bytes) => match part(bytes, at, source.len()) {
                Some(part) => {
                    part.copy_from_slice(source);
                    true
                }
                None => false,
            },
            Self::Mapped(region) => region.copy_in(at, source).is_ok(),
        }
    }

    /// Copies `len` bytes of `source`, from byte `from` of it on, to byte `at`. Returns false if either memory ends too early.
    pub fn fill(&mut self, at: usize, len: usize, source: &Region, from: usize) -> bool {
        match self {
            Self::Private(bytes) => match part(bytes, at, len) {
                Some(part) => source.copy_out(from, part).is_ok(),
                None => false,
            },
            Self::Mapped(region) => Region::copy_between(source, from, region, at, len).is_ok(),
        }
    }
}

fn part(bytes: &mut [u8], at: usize, len: usize) -> Option<&mut [u8]> {
    bytes.get_mut(at..)?.get_mut(..len)
}

/// Memory that one domain grants to this one, on any platform.
///
/// Every grant is checked at every use. [Mapped pages](MappedPages) stay mapped while the caller
/// borrows them.
pub trait GrantedMemory: Any + Send + Sync {
    /// Copies bytes to this process's memory, each copy behind the one before it. Returns whether all of them could be read and had a place.
    fn copy_out(
        &self,
        mapped: Option<MappedPages<'_>>,
        batch: &[CopyOut],
        to: &mut Target<'_>,
    ) -> bool;

    /// Whether a device may find addresses here. Where not, [`dma_map`](Self::dma_map) finds none.
    fn has_addresses(&self, mapped: Option<MappedPages<'_>>) -> bool {
        let _ = mapped;
        true
    }

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

impl<H: Hypervisor> PeerMemory<H> {
    #[inline]
    fn copy_each<'a>(
        &self,
        mapped: Option<MappedPages<'_>>,
        batch: &[CopyOut],
        mut dest: impl FnMut(&CopyOut) -> Option<Dest<'a, H::Peer>>,
    ) -> bool {
        let Self { hypervisor, peer } = self;
        let mapped = mapped.map(|pages| MappedGrants { peer, pages });
        let mut readable = true;
        for some in batch.chunks(COPIES_MAX) {
            let mut copies = H::Copies::default();
            // Asked once for a batch, rather than of each copy.
            let have_places = match &mapped {
                None => push_each(&mut copies, some, |copy| copy.from.granted(peer), &mut dest),
                Some(pages) => {
                    let source = |copy: &CopyOut| copy.from.source(peer, Some(pages), copy.len);
                    push_each(&mut copies, some, source, &mut dest)
                }
            };
            if !have_places {
                return false;
            }
            readable &= hypervisor.perform(&mut copies);
        }
        readable
    }
}

/// Adds copies to a batch. Returns false at one that has no place.
#[inline(always)]
fn push_each<'a, 'b: 'a, P: 'b>(
    copies: &mut impl Copies<'a, P>,
    batch: &[CopyOut],
    source: impl Fn(&CopyOut) -> Source<'a, P>,
    dest: &mut impl FnMut(&CopyOut) -> Option<Dest<'b, P>>,
) -> bool {
    batch
        .iter()
        .all(|copy| dest(copy).map(|dest| copies.push(source(copy), dest, copy.len)).is_some())
}

impl<H: Hypervisor> GrantedMemory for PeerMemory<H> {
    fn copy_out(
        &self,
        mapped: Option<MappedPages<'_>>,
        batch: &[CopyOut],
        to: &mut Target<'_>,
    ) -> bool {
        match to {
            Target::Mapped(region) => self.copy_each(mapped, batch, |copy| {
                Some(Dest::Mapped { region, offset: copy.at as usize })
            }),
            Target::Private(bytes) => {
                let (mut start, mut bytes) = (0, &mut **bytes);
                self.copy_each(mapped, batch, |copy| {
                    let before = copy.at.checked_sub(start)?;
                    let (_, behind) = take(&mut bytes).split_at_mut_checked(before as usize)?;
                    let (place, rest) = behind.split_at_mut_checked(copy.len.into())?;
                    (start, bytes) = (copy.at + u32::from(copy.len), rest);
                    Some(Dest::Private(place))
                })
            }
        }
    }

    fn has_addresses(&self, mapped: Option<MappedPages<'_>>) -> bool {
        H::DMA_REACHES_UNMAPPED || mapped.is_some()
    }

    fn dma_map<'a>(&'a self, mapped: Option<MappedPages<'a>>, batch: &mut [DmaRange<'a>]) {
        self.hypervisor.dma_map(&self.peer, mapped, batch);
    }

    fn dma_hold(&self) -> Option<DmaHold> {
        self.hypervisor.dma_hold(&self.peer)
    }
}
