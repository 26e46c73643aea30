//! Grants: pages that their owner lets another domain use.

use shm::Region;

use crate::id::{FrameNumber, GrantRef};
use crate::pages::{Granted, MappedPages, PAGE_SIZE};

/// Pages that their owner grants and that are mapped in this domain as well.
#[derive(Clone, Copy, Debug)]
pub struct MappedGrants<'a, P> {
    /// Who grants them.
    pub peer: &'a P,
    /// Where they lie, and which they are.
    pub pages: MappedPages<'a>,
}

impl<'a, P> MappedGrants<'a, P> {
    /// The grant that is mapped at a place.
    #[inline]
    #[must_use]
    pub fn at(&self, place: u16) -> Option<GrantRef> {
        self.pages.at(place)
    }

    /// The page at a place, if it is mapped unpinned: then each use is checked.
    #[inline]
    #[must_use]
    pub fn frame(&self, place: u16) -> Option<FrameNumber> {
        self.pages.frames?.get(usize::from(place)).copied()
    }

    /// A byte of the page at a place, by its grant.
    #[inline]
    fn granted(&self, place: u16, offset: u16) -> Option<(&'a P, GrantRef, u16)> {
        Some((self.peer, self.at(place)?, offset))
    }

    /// A byte of the page at a place, where it is mapped.
    #[inline]
    fn mapped(&self, place: u16, offset: u16) -> (&'a Region, usize) {
        (self.pages.region, usize::from(place) * PAGE_SIZE + usize::from(offset))
    }
}

/// Where a copy reads.
#[derive(Debug)]
pub enum Source<'a, P> {
    /// Bytes of a page that `peer` grants.
    Grant {
        /// Whose page.
        peer: &'a P,
        /// Which page.
        gref: GrantRef,
        /// First byte within the page.
        offset: u16,
    },
    /// Bytes of a granted page that is mapped as well. A platform uses the cheaper access.
    MappedGrant {
        /// Mapped pages, which include this one.
        pages: &'a MappedGrants<'a, P>,
        /// Which of them.
        place: u16,
        /// First byte within the page.
        offset: u16,
    },
    /// Bytes of memory that this domain has mapped: its own buffers, a virtio guest's RAM.
    Mapped {
        /// The memory.
        region: &'a Region,
        /// First byte within it.
        offset: usize,
    },
    /// Private bytes, `len` of them or more.
    Private(&'a [u8]),
}

impl<P> Clone for Source<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Source<'_, P> {}

/// Where a copy writes.
#[derive(Debug)]
pub enum Dest<'a, P> {
    /// Bytes of a page that `peer` grants for writing.
    Grant {
        /// Whose page.
        peer: &'a P,
        /// Which page.
        gref: GrantRef,
        /// First byte within the page.
        offset: u16,
    },
    /// Bytes of a page that is granted and mapped, both for writing.
    MappedGrant {
        /// Mapped pages, which include this one.
        pages: &'a MappedGrants<'a, P>,
        /// Which of them.
        place: u16,
        /// First byte within the page.
        offset: u16,
    },
    /// Bytes of memory that this domain has mapped.
    Mapped {
        /// The memory.
        region: &'a Region,
        /// First byte within it.
        offset: usize,
    },
    /// Private bytes, `len` of them or more.
    Private(&'a mut [u8]),
}

impl<'a, P> Source<'a, P> {
    /// The bytes' grant, if they have one: the granting peer, the page and the first byte in it.
    #[inline]
    #[must_use]
    pub fn granted(&self) -> Option<(&'a P, GrantRef, u16)> {
        match *self {
            Self::Grant { peer, gref, offset } => Some((peer, gref, offset)),
            Self::MappedGrant { pages, place, offset } => pages.granted(place, offset),
            Self::Mapped { .. } | Self::Private(_) => None,
        }
    }

    /// The bytes' place in shared memory that is mapped here, if they have one: the first byte.
    #[inline]
    #[must_use]
    pub fn mapped(&self) -> Option<(&'a Region, usize)> {
        match *self {
            Self::MappedGrant { pages, place, offset } => Some(pages.mapped(place, offset)),
            Self::Mapped { region, offset } => Some((region, offset)),
            Self::Grant { .. } | Self::Private(_) => None,
        }
    }
}

impl<'a, P> Dest<'a, P> {
    /// The same for a shorter time.
    #[inline]
    pub fn reborrow(&mut self) -> Dest<'_, P> {
        match self {
            Self::Grant { peer, gref, offset } => {
                Dest::Grant { peer, gref: *gref, offset: *offset }
            }
            Self::MappedGrant { pages, place, offset } => {
                Dest::MappedGrant { pages, place: *place, offset: *offset }
            }
            Self::Mapped { region, offset } => Dest::Mapped { region, offset: *offset },
            Self::Private(bytes) => Dest::Private(bytes),
        }
    }

    /// See [`Source::granted`].
    #[inline]
    #[must_use]
    pub fn granted(&self) -> Option<(&'a P, GrantRef, u16)> {
        match *self {
            Self::Grant { peer, gref, offset } => Some((peer, gref, offset)),
            Self::MappedGrant { pages, place, offset } => pages.granted(place, offset),
            Self::Mapped { .. } | Self::Private(_) => None,
        }
    }

    /// See [`Source::mapped`].
    #[inline]
    #[must_use]
    pub fn mapped(&self) -> Option<(&'a Region, usize)> {
        match *self {
            Self::MappedGrant { pages, place, offset } => Some(pages.mapped(place, offset)),
            Self::Mapped { region, offset } => Some((region, offset)),
            Self::Grant { .. } | Self::Private(_) => None,
        }
    }
}

impl Granted {
    /// The first `len` of the bytes, as the source of a copy.
    #[inline]
    pub fn source<'a, P>(
        self,
        peer: &'a P,
        mapped: Option<&'a MappedGrants<'a, P>>,
        len: u16,
    ) -> Source<'a, P> {
        let place = mapped.and_then(|mapped| mapped.pages.find(self, len));
        match (mapped, place) {
            (Some(pages), Some(place)) => Source::MappedGrant { pages, place, offset: self.offset },
            _ => self.granted(peer),
        }
    }

    /// The bytes as the source of a copy, wherever they are mapped.
    #[inline]
    pub fn granted<P>(self, peer: &P) -> Source<'_, P> {
        Source::Grant { peer, gref: self.gref, offset: self.offset }
    }
}

/// How one operation of a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyStatus {
    /// Done.
    Okay,
    /// The source could not be read: its owner is at fault.
    BadSource,
    /// The destination could not be written: its owner is at fault.
    BadDest,
}

/// One operation of a batch (`GNTTABOP_copy`): within one page on each granted side.
#[derive(Debug)]
pub struct GrantCopy<'a, P> {
    /// Where the bytes lie.
    pub source: Source<'a, P>,
    /// Where they go.
    pub dest: Dest<'a, P>,
    /// How many bytes.
    pub len: u16,
    /// Written by the hypervisor.
    pub status: CopyStatus,
}

impl<'a, P> GrantCopy<'a, P> {
    /// An operation not yet performed.
    #[inline]
    pub fn new(source: Source<'a, P>, dest: Dest<'a, P>, len: u16) -> Self {
        Self { source, dest, len, status: CopyStatus::Okay }
    }

    /// Whether one side can be reached by its grant only. Otherwise no hypercall is needed.
    #[inline]
    pub fn is_granted(&self) -> bool {
        matches!(self.source, Source::Grant { .. }) || matches!(self.dest, Dest::Grant { .. })
    }
}

/// How one mapping of a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapStatus {
    /// The page is in this domain's address space.
    Okay,
    /// The grant does not permit it, or its owner is gone: the owner is at fault.
    BadGrant,
}

/// One page that is mapped, for one packet or longer (`GNTTABOP_map_grant_ref`).
#[derive(Clone, Copy, Debug)]
pub struct GrantMap {
    /// Where: a free place of an [aperture](crate::Hypervisor::aperture).
    pub place: u32,
    /// Which page of the aperture's peer.
    pub gref: GrantRef,
    /// Whether it is also mapped for writing, which the grant must permit.
    pub writable: bool,
    /// Whether its owner can see that it is mapped, and cannot end the grant meanwhile.
    pub pinned: bool,
    /// Written by the hypervisor: the number of an unpinned page in its owner's memory.
    pub frame: FrameNumber,
    /// Written by the hypervisor.
    pub status: MapStatus,
}

impl GrantMap {
    /// An operation not yet performed: maps a page for reading.
    #[inline]
    pub fn new(place: u32, gref: GrantRef) -> Self {
        let (writable, pinned, frame) = (false, true, FrameNumber::default());
        Self { place, gref, writable, pinned, frame, status: MapStatus::Okay }
    }

    /// An operation not yet performed: maps a page for reading and writing.
    #[inline]
    pub fn writable(place: u32, gref: GrantRef) -> Self {
        Self { writable: true, ..Self::new(place, gref) }
    }

    /// An operation not yet performed: maps a page whose owner may end the grant at any time,
    /// without asking. The user of the mapping must first check that the grant
    /// [is current](crate::Hypervisor::is_current). It replaces an unpinned page at its place.
    ///
    /// A platform [without such mappings](crate::Hypervisor::UNPINNED_MAPPINGS) refuses it.
    #[inline]
    pub fn unpinned(place: u32, gref: GrantRef, writable: bool) -> Self {
        Self { writable, pinned: false, ..Self::new(place, gref) }
    }
}
